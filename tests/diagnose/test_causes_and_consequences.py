"""What follows from something else is not called the cause, and what looks like a second cause is told apart."""

from dataclasses import replace
from typing import Any

import pytest

from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.signals import Signals
from tests.builders import Machine, Plan, make_signals, make_steps, varied, watch
from tests.diagnose import cases
from tests.diagnose.cases import READING, READING_INFO, TARGET, look, texts, verdict


def test_a_queue_behind_a_cap_follows_from_the_cap():
    """Both are so, and raising the cap is what to try."""
    crowded = cases.capped(ttft=2.0, queue=1.8)
    for records in (True, False):
        baseline = cases.quiet(show_records=records)
        found = look(cases.capped(ttft=2.0, queue=1.8, show_records=records) if not records else crowded, baseline)
        assert verdict(found, "queue_overload") == "supported"
        assert verdict(found, "sequence_cap") == "supported"
        assert found.primary == "sequence_cap"


@pytest.mark.parametrize(("usual_context", "expected"), [(3_000, "bandwidth_saturation"), (16_000, "sequence_cap")])
def test_what_is_waited_for_ends_one_token_at_a_time(usual_context: int, expected: str):
    """Behind tokens 2.3 times as slow most of a wait is theirs, however long it is; behind tokens 1.6 times as slow not."""
    full: dict[str, Any] = {"num_running": 64, "num_waiting": 95, "waiting_by_reason": {"max_sequences": 95}}
    usual = make_steps(300, lambda i: Plan(8, usual_context + 10 * (i * 37 % 200)), READING)
    found = look(cases.long_contexts(ttft=300.2, queue=300.0, **full), watch(usual, ttft=0.2, info=READING_INFO))
    assert {f.name for f in found.findings if f.is_supported} >= {"bandwidth_saturation", "sequence_cap"}
    assert found.primary == expected


def test_a_queue_without_a_cap_that_binds_stays_the_cause():
    assert look(cases.queue(), cases.quiet()).primary == "queue_overload"


def thrash(recomputed: float, ghosts: float = 1900) -> Diagnosis:
    signals = make_signals(
        counters={
            "evictions": 2000,
            "ghost_hits": ghosts,
            "tokens_prefill": 32_000,
            "tokens_decode": 500,
            "tokens_recompute": recomputed,
        },
        gauges={"blocks_active": 40, "blocks_reclaimable": 560, "blocks_free": 0, "working_set_blocks": 1450},
        info={"block_size": "16"},
    )
    return diagnose(TARGET, signals, is_live=True)


@pytest.mark.parametrize(
    ("recomputed", "expected"), [(0, "supported"), (16 * 1000, "supported"), (16 * 1900, "refuted")]
)
def test_content_that_preempted_sequences_compute_again_is_no_thrashing(recomputed: float, expected: str):
    found = thrash(recomputed)
    assert verdict(found, "cache_thrashing") == expected
    assert ("preempted sequences" in texts(found, "cache_thrashing")) == bool(recomputed)


def broken_prefix(evictions: float, ghosts: float | None) -> Diagnosis:
    def window(hits: float, evicted: float) -> Signals:
        counters = {"prefix_query_tokens": 10_000.0, "prefix_hit_tokens": hits, "evictions": evicted}
        return make_signals(counters=counters if ghosts is None else counters | {"ghost_hits": ghosts})

    return diagnose(TARGET, window(1000, evictions), window(6000, 0), is_live=True)


@pytest.mark.parametrize(
    ("evictions", "ghosts", "expected"),
    [
        (0, None, "supported"),
        (500, None, "undetermined"),
        (500, 2, "supported"),  # prompts that share nothing fill the cache, and nobody misses what goes
        (500, 50, "undetermined"),
        (500, 200, "refuted"),
    ],
)
def test_a_broken_prefix_fills_the_cache_with_what_nobody_asks_for_again(
    evictions: float, ghosts: float | None, expected: str
):
    assert verdict(broken_prefix(evictions, ghosts), "cache_prefix_broken") == expected


def test_by_histograms_the_host_is_late_in_handing_out_too():
    """Scheduling and lock are short; the engine's own counter of host work is not."""
    slow = watch(make_steps(300, machine=Machine(postprocess_us=7000)), show_records=False)
    found = look(slow, cases.quiet(show_records=False))
    assert verdict(found, "scheduler_contention") == "supported"
    assert "the engine books" in texts(found, "scheduler_contention")
    assert verdict(look(cases.quiet(show_records=False)), "scheduler_contention") == "refuted"


def test_few_long_chunks_among_many_small_ones_still_interfere():
    """Half of the steps carry a few prompt tokens, one in twelve a whole budget: the median mixed step is hardly slower."""

    def plan(index: int) -> Plan:
        if index % 12 == 11:
            return replace(varied(index), prefill=1500 if index % 24 == 11 else 1900)
        return replace(varied(index), prefill=60) if index % 2 else varied(index)

    found = look(watch(make_steps(400, plan)), cases.quiet())
    ratio = found.case.mixed_ratio()
    assert ratio is not None and ratio < found.case.policy.mixed_slow_ratio
    assert verdict(found, "prefill_interference") == "supported"
    assert found.primary == "prefill_interference"
