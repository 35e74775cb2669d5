"""Figures that cannot all be true: each contradiction is said, so that nobody reasons from a figure that means something else."""

from collections.abc import Iterator

from diagnose.signals import Signals

_STILL_LINES = 3


def implausible(signals: Signals) -> list[str]:
    """For the report's warnings."""
    return [*_above_the_cap(signals), *_still_pool(signals), *_more_found_than_asked(signals)]


def _above_the_cap(signals: Signals) -> Iterator[str]:
    running, cap = signals.gauges.get("running"), signals.gauges.get("max_sequences")
    if running is None or cap is None or signals.num_replicas not in (None, 1) or running.peak <= cap.last:
        return
    yield (
        f"{running.peak:.0f} requests run by {running.source}, and at most {cap.last:.0f} may by {cap.source}: the figure counts "
        "a layer above the scheduler, or several engines; a queue can hide in it"
    )


def _still_pool(signals: Signals) -> Iterator[str]:
    tokens, generated = signals.gauges.get("kv_tokens"), signals.delta("tokens_decode")
    if tokens is None or not generated or len(tokens.values) < _STILL_LINES or not tokens.last:
        return
    if len(set(tokens.values)) == 1 and generated > len(tokens.values):
        yield (
            f"the pool holds {tokens.last:,.0f} tokens at every one of {len(tokens.values)} lines while about {generated:,.0f} "
            "were generated: the figure does not follow the contexts (a part of the cache is held elsewhere); steady usage is "
            "no stall here"
        )


def _more_found_than_asked(signals: Signals) -> Iterator[str]:
    hits = signals.gauges.get("prefix_hit_rate")
    if hits is not None and len(hits.values) >= _STILL_LINES and hits.last > hits.values[0]:
        yield (
            f"the logged prefix hit rate climbs from {100 * hits.values[0]:.1f} % to {100 * hits.last:.1f} %: it is a mean over "
            "about the last 1,000 requests; what this window found, only the counters tell"
        )
