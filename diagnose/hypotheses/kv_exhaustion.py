from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_census, command_for, command_live
from diagnose.hypotheses.pool import Occupancy, bucket_text, occupancy
from diagnose.units import percent
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class KvExhaustion(Hypothesis):
    """Live sequences hold nearly all KV blocks, and others wait or are preempted for them.

    Symptom: requests queue although sequence slots are free; streams pause for seconds; throughput falls as load rises.
    Mechanism: every token of a live sequence needs a slot in a block. With no free or reclaimable block left a decode can
    only go on by preempting another sequence, whose work is then computed again.
    Refuted when: active blocks stay well below the total, nothing waits for blocks and nothing was preempted.
    Supported when: active blocks come near the total together with preemptions, failed allocations or waits for blocks.
    Proves nothing: a pool gauge at 98 % when it counts reclaimable blocks; device memory at 98 %.
    Measure next: the three disjoint buckets, preemptions, and what waiting requests wait for.
    Fix and its trade: fewer concurrent sequences (queueing moves to the front), shorter outputs, KV quantisation, more memory.
    """

    name = "kv_exhaustion"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        signals, policy = case.signals, case.policy
        pool = occupancy(signals)
        if pool is None:
            argument.lacks(
                "the block buckets: active, reclaimable, free, and whether free includes reclaimable",
                "a usage figure that may count reusable blocks cannot show exhaustion",
                command_census(case),
            )
        else:
            near = pool.active_peak / pool.total >= policy.pool_exhausted
            argument.say(
                Stance.FOR if near else Stance.AGAINST,
                f"active blocks peaked at {percent(pool.active_peak / pool.total)} of the pool; now {bucket_text(pool)}",
                value=pool.active_peak / pool.total,
                unit="share",
                source=pool.source,
                samples=len(pool.series),
            )
        pressure = self._pressure(case, argument, pool)
        excess = case.excess()
        part = excess.share("preempted", "recompute") if excess is not None else None
        if pool is None or pressure is None:
            return argument.conclude(Verdict.UNDETERMINED, part)
        active = pool.active_peak / pool.total
        if active >= policy.pool_exhausted and pressure:
            return argument.conclude(Verdict.SUPPORTED, part)
        if active < policy.pool_well_below and not pressure:
            return argument.conclude(Verdict.REFUTED, part)
        if active >= policy.pool_exhausted:
            argument.lacks(
                "preemptions, failed allocations or waits for blocks over a longer window",
                "a full pool on which nobody waits is a well used pool",
                command_live(case),
            )
        else:
            argument.lacks(
                "the buckets at a shorter interval",
                "something waited for blocks although no sample shows the pool near full",
                command_live(case, "--window 60s --interval 200ms"),
            )
        return argument.conclude(Verdict.UNDETERMINED, part)

    def _pressure(self, case: Case, argument: Argument, pool: Occupancy | None) -> bool | None:
        """Whether anything was denied a block; None when no figure that could tell is known."""
        signals = case.signals
        preemptions, waits, swapped = (
            signals.delta("preemptions"),
            signals.peak("waiting_blocks"),
            max(signals.peak("swapped") or 0.0, signals.peak("paused") or 0.0),
        )
        near = pool is not None and pool.active_peak / pool.total >= case.policy.pool_exhausted
        held_back = self._held_back(case, argument, pool) if pool is not None and near and waits is None else None
        if preemptions is None and waits is None and held_back is None and not swapped:
            argument.lacks(
                "preemptions and requests waiting for blocks",
                "exhaustion is a denial, not a level",
                command_for(case, "preemptions", command_live(case)),
            )
            return None
        if preemptions is not None:
            argument.say(
                Stance.FOR
                if preemptions > 0
                else Stance.CONTEXT
                if signals.counters["preemptions"].late
                else Stance.AGAINST,
                f"{preemptions:,.0f} preemptions in the window"
                if preemptions
                else "nothing was preempted in the window",
                value=preemptions,
                unit="preemptions",
                source=signals.counters["preemptions"].source,
            )
        if waits is not None:
            argument.say(
                Stance.FOR if waits > 0 else Stance.AGAINST,
                f"at most {waits:,.0f} requests waited for blocks" if waits else "nothing waited for blocks",
                value=waits,
                unit="requests",
                source=signals.gauges["waiting_blocks"].source,
            )
        if swapped:
            argument.say(
                Stance.FOR,
                f"up to {swapped:,.0f} requests were swapped out or paused for want of blocks",
                value=swapped,
                unit="requests",
                source=next(signals.gauges[name].source for name in ("swapped", "paused") if signals.peak(name)),
            )
        return bool(preemptions) or bool(waits) or bool(held_back) or bool(swapped)

    def _held_back(self, case: Case, argument: Argument, pool: Occupancy) -> float | None:
        """Requests that waited beside a full pool while fewer ran than may, or than ran before: the slots were not short.

        A victim's blocks are free again: the pool then reads somewhat below full.
        """
        signals = case.signals
        waiting = signals.gauges.get("waiting_capacity") or signals.gauges.get("waiting")
        running = signals.gauges.get("running")
        if waiting is None or running is None:
            return None
        most = signals.last("max_sequences") or running.peak
        full = case.policy.pool_well_below * pool.total
        samples = zip(waiting.values, running.values, pool.series, strict=False)
        held = max((w for w, r, active in samples if r < most and active >= full), default=0.0)
        if held:
            argument.say(
                Stance.FOR,
                f"up to {held:,.0f} requests waited while fewer than {most:,.0f} ran: it was not for a sequence slot",
                value=held,
                unit="requests",
                source=waiting.source,
                samples=len(waiting.values),
            )
        return held
