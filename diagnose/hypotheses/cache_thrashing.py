from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_for, command_live
from diagnose.hypotheses.pool import occupancy
from diagnose.units import percent, seconds
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class CacheThrashing(Hypothesis):
    """Cached prefixes are evicted shortly before they are asked for again, and computed again each time.

    Symptom: time to first token rises and scatters under traffic that repeats itself; the hit rate is near nothing, and more
    traffic of the same kind lowers it further.
    Mechanism: what is in use and what is used again and again needs more blocks than the pool has. Under LRU the next one to
    be asked for is then often the one that was just given up: each miss evicts what the next request needs.
    Refuted when: nothing was evicted, or hardly anything that was evicted is asked for again.
    Supported when: a good part of the evicted blocks is asked for again soon (ghost hits) and the working set exceeds the pool.
    Proves nothing: a low hit rate (new prompts miss, too); evictions alone (a full cache evicts what nobody wants); device
    memory or pool usage at 98 %.
    Measure next: evictions, ghost hits and the working set over a window of several minutes.
    Fix and its trade: a pool of the working set's size (memory), routing requests with one prefix to one replica (balance),
    fewer tenants at a time (queueing).
    """

    name = "cache_thrashing"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        signals, policy = case.signals, case.policy
        evictions, ghosts = signals.delta("evictions"), signals.delta("ghost_hits")
        if evictions is None:
            argument.lacks(
                "evicted blocks",
                "without evictions nothing thrashes",
                command_for(case, "evictions", command_live(case)),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        if evictions == 0:
            argument.say(
                Stance.AGAINST,
                "nothing was evicted in the window",
                value=0,
                unit="blocks",
                source=signals.counters["evictions"].source,
            )
            return argument.conclude(Verdict.REFUTED)
        if ghosts is None:
            argument.lacks(
                "ghost hits: evicted blocks that are asked for again",
                f"{evictions:,.0f} blocks were evicted; whether anybody missed them is what tells thrashing from turnover",
                command_live(case, "--window 300s") + "   # on an engine that counts them",
            )
            return argument.conclude(Verdict.UNDETERMINED)
        share = ghosts / evictions
        argument.say(
            Stance.FOR if share >= policy.thrash_ghost_share else Stance.AGAINST,
            f"{ghosts:,.0f} blocks were asked for again after their eviction, {evictions:,.0f} were evicted",
            value=share,
            unit="share",
            source=signals.counters["ghost_hits"].source,
        )
        if share < policy.thrash_negligible_share:
            return argument.conclude(Verdict.REFUTED)
        exceeded = self._working_set(case, argument)
        if share < policy.thrash_ghost_share or not exceeded:
            argument.lacks(
                "ghost hits and working set over a longer window",
                "some evicted content is missed; a steady pattern would show as a working set above the pool",
                command_live(case, "--window 300s"),
            )
            return argument.conclude(Verdict.UNDETERMINED)
        self._ages(case, argument)
        self._costs(case, argument, ghosts)
        return argument.conclude(Verdict.SUPPORTED)

    def _working_set(self, case: Case, argument: Argument) -> bool:
        """Whether the working set is known to exceed the pool."""
        blocks, pool = case.signals.last("working_set_blocks"), occupancy(case.signals)
        if blocks is None or pool is None:
            return False
        argument.say(
            Stance.FOR if blocks > pool.total else Stance.AGAINST,
            f"pool {pool.total:,.0f} blocks, working set about {blocks:,.0f}",
            value=blocks,
            unit="blocks",
            compared_with=f"{pool.total:,.0f} blocks",
            source=case.signals.gauges["working_set_blocks"].source,
        )
        return blocks > pool.total

    def _ages(self, case: Case, argument: Argument) -> None:
        residency, ghost_age = (case.signals.histograms.get(name) for name in ("block_residency", "ghost_age"))
        if residency is None or ghost_age is None or residency.mean is None or ghost_age.mean is None:
            return
        argument.say(
            Stance.CONTEXT,
            f"content stayed {seconds(residency.mean)} on average, and was asked for again {seconds(ghost_age.mean)}"
            " after it went",
            value=residency.mean,
            unit="s",
            source=residency.source,
            samples=round(residency.count),
        )

    def _costs(self, case: Case, argument: Argument, ghosts: float) -> None:
        """The three costs of thrashing, as far as they were measured: recompute, host work, scatter of the first token."""
        signals = case.signals
        block_size, computed = signals.number("block_size"), signals.delta("tokens_prefill")
        if block_size and computed:
            redundant = ghosts * block_size
            argument.say(
                Stance.CONTEXT,
                f"redundant recompute: about {redundant:,.0f} prompt tokens,"
                f" {percent(min(1.0, redundant / computed))} of those computed",
                value=redundant,
                unit="tokens",
                source=signals.counters["ghost_hits"].source,
            )
        for name, what in (("schedule", "scheduling and lookup"), ("lock_wait", "wait for the scheduler lock")):
            histogram = signals.histograms.get(name)
            if histogram is not None and histogram.mean is not None:
                argument.say(
                    Stance.CONTEXT,
                    f"host overhead: {what} took {seconds(histogram.mean)} on average, {seconds(histogram.sum)} in the window",
                    value=histogram.mean,
                    unit="s",
                    source=histogram.source,
                    samples=round(histogram.count),
                )
        ttft = signals.histograms.get("time_to_first_token")
        low, high = (None, None) if ttft is None else (ttft.quantile(0.5), ttft.quantile(0.99))
        if ttft is not None and low is not None and high is not None:
            argument.say(
                Stance.CONTEXT,
                f"latency variance: time to first token p50 within {seconds(low.high)}, p99 within {seconds(high.high)}",
                value=high.high,
                unit="s",
                source=ttft.source,
                samples=round(ttft.count),
            )
