from collections.abc import Sequence
from typing import NamedTuple

from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis
from diagnose.signals import Signals
from diagnose.stats import median
from diagnose.units import percent
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class ReplicaImbalance(Hypothesis):
    """Some replicas hold a queue while others idle: the average of the fleet hides both.

    Symptom: the fleet's p99 is late while its mean load looks harmless.
    Mechanism: a router that counts requests and not tokens, sticky sessions, cache-aware routing that overdoes it, or one slow
    replica. Requests behind the busy one wait for capacity that exists elsewhere.
    Refuted when: no replica holds much more work than the median one, or every replica has requests waiting.
    Supported when: requests wait on one replica while another has none waiting and holds a fraction of its work; or half of the
    replicas have nothing to do while there is work for all of them.
    Proves nothing: different hit rates; a difference at a single scrape.
    Measure next: running, waiting and completed requests per replica over the window.
    Fix and its trade: route by outstanding tokens (gives up some prefix hits), or take the slow replica out (less capacity).
    """

    name = "replica_imbalance"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        policy = case.policy
        if case.signals.num_replicas == 1:
            argument.say(Stance.CONTEXT, "the target is one replica")
            return argument.conclude(Verdict.NOT_APPLICABLE)
        loads = sorted(_loads(case.signals.replicas), key=lambda load: load.work)
        if len(loads) < 2:
            argument.lacks(
                "running and waiting requests of each replica",
                "an average over replicas hides the one that is late",
                "stallscope diagnose --prometheus URL --match 'job=\"llm\"'   # all replicas behind one selector",
            )
            return argument.conclude(Verdict.UNDETERMINED)
        free = [load for load in loads if load.waiting == 0]
        idlest, busiest = (free or loads)[0], loads[-1]
        typical = median([load.work for load in loads])
        high = busiest.work >= policy.replica_factor * max(typical, 1.0)
        room = bool(free) and idlest.work * policy.replica_factor <= busiest.work
        argument.say(
            Stance.FOR if high or room else Stance.AGAINST,
            f"{busiest.name} holds {busiest.work:.1f} requests on average, the median replica {typical:.1f}, {idlest.name} "
            f"{idlest.work:.1f}",
            value=busiest.work / max(typical, 1.0),
            unit="ratio",
            compared_with=f"{len(loads)} replicas",
            source=case.signals.gauges["running"].source,
        )
        waiting = sum(load.waiting > 0 for load in loads)
        argument.say(
            Stance.FOR if 0 < waiting < len(loads) else Stance.AGAINST,
            f"requests wait on {waiting} of {len(loads)} replicas ({percent(waiting / len(loads))})",
            value=waiting,
            unit="replicas",
        )
        if (busiest.waiting > 0 and room) or (high and self._half_idle(argument, loads)):
            return argument.conclude(Verdict.SUPPORTED)
        if (not high and not room) or waiting in (0, len(loads)):
            return argument.conclude(Verdict.REFUTED)
        argument.lacks(
            "completed requests and time to first token per replica",
            "the work is uneven, and it is not shown that requests wait for it",
            "stallscope diagnose --prometheus URL --match 'job=\"llm\"' --window 10m",
        )
        return argument.conclude(Verdict.UNDETERMINED)

    def _half_idle(self, argument: Argument, loads: Sequence["_Load"]) -> bool:
        """Whether half of the replicas hold less than a request although the others hold one for each of all."""
        idle = sum(load.work < 1 for load in loads)
        if 2 * idle < len(loads) or sum(load.work for load in loads) < len(loads):
            return False
        argument.say(
            Stance.FOR,
            f"{idle} of {len(loads)} replicas hold less than one request on average, and there is work for all of them",
            value=idle / len(loads),
            unit="share",
        )
        return True


class _Load(NamedTuple):
    name: str
    running: float
    waiting: float

    @property
    def work(self) -> float:
        return self.running + self.waiting


def _loads(replicas: dict[str, Signals]) -> list[_Load]:
    """Means over the window; replicas that do not say are left out."""
    loads: list[_Load] = []
    for name, signals in replicas.items():
        running, waiting = signals.gauges.get("running"), signals.gauges.get("waiting")
        if running is not None and waiting is not None:
            loads.append(_Load(name, running.mean, waiting.mean))
    return loads
