from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_for, command_live
from diagnose.hypotheses.pool import occupancy
from diagnose.units import percent
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class SequenceCap(Hypothesis):
    """Every sequence slot is taken while the KV pool has room: the configured cap is what requests wait for.

    Symptom: requests queue; running is flat at one number; the pool is far from full.
    Mechanism: the engine runs at most max-sequences requests at a time, whatever memory would allow.
    Refuted when: nothing waits, or running requests stay under the cap.
    Supported when: running sits at the cap, requests wait for a slot, and active blocks are well below the total.
    Proves nothing: a high number of running requests.
    Measure next: waiting requests by reason; active blocks at the cap.
    Fix and its trade: a higher cap admits more at once (each stream slows down, KV fills); more replicas otherwise.
    """

    name = "sequence_cap"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        signals = case.signals
        waiting, slots = signals.peak("waiting"), signals.peak("waiting_sequences")
        running, cap = signals.peak("running"), signals.last("max_sequences")
        if waiting == 0:
            argument.say(
                Stance.AGAINST, "no request waited at any scrape", value=0, source=signals.gauges["waiting"].source
            )
            return argument.conclude(Verdict.REFUTED)
        if running is None or cap is None or waiting is None:
            argument.lacks(
                "running and waiting requests, and the configured cap",
                "a cap binds when running sits at it while others wait",
                command_for(case, "limits", command_live(case)),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        at_cap = running >= cap
        argument.say(
            Stance.FOR if at_cap else Stance.AGAINST,
            f"running peaked at {running:.0f} of {cap:.0f} sequences",
            value=running,
            unit="requests",
            source=signals.gauges["running"].source,
            samples=len(signals.gauges["running"].values),
        )
        if not at_cap:
            return argument.conclude(Verdict.REFUTED)
        if slots is not None:
            argument.say(
                Stance.FOR if slots else Stance.AGAINST,
                f"up to {slots:.0f} requests waited for a sequence slot",
                value=slots,
                unit="requests",
                source=signals.gauges["waiting_sequences"].source,
            )
        pool = occupancy(signals)
        if pool is None:
            argument.lacks("the block buckets", "a full pool would bind first", command_live(case))
            return argument.conclude(Verdict.UNDETERMINED)
        share = pool.active_peak / pool.total
        roomy = share < case.policy.pool_well_below
        argument.say(
            Stance.FOR if roomy else Stance.AGAINST,
            f"active blocks peaked at {percent(share)} of the pool",
            value=share,
            unit="share",
            source=pool.source,
        )
        if not roomy or slots == 0:
            return argument.conclude(Verdict.REFUTED)
        return argument.conclude(Verdict.SUPPORTED)
