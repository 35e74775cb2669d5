"""Figures that cannot all be true: each contradiction is said, so that nobody reasons from a figure that means something else."""

from collections.abc import Iterator

from diagnose.signals import Signals

_STILL_LINES = 3


def implausible(signals: Signals) -> list[str]:
    """For the report's warnings."""
    return [
        *_above_the_cap(signals),
        *_still_pool(signals),
        *_moving_average(signals),
        *_more_found_than_asked(signals),
        *_more_begun_than_finished(signals),
    ]


def _above_the_cap(signals: Signals) -> Iterator[str]:
    running, cap = signals.gauges.get("running"), signals.gauges.get("max_sequences")
    if running is None or cap is None or signals.num_replicas not in (None, 1) or running.peak <= cap.last:
        return
    yield (
        f"{running.peak:.0f} requests run by {running.source}, and at most {cap.last:.0f} may by {cap.source}: the figure counts "
        "a layer above the scheduler, several engines, or requests whose end nobody told; a queue can hide in it"
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
    hits, asked = signals.delta("prefix_hit_tokens"), signals.delta("prefix_query_tokens")
    if hits is not None and asked is not None and hits > asked > 0:
        yield (
            f"{hits:,.0f} prompt tokens were found in the cache by {signals.counters['prefix_hit_tokens'].source}, and only "
            f"{asked:,.0f} looked up: one of them counts preempted requests again, and no hit rate is made of the two"
        )


def _more_begun_than_finished(signals: Signals) -> Iterator[str]:
    """Requests that were running at the window's ends differ between the two, and no more."""
    first, finished = signals.histograms.get("time_to_first_token"), signals.delta("requests_finished")
    if first is None or not finished or signals.num_scrapes < 2:
        return
    inside = (signals.peak("running") or 0.0) + (signals.peak("waiting") or 0.0)
    if first.count > _MANY_MORE * finished and first.count - finished > inside:
        yield (
            f"{first.count:,.0f} first tokens and {finished:,.0f} finished requests: aborted requests, or preempted ones that "
            "are counted again; the difference is no failure rate, and preemptions and aborts tell which of the two it is"
        )


_MANY_MORE = 1.25


def _moving_average(signals: Signals) -> Iterator[str]:
    hits = signals.gauges.get("prefix_hit_rate")
    if hits is not None and len(hits.values) >= _STILL_LINES and hits.last > hits.values[0]:
        yield (
            f"the logged prefix hit rate climbs from {100 * hits.values[0]:.1f} % to {100 * hits.last:.1f} %: it is a mean over "
            "about the last 1,000 requests; what this window found, only the counters tell"
        )
