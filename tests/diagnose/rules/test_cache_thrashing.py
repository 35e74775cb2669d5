"""Each condition of cache_thrashing, from both sides."""

from typing import Any

import pytest

from diagnose.hypotheses.cache_thrashing import CacheThrashing
from diagnose.load import LoadPoint
from diagnose.signals import Signals
from tests.builders import make_signals
from tests.diagnose.rules.alone import events, judged, pool, says

RULE = CacheThrashing()
LONGER = "?ghost"


def evicted(
    count: float | None = 100,
    ghosts: float | None = 20,
    working_set: float | None = 101,
    *,
    info: Any = None,
    histograms: Any = None,
    **counters: float,
) -> Signals:
    """From a pool of a hundred blocks."""
    named = {"evictions": count, "ghost_hits": ghosts, **counters}
    return make_signals(
        counters={name: n for name, n in named.items() if n is not None},
        gauges=pool(40) | ({} if working_set is None else {"working_set_blocks": working_set}),
        info=info or {},
        histograms=histograms,
    )


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (evicted(), "supported +0.2 +101"),
        (evicted(100, 19), f"undetermined -0.19 +101 {LONGER}"),
        (evicted(100, 2), f"undetermined -0.02 +101 {LONGER}"),
        (evicted(100, 1), "refuted -0.01"),
        (evicted(100, 20, 100), f"undetermined +0.2 -100 {LONGER}"),
        (evicted(100, 20, None), f"undetermined +0.2 {LONGER}"),
        (evicted(100, 200), "supported +2 +101"),
        (evicted(0, 20), "refuted -0"),
        (evicted(1, 1), "supported +1 +101"),
        (evicted(100, None), "undetermined ?ghost"),
        (evicted(None, 20), "undetermined ?evicted"),
    ],
)
def test_what_is_evicted_and_asked_for_again(signals, expected):
    assert says(RULE, signals) == expected


def test_a_working_set_needs_a_pool_to_exceed():
    signals = evicted()
    del signals.gauges["blocks_free"]
    assert says(RULE, signals) == f"undetermined +0.2 {LONGER}"


@pytest.mark.parametrize(
    ("recomputed", "size", "expected"),
    [
        (0, "10", "supported +0.4 +101 .400"),
        (200, "10", "supported -20 +0.2 +101 .200"),
        (210, "10", f"undetermined -21 -0.19 +101 {LONGER}"),
        (1000, "10", "refuted -40 -0"),
        (200, None, "supported +0.4 +101"),
        (200, "0", "supported +0.4 +101"),
        (None, "10", "supported +0.4 +101 .400"),
    ],
)
def test_preempted_sequences_that_ask_for_their_own_content_do_not_count(recomputed, size, expected):
    counters = {} if recomputed is None else {"tokens_recompute": recomputed}
    info = {} if size is None else {"block_size": size}
    assert says(RULE, evicted(100, 40, info=info, tokens_prefill=1000, **counters)) == expected


@pytest.mark.parametrize(
    ("size", "computed", "expected", "share"),
    [
        ("10", 800, "supported +0.2 +101 .200", "25 %"),
        ("10", 100, "supported +0.2 +101 .200", "100 %"),
        ("10", 0, "supported +0.2 +101", ""),
        (None, 800, "supported +0.2 +101", ""),
    ],
)
def test_what_is_computed_again_is_told_with_its_share(size, computed, expected, share):
    signals = evicted(info={} if size is None else {"block_size": size}, tokens_prefill=computed)
    assert says(RULE, signals) == expected
    if share:
        assert f" {share} of those computed" in judged(RULE, signals).evidence[-1].text


@pytest.mark.parametrize(
    ("histograms", "expected"),
    [
        ({"block_residency": {2.0: 4}, "ghost_age": {0.5: 4}}, " .2"),
        ({"block_residency": {2.0: 4}}, ""),
        ({"ghost_age": {0.5: 4}}, ""),
        ({"block_residency": {}, "ghost_age": {0.5: 4}}, ""),
        ({"block_residency": {2.0: 4}, "ghost_age": {}}, ""),
        ({"schedule": {0.25: 4}, "lock_wait": {0.125: 8}}, " .0.25 .0.125"),
        ({"schedule": {}, "lock_wait": {0.125: 8}}, " .0.125"),
        ({"time_to_first_token": {0.045: 10}}, " .0.05"),
        ({"time_to_first_token": {0.045: 98, 0.9: 2}}, " .1"),
        ({"time_to_first_token": {}}, ""),
    ],
)
def test_its_costs_as_far_as_they_were_measured(histograms, expected):
    assert says(RULE, evicted(histograms=histograms)) == f"supported +0.2 +101{expected}"


def test_the_scatter_of_the_first_token_is_told_by_its_quantiles():
    told = judged(RULE, evicted(histograms={"time_to_first_token": {0.045: 98, 0.9: 2}})).evidence[-1].text
    assert told == "latency variance: time to first token p50 within 50 ms, p99 within 1.00 s"


ASKED = "undetermined ?evicted"
QUIET = (LoadPoint(5, 2, 0, 0.5, 40.0, 0.0),) * 3
BUSY = (*QUIET[:2], LoadPoint(5, 2, 0, 0.5, 40.0, 9.0))


def logged(hits: Any = None, load: Any = (), decoded: float | None = None) -> Signals:
    return make_signals(
        counters={} if decoded is None else {"tokens_decode": decoded},
        gauges={} if hits is None else {"prefix_hit_rate": hits},
        load=load,
    )


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (logged((0.8, 0.9)), "refuted -0.9"),
        (logged((0.9, 0.79)), ASKED),
        (logged((0.25, 0.25, 0.5)), "refuted -0.5"),
        (logged((0.25, 0.25, 0.4999)), ASKED),
        (logged((0.25, 0.5)), ASKED),
        (logged((0.5, 0.5, 0.5)), ASKED),
        (logged((0.25, 0.6, 0.5)), ASKED),
        (logged((0.6, 0.25, 0.7)), ASKED),
        (logged(load=QUIET, decoded=1), "refuted -"),
        (logged(load=QUIET[:2], decoded=1), ASKED),
        (logged(load=(*QUIET[:2], LoadPoint(5, 0, 0, 0.5, 0.0, 0.0)), decoded=1), ASKED),
        (logged(load=BUSY, decoded=1), ASKED),
        (logged(load=QUIET, decoded=0), ASKED),
        (logged(load=QUIET), ASKED),
    ],
)
def test_a_log_alone_may_refute_it(signals, expected):
    assert says(RULE, signals) == expected


def test_an_engine_that_names_another_reason_is_believed_where_evictions_are_not_counted():
    told = events("leak", "full_reprocess", "full_reprocess")
    assert says(RULE, logged(), events=told) == "refuted -2"
    assert says(RULE, evicted(), events=told) == "supported +0.2 +101"


def test_a_hit_rate_decides_nothing_where_evictions_are_counted():
    signals = evicted()
    signals.gauges |= logged((0.9, 0.9)).gauges
    assert says(RULE, signals) == "supported +0.2 +101"
