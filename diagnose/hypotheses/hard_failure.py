import re

from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_live
from diagnose.observation import Event
from diagnose.units import seconds
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class HardFailure(Hypothesis):
    """Something broke, verifiably: the engine died, memory ran out, connections dropped, an absolute objective is breached.

    Symptom: requests fail or hang; the server does not answer.
    Mechanism: any. A hard failure is a fact to contain, and says nothing of its cause, which stays open.
    Refuted when: the target answered throughout, counted no failure and holds every stated objective.
    Supported when: the target went away or restarted under load, counted an out-of-memory abort, an engine death or
    connections that it dropped, or breaches an objective given with --slo.
    Proves nothing: a relative regression, however large, without an absolute objective.
    Measure next: the engine's log around the failure; exit code and signal of its process.
    Fix and its trade: bounded containment first (smaller budget, fewer sequences, restart), then the cause.
    """

    name = "hard_failure"
    causes_latency = False

    def judge(self, case: Case, argument: Argument) -> Judgement:
        broken = [event for event in case.events if event.kind in ("gone", "engine_dead")]
        for event in broken:
            argument.say(Stance.FOR, f"{event.detail}", source=case.target)
        self._first_events(case, argument)
        self._unanswered(case, argument)
        self._counted(case, argument)
        self._restart(case, argument)
        self._objectives(case, argument)
        if any(item.stance is Stance.FOR for item in argument.evidence):
            return argument.conclude(Verdict.SUPPORTED)
        failures = case.signals.counters.get("failures")
        if failures is not None and not case.signals.num_scrapes:
            argument.say(Stance.AGAINST, "the log tells of no failure", source=failures.source)
            argument.lacks(
                "an answer of the server", "a process that was killed writes nothing to its log", command_live(case)
            )
        if argument.missing:
            return argument.conclude(Verdict.UNDETERMINED)
        argument.say(
            Stance.AGAINST,
            "the target answered at every scrape and counted no failure",
            source=case.signals.counters["failures"].source,
            samples=case.signals.num_scrapes,
        )
        return argument.conclude(Verdict.REFUTED)

    def _first_events(self, case: Case, argument: Argument) -> None:
        """What a log tells of, in time order: what came first is nearer to the cause than what is loudest."""
        told: dict[str, Event] = {}
        for event in sorted((event for event in case.events if event.kind in _TOLD), key=lambda event: event.unix):
            told.setdefault(event.kind, event)
        for index, event in enumerate(told.values()):
            argument.say(
                Stance.CONTEXT, f"{'first' if not index else 'then'} {event.kind}: {event.detail}", source="log"
            )
        if "collective_timeout" in told:
            self._ranks(case, argument)

    def _ranks(self, case: Case, argument: Argument) -> None:
        """A timeout is told by every rank that waited; the one whose collective has the lowest number is behind."""
        told = [event for event in case.events if event.kind == "collective_timeout"]
        waits = [float(found[1]) / 1e3 for event in told if (found := _RAN_FOR.search(event.detail)) is not None]
        at = {int(f[1]): int(f[2]) for event in told if (f := _RANK_AT.search(event.detail)) is not None}
        if waits:
            argument.say(
                Stance.CONTEXT,
                f"it began {seconds(max(waits))} before the message: look there, not at its time",
                value=max(waits),
                unit="s",
                source="log",
            )
        if len(set(at.values())) > 1:
            last = min(at, key=lambda rank: at[rank])
            argument.say(
                Stance.CONTEXT,
                f"rank {last} is behind, at collective {at[last]} while others are at {max(at.values())}: the ranks went "
                "different ways or one was held up; the loudest one only waits",
                value=last,
                source="log",
            )

    def _unanswered(self, case: Case, argument: Argument) -> None:
        """Failed scrapes of a target that came back: not answered throughout, and not proven broken either."""
        failed = [event for event in case.events if event.kind in ("unreachable", "bad_answer", "error_answer")]
        if not failed or any(event.kind == "gone" for event in case.events):
            return
        argument.say(
            Stance.CONTEXT,
            f"{len(failed)} of {len(failed) + case.signals.num_scrapes} scrapes failed, the first with: {failed[0].detail}",
            value=len(failed),
            unit="scrapes",
            source=case.target,
        )
        argument.lacks(
            "why scrapes failed while the target lived",
            "a busy or blocked server misses scrapes; so does one that drops connections",
            command_live(case, "--window 120s"),
        )

    def _counted(self, case: Case, argument: Argument) -> None:
        if "failures" not in case.signals.counters:
            argument.lacks(
                "the engine's failure counters", "a failure may leave no other trace in metrics", command_live(case)
            )
            return
        for kind, count in case.signals.failures.items():
            if count > 0:
                argument.say(
                    Stance.FOR,
                    f"the engine counted {count:.0f} {kind} in the window",
                    value=count,
                    unit="failures",
                    source=case.signals.counters["failures"].source,
                )

    def _restart(self, case: Case, argument: Argument) -> None:
        if not case.signals.restarted:
            return
        running = case.signals.running_before_restart
        text = "the engine restarted in the window"
        if running > 0:
            argument.say(
                Stance.FOR, f"{text} with {running:.0f} requests running: their connections were dropped", value=running
            )
        else:
            argument.say(Stance.CONTEXT, f"{text} while no request was running")

    def _objectives(self, case: Case, argument: Argument) -> None:
        for breach in case.breaches():
            limit, low, high = breach.objective.limit_seconds, breach.measured.low, breach.measured.high
            measured = seconds(low) if breach.measured.exact else f"in ({seconds(low)}, {seconds(high)}]"
            if breach.certain:
                argument.say(
                    Stance.FOR,
                    f"objective {breach.objective.text} is breached: measured {measured}",
                    value=low,
                    unit="s",
                    compared_with=f"limit {seconds(limit)}",
                    source=breach.source,
                    samples=breach.samples,
                )
            elif breach.beyond:
                argument.lacks(
                    f"at least {breach.samples_needed} samples for {breach.objective.text} (found {breach.samples})",
                    f"on fewer the quantile is the slowest sample alone ({measured})",
                    command_live(case, "--window 120s"),
                )
            else:
                argument.lacks(
                    f"{breach.objective.text} at a finer resolution",
                    f"the limit lies inside the bucket that holds the quantile ({measured})",
                    command_live(case),
                )
        for objective in case.unmeasured_objectives():
            argument.lacks(
                f"samples for {objective.text}", "no such latency was observed in the window", command_live(case)
            )


_TOLD = frozenset(
    {"out_of_memory", "engine_dead", "collective_timeout", "collective_failed", "device_error", "leak", "no_progress"}
    | {"connection_dropped", "preempted", "no_kv_space", "transfer_failed", "transfer_timeout", "unservable", "stopped"}
)
_RAN_FOR = re.compile(r"ran for (\d+) milliseconds")
_RANK_AT = re.compile(r"\[Rank (\d+)\] Watchdog caught .*?SeqNum=(\d+)")
