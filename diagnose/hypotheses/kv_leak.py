import re

from diagnose.case import Case
from diagnose.hypotheses.base import Hypothesis, command_census, command_live
from diagnose.hypotheses.pool import amount_text, occupancy
from diagnose.verdict import Argument, Judgement, Stance, Verdict


class KvLeak(Hypothesis):
    """Blocks are held with no owner: occupancy does not return when the server is idle.

    Symptom: active blocks creep up over hours; the pool is short under a load it used to carry.
    Mechanism: an aborted or failed request, or a stranded transfer, kept its references.
    Refuted when: with no request inside, no block is active, or no more than an engine keeps for itself (vLLM's null block).
    Supported when: with no request inside at consecutive scrapes, blocks stay active; or the engine's own balance at idle
    lacks some.
    Proves nothing: occupancy that grows while requests generate (that is what KV does); cached blocks at idle.
    Measure next: the block buckets at an idle moment; blocks held per live request.
    Fix and its trade: restart returns the blocks (running requests are lost); then the path that keeps them.
    """

    name = "kv_leak"
    causes_latency = False

    def judge(self, case: Case, argument: Argument) -> Judgement:
        signals = case.signals
        found = self._own_check(case, argument)
        if found is not None:
            return found
        running, waiting = (signals.gauges.get(name) for name in ("running", "waiting"))
        pool = occupancy(signals)
        if pool is None or running is None:
            argument.lacks(
                "active blocks and running requests", "a leak is blocks without requests", command_live(case)
            )
            return argument.conclude(Verdict.UNDETERMINED)
        waits = waiting.values if waiting is not None else (0.0,) * len(running.values)
        idle = [a for a, r, w in zip(pool.series, running.values, waits, strict=False) if r == 0 and w == 0]
        if not idle:
            if (owned := _owned_share(case)) == 1.0:
                argument.say(
                    Stance.AGAINST,
                    "in every plain decode step the active blocks fit the contexts of the running sequences",
                    value=owned,
                    unit="share",
                    source=signals.steps_source,
                    samples=len(case.analysis.decode_steps),
                )
                return argument.conclude(Verdict.REFUTED)
            argument.lacks(
                "the block buckets while no request is inside",
                "under load every block has an owner; a leak shows when the owners are gone",
                f"{command_census(case)}   # at an idle moment",
            )
            return argument.conclude(Verdict.UNDETERMINED)
        least = case.policy.leak_least_share * pool.total
        held = [blocks for blocks in idle if blocks > least]
        argument.say(
            Stance.FOR if held else Stance.AGAINST,
            f"{amount_text(max(idle), pool)} were active while no request was inside",
            value=max(idle),
            unit=pool.unit,
            source=pool.source,
            samples=len(idle),
        )
        if not held:
            return argument.conclude(Verdict.REFUTED)
        if len(held) >= 2 and len(held) == len(idle):
            return argument.conclude(Verdict.SUPPORTED)
        argument.lacks(
            "the buckets at a second idle scrape",
            "a request that ends during a scrape looks the same once",
            command_live(case),
        )
        return argument.conclude(Verdict.UNDETERMINED)

    def _own_check(self, case: Case, argument: Argument) -> Judgement | None:
        """SGLang adds up its pools when it is idle, and stops when they do not balance. The sign tells what went wrong."""
        told = next((event for event in case.events if event.kind == "leak"), None)
        if told is None:
            return None
        argument.say(Stance.FOR, f"the engine's own check at idle failed: {told.detail}", source="log")
        figures = {name: int(number) for name, number in _FIGURE.findall(told.detail)}
        total = figures.get("max_total_num_tokens")
        if total is None or not {"available_size", "evictable_size"} <= figures.keys():
            return argument.conclude(Verdict.SUPPORTED)
        missing = total - sum(figures.get(name, 0) for name in ("available_size", "evictable_size", "protected_size"))
        if missing < 0:
            argument.say(
                Stance.AGAINST,
                f"available and evictable are {-missing:,} tokens more than the pool has: freed twice, not leaked",
                value=missing,
                unit="tokens",
                source="log",
            )
            return argument.conclude(Verdict.REFUTED)
        argument.say(
            Stance.FOR,
            f"{missing:,} of {total:,} tokens ({100 * missing / total:.2g} %) are neither available, nor evictable, nor "
            "protected: the loss is that small, and what stops the server is the check",
            value=missing,
            unit="tokens",
            source="log",
        )
        return argument.conclude(Verdict.SUPPORTED)


_FIGURE = re.compile(r"(max_total_num_tokens|available_size|evictable_size|protected_size)=(\d+)")


def _owned_share(case: Case) -> float | None:
    """Share of the plain decode steps, with nothing else inside, whose active blocks their contexts can fill.

    Each sequence may leave its last block unfilled; shared prefixes only make the need smaller.
    """
    size = case.signals.number("block_size")
    steps = [r for r in case.analysis.decode_steps if r.num_running == r.num_decode_seqs]
    if not size or not steps:
        return None
    owned = [
        r.census.active <= r.decode_context_tokens / size + r.num_decode_seqs
        for r in steps
        if r.census is not None and r.decode_context_tokens is not None
    ]
    return sum(owned) / len(owned) if owned else None
