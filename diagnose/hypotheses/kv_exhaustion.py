from collections.abc import Sequence

from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_census, command_for, command_live
from diagnose.hypotheses.pool import Occupancy, bucket_text, occupancy
from diagnose.load import pool_growth
from diagnose.units import percent, seconds
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class KvExhaustion(Hypothesis):
    """Live sequences hold nearly all KV blocks, and others wait or are preempted for them.

    Symptom: requests queue although sequence slots are free; streams pause for seconds; throughput falls as load rises.
    Mechanism: every token of a live sequence needs a slot in a block. With no free or reclaimable block left a decode can
    only go on by preempting another sequence, whose work is then computed again.
    Refuted when: active blocks stay well below the total, nothing waits for blocks and nothing was preempted; without figures
    of who waits for blocks, when less than half of the pool is active at every sample at which requests wait.
    Supported when: active blocks come near the total together with preemptions, failed allocations or waits for blocks; or
    the engine's log says that it preempted for want of blocks, or found no room even for a smaller part of a batch.
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
            self._forecast(case, argument, pool)
        denied = self._denied(case, argument)
        pressure = self._pressure(case, argument, pool)
        excess = case.excess()
        part = excess.share("preempted", "recompute") if excess is not None else None
        if denied and (pool is None or pool.active_peak / pool.total >= policy.pool_well_below):
            return argument.conclude(Verdict.SUPPORTED, part)
        if pool is None:
            return argument.conclude(Verdict.UNDETERMINED, part)
        active = pool.active_peak / pool.total
        if pressure is None:
            never_short = active < policy.pool_low and self._waits_beside_room(case, argument, pool)
            return argument.conclude(Verdict.REFUTED if never_short else Verdict.UNDETERMINED, part)
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

    def _denied(self, case: Case, argument: Argument) -> bool:
        """Whether a log tells of a denial: samples some seconds apart can miss the moment at which the pool was full."""
        preempted = [event for event in case.events if event.kind == "preempted"]
        refused = [event for event in case.events if event.kind == "no_kv_space"]
        if preempted:
            argument.say(
                Stance.FOR,
                f"the log tells of requests preempted for want of blocks, the first time: {preempted[0].detail}",
                value=len(preempted),
                unit="events",
                source="log",
            )
        if refused:
            argument.say(
                Stance.FOR,
                f"the log tells {len(refused)} times that no room was found for a batch, the first time: {refused[0].detail}",
                value=len(refused),
                unit="events",
                source="log",
            )
        # One refusal may be met by the smaller part that is tried next.
        return bool(preempted) or len(refused) > 1

    def _forecast(self, case: Case, argument: Argument, pool: Occupancy) -> None:
        """When the pool will be full, where a log shows it only growing: not full, and worth knowing."""
        growth = pool_growth(case.signals.load)
        if growth is None:
            return
        left = (1 - pool.active / pool.total) / growth
        if left <= case.policy.forecast_seconds:
            argument.say(
                Stance.FOR,
                f"the pool fills by {100 * growth * 10:.1f} points in 10 s: full in about {seconds(left)} at this pace",
                value=left,
                unit="s",
                source=pool.source,
                samples=len(pool.series),
            )

    def _waits_beside_room(self, case: Case, argument: Argument, pool: Occupancy) -> bool:
        """Whether requests waited while most of the pool was free, or none waited at several samples."""
        waiting = case.signals.gauges.get("waiting")
        if waiting is None:
            return False
        if waiting.peak > 0:
            argument.say(
                Stance.AGAINST,
                f"up to {waiting.peak:,.0f} requests waited while {percent(1 - pool.active_peak / pool.total)} of the pool or "
                "more was free: it was not for blocks",
                value=waiting.peak,
                unit="requests",
                source=waiting.source,
                samples=len(waiting.values),
            )
            return True
        return len(waiting.values) >= case.policy.min_load_lines

    def _held_back(self, case: Case, argument: Argument, pool: Occupancy) -> float | None:
        """Requests that waited beside a full pool while fewer ran than may, or than ran before: the slots were not short.

        A victim's blocks are free again: the pool then reads somewhat below full.
        """
        signals = case.signals
        waiting = signals.gauges.get("waiting_capacity") or signals.gauges.get("waiting")
        running = signals.gauges.get("running")
        if waiting is None or running is None:
            return None
        cap = signals.last("max_sequences")
        most = cap or running.peak
        full = case.policy.pool_well_below * pool.total
        samples = list(zip(waiting.values, running.values, pool.series, strict=False))
        held = max((w for w, r, active in samples if r < most and active >= full), default=0.0)
        if not held and (cap is None or running.peak < cap):
            held = self._pinned(case, argument, samples, pool)
            if held:
                return held
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

    def _pinned(
        self, case: Case, argument: Argument, samples: Sequence[tuple[float, float, float]], pool: Occupancy
    ) -> float:
        """Requests that wait at every sample beside a pool that has no room at any of them: whatever else binds, blocks do."""
        least = min(active / pool.total for _, _, active in samples)
        waits = min(waiting for waiting, _, _ in samples)
        if len(samples) < case.policy.min_flat_lines or least < case.policy.pool_exhausted or not waits:
            return 0.0
        argument.say(
            Stance.FOR,
            f"at least {waits:,.0f} requests waited at every one of {len(samples)} samples, and {percent(least)} or more of the "
            "pool was active at each",
            value=least,
            unit="share",
            source=pool.source,
            samples=len(samples),
        )
        return waits
