from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_for, command_live
from diagnose.hypotheses.pool import occupancy
from diagnose.units import percent
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class PreemptionStorm(Hypothesis):
    """Sequences are preempted again and again, and much of the work is done twice.

    Symptom: streams pause for seconds; throughput falls while the server is busy; latency is bimodal.
    Mechanism: more sequences were admitted than their growth has blocks for. A decode without a block takes another's; the victim
    computes its whole context again, and takes blocks from the next one.
    Refuted when: nothing was preempted in the window.
    Supported when: preemptions are frequent for the requests that finish, or much of the computed tokens is recompute; where
    neither is counted, when a log tells again and again of preemptions, in all as many as requests ever ran at once.
    Proves nothing: a full pool; one preemption.
    Measure next: preemptions per finished request, recomputed tokens, active blocks at admission.
    Fix and its trade: fewer concurrent sequences or a reserve at admission (lower peak throughput), shorter outputs, more memory.
    """

    name = "preemption_storm"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        signals, policy = case.signals, case.policy
        preemptions = signals.delta("preemptions")
        if preemptions is None:
            argument.lacks("preemptions in the window", "a storm is made of them", command_live(case))
            return argument.conclude(Verdict.UNDETERMINED)
        source = signals.counters["preemptions"].source
        if preemptions == 0 and self._may_lag(case):
            argument.say(Stance.CONTEXT, "no preemption was booked yet", value=0, source=source)
            argument.lacks(
                "preemptions as they happen",
                "requests wait beside a full pool, and this counter lags",
                command_for(case, "preemptions", command_live(case, "--window 60s")),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        if preemptions == 0:
            argument.say(Stance.AGAINST, "nothing was preempted in the window", value=0, source=source)
            return argument.conclude(Verdict.REFUTED)
        excess = case.excess()
        part = excess.share("preempted", "recompute") if excess is not None else None
        finished, prefill = signals.delta("requests_finished"), signals.delta("tokens_prefill")
        recomputed = signals.delta("tokens_recompute")
        argument.say(
            Stance.FOR,
            f"{preemptions:.0f} preemptions"
            + (f" against {finished:.0f} finished requests" if finished is not None else ""),
            value=preemptions,
            unit="preemptions",
            source=source,
        )
        frequent = finished is not None and preemptions >= policy.storm_preemptions_per_request * finished
        share = None
        if recomputed is not None and prefill is not None and recomputed + prefill > 0:
            share = recomputed / (recomputed + prefill)
            argument.say(
                Stance.FOR if share >= policy.storm_recompute_share else Stance.CONTEXT if frequent else Stance.AGAINST,
                f"{percent(share)} of the computed prompt tokens are recompute",
                value=share,
                unit="share",
                source=signals.counters["tokens_recompute"].source,
            )
        if frequent or (share is not None and share >= policy.storm_recompute_share):
            return argument.conclude(Verdict.SUPPORTED, part)
        if finished is None and self._in_turn(case, argument):
            return argument.conclude(Verdict.SUPPORTED, part)
        if finished is None or share is None:
            argument.lacks(
                "finished requests and recomputed tokens", "a few preemptions are no storm", command_live(case)
            )
            return argument.conclude(Verdict.UNDETERMINED, part)
        return argument.conclude(Verdict.REFUTED, part)

    def _in_turn(self, case: Case, argument: Argument) -> bool:
        """Where nothing counts finished requests: whether, again and again, as many were preempted as ever ran at once."""
        events = [event for event in case.events if event.kind == "preempted"]
        counter, most = case.signals.counters["preemptions"], case.signals.peak("running")
        if len(events) < 2 or not most:
            return False
        often = counter.delta >= most
        argument.say(
            Stance.FOR if often else Stance.CONTEXT,
            f"{counter.delta:,.0f} were preempted at {len(events):,} times, and at most {most:,.0f} ran at once",
            value=counter.delta / most,
            unit="ratio",
            source=counter.source,
            samples=len(events),
        )
        return often

    def _may_lag(self, case: Case) -> bool:
        """Whether a victim may exist that the counter does not know yet: it is late, and requests wait beside a full pool."""
        pool = occupancy(case.signals)
        full = pool is not None and pool.active_peak / pool.total >= case.policy.pool_exhausted
        return case.signals.counters["preemptions"].late and full and bool(case.signals.peak("waiting"))
