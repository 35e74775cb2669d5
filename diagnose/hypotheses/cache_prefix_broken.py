from diagnose.case import Case, Window
from diagnose.hypotheses.base import Hypothesis, command_live
from diagnose.units import percent
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class CachePrefixBroken(Hypothesis):
    """Prompts that should share a prefix do not: the cache is asked and finds nothing, without having lost anything.

    Symptom: the hit rate fell, time to first token rose, and nothing was evicted.
    Mechanism: something near the start of the prompt changes per request (a timestamp, an id, another order of tools), or the
    identity changed (tenant salt, adapter, template, restart).
    Refuted when: the hit rate holds against the baseline, the cache never was of use here, or much of what was evicted is asked
    for again (then the cache is too small).
    Supported when: it fell to less than half of the baseline's while prompts are as long and nothing was evicted, or nothing
    that anybody asks for again; or the engine's log says that it cannot reuse a prefix of this model (sliding windows,
    recurrent states).
    Proves nothing: a low hit rate; a rising one (absolute uncached tokens count).
    Measure next: the first tokens of prompts before and after; evictions in between.
    Fix and its trade: keep the shared part first and byte-identical; per-request data last.
    """

    name = "cache_prefix_broken"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        if case.signals.info.get("prefix_cache") == "false":
            argument.say(Stance.CONTEXT, "the prefix cache is off", source="engine_info")
            return argument.conclude(Verdict.NOT_APPLICABLE)
        told = [event for event in case.events if event.kind == "full_reprocess"]
        if told:
            argument.say(
                Stance.FOR,
                f"the engine says {len(told):,} times that it computes a whole prompt again because this model's memory cannot "
                f"be cut at the end of a shared prefix: {told[0].detail}",
                value=len(told),
                unit="prompts",
                source="log",
            )
            return argument.conclude(Verdict.SUPPORTED)
        minimum = case.policy.min_prefix_tokens
        now, before = (
            _hit_rate(case.incident, minimum),
            None if case.baseline is None else _hit_rate(case.baseline, minimum),
        )
        if now is None:
            asked = case.signals.delta("prefix_query_tokens")
            if asked is not None and asked < minimum:
                argument.say(Stance.AGAINST, f"fewer than {minimum} prompt tokens were looked up in the window")
                return argument.conclude(Verdict.REFUTED)
            self._external(case, argument)
            argument.lacks(
                "prompt tokens looked up and found", "a broken prefix is asked for and not found", command_live(case)
            )
            return argument.conclude(Verdict.UNDETERMINED)
        if before is None:
            argument.say(
                Stance.CONTEXT,
                f"{percent(now)} of the prompt tokens were found",
                value=now,
                unit="share",
                source=case.signals.counters["prefix_hit_tokens"].source,
            )
            argument.lacks(
                "a baseline with as many prompts",
                "whether prompts should share a prefix, only an earlier hit rate or their author can say",
                f"stallscope record {case.address} --for 60s -o baseline.rec   # in a good hour",
            )
            return argument.conclude(Verdict.UNDETERMINED)
        return self._against_baseline(case, argument, now, before)

    def _against_baseline(self, case: Case, argument: Argument, now: float, before: float) -> Judgement:
        source = case.signals.counters["prefix_hit_tokens"].source
        useful, fell = before >= case.policy.cache_was_useful, now < case.policy.cache_broke_ratio * before
        argument.say(
            Stance.FOR if useful and fell else Stance.AGAINST,
            f"{percent(now)} of the prompt tokens were found, {percent(before)} in the baseline",
            value=now,
            unit="share",
            compared_with=f"baseline {percent(before)}",
            source=source,
        )
        if not useful or not fell:
            return argument.conclude(Verdict.REFUTED)
        return self._evicted(case, argument)

    def _evicted(self, case: Case, argument: Argument) -> Judgement:
        """A prefix that was lost is no broken one."""
        evictions, ghosts = case.signals.delta("evictions"), case.signals.delta("ghost_hits")
        if evictions is None:
            argument.lacks(
                "evictions", "content that was lost and content that differs look the same", command_live(case)
            )
            return argument.conclude(Verdict.UNDETERMINED)
        # Prompts that share nothing fill the cache, and it evicts what nobody will ask for.
        unmissed = evictions == 0 or (ghosts is not None and ghosts < case.policy.thrash_negligible_share * evictions)
        argument.say(
            Stance.FOR if unmissed else Stance.AGAINST,
            f"{evictions:.0f} cached blocks were evicted in the window"
            + (f", {ghosts:.0f} were asked for again" if evictions and ghosts is not None else ""),
            value=evictions,
            unit="blocks",
            source=case.signals.counters["evictions"].source,
        )
        if unmissed:
            return argument.conclude(Verdict.SUPPORTED)
        if ghosts is not None and ghosts >= case.policy.thrash_ghost_share * evictions:
            return argument.conclude(Verdict.REFUTED)
        argument.lacks(
            "whether what was evicted is asked for again",
            "then the cache is too small, and no prefix is broken",
            command_live(case),
        )
        return argument.conclude(Verdict.UNDETERMINED)

    def _external(self, case: Case, argument: Argument) -> None:
        """A store outside of the engine."""
        asked, found, stored = (case.signals.delta(f"external_{what}_tokens") for what in ("query", "hit", "stored"))
        if not asked or found is None:
            return
        argument.say(
            Stance.CONTEXT,
            f"a store beside the engine was asked for {asked:,.0f} prompt tokens and had {found:,.0f} of them"
            + (f"; {stored:,.0f} were stored" if stored else ""),
            value=found / asked,
            unit="share",
            source=case.signals.counters["external_query_tokens"].source,
        )
        argument.lacks(
            "the token ids of two prompts that should share a prefix, and PYTHONHASHSEED of every process",
            "a prompt that differs (a time in its template) and keys that differ by process look the same to a store",
            'curl -s http://HOST:PORT/tokenize -d \'{"prompt": "..."}\'   # of both prompts',
        )


def _hit_rate(window: Window, minimum: int) -> float | None:
    queries, hits = window.signals.delta("prefix_query_tokens"), window.signals.delta("prefix_hit_tokens")
    if queries is None or hits is None or queries < minimum or hits > queries:
        return None
    return hits / queries
