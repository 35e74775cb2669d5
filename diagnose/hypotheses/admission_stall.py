from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_live
from diagnose.hypotheses.pool import occupancy
from diagnose.units import percent
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class AdmissionStall(Hypothesis):
    """Requests wait although hardly anything runs and the pool is free: the head of the line cannot be served.

    Symptom: running 0 or 1, waiting above 0, pool nearly empty, nothing moves; new requests pile up behind.
    Mechanism: the first waiting request needs what will never be there (more blocks than the pool, an adapter or slot, a transfer
    that was stranded), and first come, first served lets nobody pass.
    Refuted when: nothing waits throughout, or running requests fill the server, or the pool is what is short.
    Supported when: requests wait at every scrape, at most one runs, the pool has room, and none was started.
    Proves nothing: a waiting request at one scrape.
    Measure next: what the first waiting request is and what it asked for; waiting requests by reason.
    Fix and its trade: abort the head of the line, reject at admission what can never fit.
    """

    name = "admission_stall"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        signals = case.signals
        waiting, running = signals.gauges.get("waiting"), signals.gauges.get("running")
        if waiting is None or running is None:
            argument.lacks("running and waiting requests", "the stall is waiting beside idleness", command_live(case))
            return argument.conclude(Verdict.UNDETERMINED)
        if min(waiting.values) == 0:
            argument.say(
                Stance.AGAINST, "no request waited at some scrape: the line moves", value=0, source=waiting.source
            )
            return argument.conclude(Verdict.REFUTED)
        argument.say(
            Stance.FOR,
            f"at least {min(waiting.values):.0f} requests waited at every scrape",
            value=min(waiting.values),
            unit="requests",
            source=waiting.source,
            samples=len(waiting.values),
        )
        few = running.peak <= 1
        argument.say(
            Stance.FOR if few else Stance.AGAINST,
            f"at most {running.peak:.0f} ran",
            value=running.peak,
            unit="requests",
            source=running.source,
        )
        started = signals.histograms.get("queue_time")
        if started is not None and started.count:
            argument.say(
                Stance.AGAINST, f"{started.count:.0f} requests were started in the window", value=started.count
            )
        if not few or (started is not None and started.count):
            return argument.conclude(Verdict.REFUTED)
        pool = occupancy(signals)
        if pool is None or started is None:
            argument.lacks(
                "the block buckets and queue times",
                "a full pool or a slow queue would explain the wait",
                command_live(case),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        share = pool.active_peak / pool.total
        argument.say(
            Stance.FOR if share < case.policy.pool_well_below else Stance.AGAINST,
            f"active blocks peaked at {percent(share)} of the pool",
            value=share,
            unit="share",
            source=pool.source,
        )
        if share >= case.policy.pool_well_below:
            return argument.conclude(Verdict.REFUTED)
        return argument.conclude(Verdict.SUPPORTED)
