from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_live
from diagnose.hypotheses.pool import occupancy
from diagnose.hypotheses.stacks import say_stacks
from diagnose.units import seconds
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class EngineHung(Hypothesis):
    """The server answers and holds work, and no step advances. Healthy is not serving.

    Symptom: requests hang without an error; health checks and scrapes are green.
    Mechanism: the engine loop waits for something that does not come: a dead worker, a collective, a deadlock, a stuck kernel.
    Refuted when: any token was computed in the window, or no work is present.
    Supported when: work is present at every scrape of a window longer than any sane step, and no token was computed; where
    the requests inside hold no blocks yet, a window longer than any compilation.
    Proves nothing: gauges that read busy (they may be stale); a health check that answers.
    Measure next: the stacks of the engine's threads; its log; the device's activity.
    Fix and its trade: take it out of rotation, keep the stacks, restart (running requests are lost).
    """

    name = "engine_hung"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        worked, running, waiting = (
            case.signals.worked,
            case.signals.gauges.get("running"),
            case.signals.gauges.get("waiting"),
        )
        if worked is None or running is None:
            argument.lacks(
                "token counters and running requests",
                "a hang is work without progress",
                command_live(case, "--window 60s"),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        if worked:
            argument.say(Stance.AGAINST, "tokens were computed in the window: steps advance", source=self._source(case))
            return argument.conclude(Verdict.REFUTED)
        held = min(running.values) + (min(waiting.values) if waiting is not None else 0)
        if held == 0:
            argument.say(Stance.AGAINST, "no work was present at some scrape, and none was done", source=running.source)
            return argument.conclude(Verdict.REFUTED)
        length = case.signals.length_seconds
        argument.say(
            Stance.FOR,
            f"at least {held:.0f} requests were inside at every scrape, and no token was computed"
            + (f" for {seconds(length)}" if length else ""),
            value=held,
            unit="requests",
            source=running.source,
            samples=len(running.values),
        )
        say_stacks(case, argument)
        if min(running.values) > 0 and length is not None and length >= case.policy.hung_seconds:
            if length >= case.policy.first_step_seconds or not self._not_begun(case, argument):
                return argument.conclude(Verdict.SUPPORTED)
            argument.lacks(
                "the stacks of the engine's threads",
                "kernels or a grammar that are compiled for a first request, and a loop that hangs, look the same",
                "py-spy dump --pid PID_OF_ENGINE; nvidia-smi dmon -s u -c 5",
            )
            return argument.conclude(Verdict.UNDETERMINED)
        if min(running.values) == 0:
            argument.lacks(
                "the stacks of the engine's threads",
                "with nothing running, a loop that hangs and a head of line that cannot be admitted look the same",
                f"curl -s {case.address}/metrics | grep requests_waiting   # then py-spy dump --pid PID",
            )
        else:
            argument.lacks(
                f"a window of at least {case.policy.hung_seconds:.0f} s",
                "one very long step looks the same for a while",
                command_live(case, "--window 60s"),
            )
        return argument.conclude(Verdict.UNDETERMINED)

    def _not_begun(self, case: Case, argument: Argument) -> bool:
        """Whether the requests inside hold no blocks: their first step has not been made."""
        pool = occupancy(case.signals)
        if pool is None or pool.active_peak > 0:
            return False
        argument.say(
            Stance.CONTEXT,
            "the requests inside hold no blocks, as far as the figure is printed: their first step has not been made",
            value=0,
            source=pool.source,
            samples=len(pool.series),
        )
        return True

    def _source(self, case: Case) -> str:
        counter = case.signals.counters.get("tokens_decode")
        return counter.source if counter is not None else ""
