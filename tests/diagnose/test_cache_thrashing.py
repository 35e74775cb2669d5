"""Thrashing is told from turnover, from a low hit rate and from high memory."""

from collections.abc import Mapping

import pytest

from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.hypotheses.pool import occupancy
from diagnose.signals import Counter, Gauge, HistogramWindow, Signals
from probes.catalog import BLOCK_AGE_BOUNDS_SECONDS, LATENCY_BOUNDS_SECONDS
from tests.requirements import covers

POOL = {"blocks_active": 40.0, "blocks_reclaimable": 560.0, "blocks_free": 0.0}
THRASH = {"evictions": 2000.0, "ghost_hits": 1900.0, "tokens_prefill": 32_000.0}


def histogram(bounds: tuple[float, ...], value: float, count: float) -> HistogramWindow:
    counts = [0.0] * (len(bounds) + 1)
    counts[sum(bound < value for bound in bounds)] = count
    return HistogramWindow(bounds, tuple(counts), value * count, "x_seconds")


def look(
    counters: Mapping[str, float], gauges: Mapping[str, float] = POOL | {"working_set_blocks": 1450.0}
) -> Diagnosis:
    signals = Signals("stallscope", 20.0, 3, free_includes_reclaimable=False, info={"block_size": "16"})
    signals.counters = {name: Counter(value, f"x_{name}") for name, value in counters.items()}
    signals.gauges = {name: Gauge((value,), f"x_{name}") for name, value in gauges.items()}
    signals.histograms = {
        "block_residency": histogram(BLOCK_AGE_BOUNDS_SECONDS, 30.0, 2000),
        "ghost_age": histogram(BLOCK_AGE_BOUNDS_SECONDS, 45.0, 1900),
        "schedule": histogram(LATENCY_BOUNDS_SECONDS, 0.0005, 400),
        "lock_wait": histogram(LATENCY_BOUNDS_SECONDS, 0.0001, 400),
        "time_to_first_token": histogram(LATENCY_BOUNDS_SECONDS, 0.75, 20),
    }
    return diagnose("http://host:8000", signals, is_live=True)


def verdict(diagnosis: Diagnosis) -> str:
    return str(next(f.verdict for f in diagnosis.findings if f.name == "cache_thrashing"))


def texts(diagnosis: Diagnosis) -> str:
    (judgement,) = [f.judgement for f in diagnosis.findings if f.name == "cache_thrashing"]
    return "\n".join([item.text for item in judgement.evidence] + [lack.measurement for lack in judgement.missing])


def test_evicted_content_that_is_asked_for_again_beyond_the_pool_is_thrashing():
    diagnosis = look(THRASH)
    assert verdict(diagnosis) == "supported"
    assert "1,900 blocks were asked for again after their eviction, 2,000 were evicted" in texts(diagnosis)
    assert "pool 600 blocks, working set about 1,450" in texts(diagnosis)
    assert "content stayed 30.0 s on average, and was asked for again 45.0 s after it went" in texts(diagnosis)


@covers("S3.31")
def test_the_three_costs_of_thrashing_are_told_with_their_numbers():
    told = texts(look(THRASH))
    assert "redundant recompute: about 30,400 prompt tokens, 95 % of those computed" in told
    assert "host overhead: scheduling and lookup took 0.5 ms on average" in told
    assert "host overhead: wait for the scheduler lock took 0.1 ms on average" in told
    assert "latency variance: time to first token p50 within 0.75" in told.replace("750 ms", "0.75")


def test_the_experiment_is_a_pool_of_the_working_sets_size():
    decision = look(THRASH).decision
    assert decision.kind == "experiment"
    assert "KV blocks" in decision.summary


@pytest.mark.parametrize(
    "counters",
    [
        {"evictions": 0.0, "ghost_hits": 0.0},
        {"evictions": 0.0},
        {"evictions": 2000.0, "ghost_hits": 0.0, "prefix_query_tokens": 32_000.0, "prefix_hit_tokens": 0.0},
        {"evictions": 2000.0, "ghost_hits": 10.0},
    ],
)
def test_turnover_and_a_low_hit_rate_are_no_thrashing(counters: dict[str, float]):
    diagnosis = look(counters, POOL)
    assert verdict(diagnosis) == "refuted"
    assert diagnosis.primary != "cache_thrashing"


@pytest.mark.parametrize(
    ("counters", "gauges", "lacking"),
    [
        ({}, POOL, "evicted blocks"),
        ({"evictions": 2000.0}, POOL, "ghost hits: evicted blocks that are asked for again"),
        ({"evictions": 2000.0, "ghost_hits": 150.0}, POOL | {"working_set_blocks": 700.0}, "longer window"),
        (THRASH, POOL, "longer window"),
        (THRASH, POOL | {"working_set_blocks": 590.0}, "longer window"),
        (THRASH, {"working_set_blocks": 1450.0}, "longer window"),
    ],
)
def test_what_would_decide_is_named(counters: dict[str, float], gauges: dict[str, float], lacking: str):
    diagnosis = look(counters, gauges)
    assert verdict(diagnosis) == "undetermined"
    assert lacking in texts(diagnosis)


@covers("S3.32")
def test_high_device_memory_alone_proves_no_thrashing_no_exhaustion_and_no_health():
    signals = Signals("stallscope", 20.0, 3)
    signals.gauges = {
        "device_memory_total": Gauge((100.0,), "x_total"),
        "device_memory_reserved": Gauge((98.0,), "x_reserved"),
    }
    diagnosis = diagnose("http://host:8000", signals, is_live=True)
    verdicts = {finding.name: str(finding.verdict) for finding in diagnosis.findings}
    assert {verdicts[name] for name in ("cache_thrashing", "kv_exhaustion", "expected_reservation")} == {"undetermined"}
    lacking = [lack.measurement for finding in diagnosis.findings for lack in finding.judgement.missing]
    assert any("the block buckets" in measurement for measurement in lacking)
    assert diagnosis.exit_code == 3


@covers("S3.28")
@pytest.mark.parametrize(
    ("free", "includes", "available"),
    [(200.0, True, 200.0), (44.0, False, 200.0), (200.0, None, None)],
    ids=["free counts the 156 cached ones", "free does not", "nobody knows"],
)
def test_free_and_reclaimable_are_never_added_twice(free: float, includes: bool | None, available: float | None):
    """156 cached blocks and 44 empty ones: 200 can be had, never 356."""
    signals = Signals("any", 20.0, 3, free_includes_reclaimable=includes)
    values = {"blocks_active": 100.0, "blocks_reclaimable": 156.0, "blocks_free": free}
    signals.gauges = {name: Gauge((value,), name) for name, value in values.items()}
    pool = occupancy(signals)
    assert (None if pool is None else (pool.free or 0) + (pool.reclaimable or 0)) == available
    assert pool is None or pool.total == 300
