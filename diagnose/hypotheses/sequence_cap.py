from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_for, command_live
from diagnose.hypotheses.pool import occupancy
from diagnose.load import admitted
from diagnose.units import percent
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class SequenceCap(Hypothesis):
    """Every sequence slot is taken while the KV pool has room: the configured cap is what requests wait for.

    Symptom: requests queue; running is flat at one number; the pool is far from full.
    Mechanism: the engine runs at most max-sequences requests at a time, whatever memory would allow.
    Refuted when: nothing waits, or running requests stay under the cap.
    Supported when: running sits at the cap, requests wait for a slot, and active blocks are well below the total. Where no
    reason of a wait is told: the cap is reached at most of the samples at which requests wait. Without the configured cap:
    whenever requests wait the same number runs, although requests are started, and half of the pool is free.
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
            if len(signals.gauges["waiting"].values) >= case.policy.min_load_lines:
                return argument.conclude(Verdict.REFUTED)
            argument.lacks("a second scrape", "one scrape is a moment", command_live(case))
            return argument.conclude(Verdict.UNDETERMINED)
        if cap is None and self._sits_flat(case, argument):
            return argument.conclude(Verdict.SUPPORTED)
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
        roomy = self._pool_is_roomy(case, argument)
        if roomy is None:
            argument.lacks("the block buckets", "a full pool would bind first", command_live(case))
            return argument.conclude(Verdict.UNDETERMINED)
        if not roomy or slots == 0:
            return argument.conclude(Verdict.REFUTED)
        if slots is None and not self._sits_at(cap, case, argument):
            argument.lacks(
                "waiting requests by reason",
                "the cap was reached, but requests waited below it as well: something else may hold them up",
                command_for(case, "limits", command_live(case)),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        if len(signals.gauges["running"].values) < case.policy.min_load_lines:
            argument.lacks("a second sample", "one sample at the cap is a moment", command_live(case))
            return argument.conclude(Verdict.UNDETERMINED)
        return argument.conclude(Verdict.SUPPORTED)

    def _pool_is_roomy(self, case: Case, argument: Argument) -> bool | None:
        """Whether blocks cannot be what binds; None where their buckets are not known."""
        pool = occupancy(case.signals)
        if pool is None:
            return None
        share = pool.active_peak / pool.total
        roomy = share < case.policy.pool_well_below
        argument.say(
            Stance.FOR if roomy else Stance.AGAINST,
            f"active blocks peaked at {percent(share)} of the pool",
            value=share,
            unit="share",
            source=pool.source,
        )
        return roomy

    def _sits_at(self, cap: float, case: Case, argument: Argument) -> bool:
        """Whether the cap was reached at most of the samples at which others waited. For pages that tell no reason of a wait."""
        signals = case.signals
        ran, waited = signals.gauges["running"], signals.gauges["waiting"]
        busy = [runs for runs, waits in zip(ran.values, waited.values, strict=False) if waits > 0]
        if not busy:
            return True  # samples of different times: the peaks are all there is
        full = sum(runs >= cap for runs in busy) / len(busy)
        sits = full >= case.policy.dominant_share
        argument.say(
            Stance.FOR if sits else Stance.AGAINST,
            f"the cap was reached at {percent(full)} of the samples at which requests waited",
            value=full,
            unit="share",
            source=ran.source,
            samples=len(busy),
        )
        return sits

    def _sits_flat(self, case: Case, argument: Argument) -> bool:
        """Whether a limit that no line states shows itself. One request at a time is left open: its own size may be why."""
        busy = [point for point in case.signals.load if point.waiting and point.running is not None]
        runs = {running for point in busy if (running := point.running) is not None}
        if len(busy) < case.policy.min_flat_lines or len(runs) != 1 or max(runs) <= 1:
            return False
        moves, pool = admitted(busy), occupancy(case.signals)
        roomy = pool is not None and pool.active_peak / pool.total < case.policy.pool_low
        number = max(runs)
        argument.say(
            Stance.FOR if moves and roomy else Stance.CONTEXT,
            f"whenever requests waited exactly {number:.0f} ran"
            + (", each that ended was replaced at once" if moves else "; none is known to have been started"),
            value=number,
            unit="requests",
            source=case.signals.gauges["running"].source,
            samples=len(busy),
        )
        if roomy and pool is not None:
            argument.say(
                Stance.FOR,
                f"active blocks peaked at {percent(pool.active_peak / pool.total)} of the pool: it was not for blocks",
                value=pool.active_peak / pool.total,
                unit="share",
                source=pool.source,
            )
        return bool(moves) and roomy
