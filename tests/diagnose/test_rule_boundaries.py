"""On which side of a threshold its own value lies, rule by rule: one step below, the value itself, one step above."""

from collections.abc import Mapping

import pytest

from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.signals import Signals
from diagnose.slo import parse_reported
from diagnose.verdict import Stance
from tests.builders import make_signals
from tests.diagnose import cases
from tests.diagnose.cases import READING_INFO, finding, look, texts, verdict


def judged(**fields) -> Diagnosis:
    return diagnose(cases.TARGET, make_signals(**fields), is_live=True)


def pool(active: float, **gauges: float) -> dict[str, float]:
    """Of a hundred blocks; the rest is free."""
    return {"blocks_active": active, "blocks_reclaimable": 0, "blocks_free": 100 - active, **gauges}


def stances(diagnosis: Diagnosis, name: str) -> str:
    signs = {Stance.FOR: "+", Stance.AGAINST: "-", Stance.CONTEXT: "."}
    return "".join(signs[item.stance] for item in finding(diagnosis, name).judgement.evidence)


@pytest.mark.parametrize(
    ("active", "preempted", "expected", "signs"),
    [
        (90, 4, "supported", "+++"),
        (89, 4, "undetermined", "-++"),
        (90, 0, "undetermined", "+--"),
        (85, 0, "undetermined", "---"),
        (84, 0, "refuted", "---"),
    ],
)
def test_exhaustion(active, preempted, expected, signs):
    gauges = pool(active, waiting_blocks=1 if preempted else 0)
    diagnosis = judged(counters={"preemptions": preempted}, gauges=gauges)
    assert verdict(diagnosis, "kv_exhaustion") == expected
    assert stances(diagnosis, "kv_exhaustion") == signs


@pytest.mark.parametrize(
    ("active", "reserved", "expected"),
    [
        (49, 80, "supported"),
        (49, 79, "refuted"),
        (50, 80, "undetermined"),
        (89, 80, "undetermined"),
        (90, 80, "refuted"),
    ],
)
def test_reservation(active, reserved, expected):
    gauges = pool(active, device_memory_total=100.0, device_memory_reserved=float(reserved))
    assert verdict(judged(gauges=gauges), "expected_reservation") == expected


def queued(queue: float, ttft: float) -> Diagnosis:
    """Inter-token latency as in the baseline."""

    def window(histograms: Mapping[str, Mapping[float, float]]) -> Signals:
        return make_signals(histograms={"inter_token_latency": {0.02: 500}, **histograms}, gauges={"waiting": (0, 2)})

    now = window({"queue_time": {queue: 8}, "time_to_first_token": {ttft: 8}})
    return diagnose(cases.TARGET, now, window({}), is_live=True)


@pytest.mark.parametrize(
    ("queue", "ttft", "expected"),
    [
        (0.125, 0.25, "supported"),
        (0.125, 0.28125, "undetermined"),
        (0.09375, 0.125, "refuted"),  # three quarters of the first token, and too short to be felt
        (0.125, 0.625, "undetermined"),
        (0.125, 0.75, "refuted"),
    ],
)
def test_a_queue_dominates_from_half_of_a_wait_that_is_felt(queue, ttft, expected):
    diagnosis = queued(queue, ttft)
    assert verdict(diagnosis, "queue_overload") == expected
    assert stances(diagnosis, "queue_overload")[0] == ("+" if expected == "supported" else "-")


@pytest.mark.parametrize(
    ("seconds", "failed", "waiting", "expected", "signs"),
    [
        (1.0, 0, 0, "supported", "...+"),
        (0.9375, 0, 0, "undetermined", ".---"),
        (0.4, 0, 0, "undetermined", ".---"),
        (0.375, 0, 0, "refuted", ".---"),
        (0.05, 1, 1, "supported", ".++."),
        (0.05, 1, 0, "undetermined", ".+--"),
    ],
)
def test_transfers_stall_from_half_of_the_first_token(seconds, failed, waiting, expected, signs):
    diagnosis = cases.transfers(seconds, failed=failed, waiting=waiting)
    assert verdict(diagnosis, "transfer_stall") == expected
    assert stances(diagnosis, "transfer_stall") == signs


@pytest.mark.parametrize(
    ("running", "active", "slots", "expected", "signs"),
    [
        (64, 84, 5, "supported", "+++"),
        (64, 85, 5, "refuted", "++-"),
        (63, 20, 5, "refuted", "-"),
        (64, 20, 0, "refuted", "+-+"),
    ],
)
def test_a_cap_binds_when_running_sits_at_it_beside_room(running, active, slots, expected, signs):
    gauges = pool(active, max_sequences=64.0, waiting_sequences=slots) | {"waiting": (5.0, 5.0)}
    diagnosis = judged(gauges={**gauges, "running": (float(running), float(running))})
    assert verdict(diagnosis, "sequence_cap") == expected
    assert stances(diagnosis, "sequence_cap") == signs


@pytest.mark.parametrize(
    ("preempted", "finished", "recomputed", "expected", "signs"),
    [
        (2, 10, 0, "supported", "+."),
        (1, 10, 0, "refuted", "+-"),
        (1, 10, 100, "supported", "++"),
        (1, 10, 99, "refuted", "+-"),
        (1, None, 99, "undetermined", "+-"),
        (1, 0, None, "supported", "+"),
    ],
)
def test_preemptions_are_a_storm_from_one_in_five_or_a_tenth_of_the_work(
    preempted, finished, recomputed, expected, signs
):
    counters: dict[str, float] = {"preemptions": preempted}
    if finished is not None:
        counters["requests_finished"] = finished
    if recomputed is not None:
        counters |= {"tokens_recompute": recomputed, "tokens_prefill": 1000 - recomputed}
    diagnosis = judged(counters=counters)
    assert verdict(diagnosis, "preemption_storm") == expected
    assert stances(diagnosis, "preemption_storm") == signs


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [(2000, 999, "supported"), (2000, 1000, "refuted"), (1999, 0, "refuted"), (6000, 2999, "supported")],
)
def test_a_prefix_cache_broke_when_less_than_half_of_a_useful_rate_is_left(before, now, expected):
    diagnosis = cases.prefix(hits=now, before=before)
    assert verdict(diagnosis, "cache_prefix_broken") == expected
    assert stances(diagnosis, "cache_prefix_broken") == ("++" if expected == "supported" else "-")


@pytest.mark.parametrize(
    ("evicted", "missed", "expected", "sign"),
    [
        (500, 9, "supported", "+"),
        (500, 10, "undetermined", "-"),
        (500, 99, "undetermined", "-"),
        (500, 100, "refuted", "-"),
        (0, None, "supported", "+"),
        (1, None, "undetermined", "-"),
    ],
)
def test_a_lost_prefix_is_no_broken_one(evicted, missed, expected, sign):
    def window(hits: float, evictions: float) -> Signals:
        counters = {"prefix_query_tokens": 10_000.0, "prefix_hit_tokens": hits, "evictions": evictions}
        return make_signals(counters=counters if missed is None else counters | {"ghost_hits": missed})

    diagnosis = diagnose(cases.TARGET, window(1000, evicted), window(6000, 0), is_live=True)
    assert verdict(diagnosis, "cache_prefix_broken") == expected
    assert stances(diagnosis, "cache_prefix_broken") == f"+{sign}"


@pytest.mark.parametrize(
    ("missed", "expected", "sign"),
    [(400, "supported", "+"), (399, "undetermined", "-"), (40, "undetermined", "-"), (39, "refuted", "-")],
)
def test_a_fifth_of_the_evicted_blocks_asked_for_again_is_thrashing(missed, expected, sign):
    signals = make_signals(
        counters={"evictions": 2000, "ghost_hits": missed, "tokens_prefill": 32_000, "tokens_decode": 500},
        gauges={"blocks_active": 40, "blocks_reclaimable": 560, "blocks_free": 0, "working_set_blocks": 1450},
    )
    diagnosis = diagnose(cases.TARGET, signals, is_live=True)
    assert verdict(diagnosis, "cache_thrashing") == expected
    assert stances(diagnosis, "cache_thrashing")[0] == sign


@pytest.mark.parametrize(
    ("accepted", "before", "drafted", "itl", "expected", "signs"),
    [
        (600, 800, 1000, 0.1, "refuted", "-"),
        (599, 800, 1000, 0.1, "refuted", ".-"),
        (400, 800, 1000, 0.1, "supported", ".+"),
        (401, 800, 1000, 0.1, "refuted", ".-"),
        (400, 800, 1000, 0.05, "refuted", ".+"),
        (400, None, 1000, 0.1, "undetermined", "."),
        (400, 0, 1000, 0.1, "undetermined", "."),
        (200, 800, 500, 0.1, "supported", ".+"),
        (200, 800, 499, 0.1, "undetermined", ""),
        (0, 800, 0, 0.1, "not_applicable", "."),
    ],
)
def test_speculation_loses_where_half_of_the_acceptance_is_gone_and_the_streams_slowed_down(
    accepted, before, drafted, itl, expected, signs
):
    diagnosis = cases.speculation(accepted, before=before, drafted=drafted, itl=itl)
    assert verdict(diagnosis, "speculation_loss") == expected
    assert stances(diagnosis, "speculation_loss") == signs


@pytest.mark.parametrize(
    ("reported", "tokens", "expected", "sign"),
    [
        ("itl_p99=100ms", 100, "supported", "+"),  # the bucket is (30, 50] ms
        ("itl_p99=99ms", 100, "undetermined", "."),
        ("itl_p99=60ms", 100, "undetermined", "."),
        ("itl_p99=59ms", 100, "refuted", "-"),
        ("itl_p99=100ms", 99, "undetermined", "+"),
    ],
)
def test_clients_differ_from_twice_the_engines_own_quantile(reported, tokens, expected, sign):
    diagnosis = cases.clients(reported, gap=0.045, tokens=tokens)
    assert "30 ms to 50 ms" in texts(diagnosis, "client_artifact")
    assert verdict(diagnosis, "client_artifact") == expected
    assert stances(diagnosis, "client_artifact") == sign


@pytest.mark.parametrize(
    ("loads", "expected", "signs"),
    [
        (((2, 0), (2, 2), (3, 0)), "supported", "++"),
        (((2.5, 0), (2, 2), (3, 0)), "refuted", "-+"),
        (((4, 0), (8, 0), (4, 0)), "refuted", "+-"),
        (((2, 1), (6, 4), (3, 1)), "refuted", "+-"),
        (((2, 1), (6, 4), (3, 0)), "supported", "++"),
    ],
)
def test_replicas_are_uneven_where_one_queues_and_another_has_room(loads, expected, signs):
    diagnosis = cases.replicas(*loads)
    assert verdict(diagnosis, "replica_imbalance") == expected
    assert stances(diagnosis, "replica_imbalance") == signs


@pytest.mark.parametrize(
    ("busy", "starved", "expected", "signs"),
    [
        (0.80, 0.30, "supported", "++"),
        (0.79, 0.30, "undetermined", "-+"),
        (0.80, 0.29, "undetermined", "+-"),
        (0.80, 0.09, "refuted", "+-"),
        (0.80, 0.10, "undetermined", "+-"),
        (0.49, 0.60, "refuted", "-"),
        (0.50, 0.60, "undetermined", "-+"),
    ],
)
def test_a_frontend_binds_when_it_is_busy_and_the_engine_waits_for_it(busy, starved, expected, signs):
    """A hundredth of the thread's time is spent waiting for a core: it counts as busy."""
    diagnosis = look(cases.looked_at(cases.host(frontend=busy - 0.01, starved=starved)))
    assert verdict(diagnosis, "frontend_bottleneck") == expected
    assert stances(diagnosis, "frontend_bottleneck") == signs


_GEOMETRY = {
    "num_parameters": "8000000",
    "num_layers": "2",
    "num_query_heads": "4",
    "head_dim": "50",
    "dtype": "float32",
}


@pytest.mark.parametrize(
    ("info", "flops_ceiling", "baseline", "expected"),
    [
        (_GEOMETRY, 100e9, cases.short_contexts, "supported"),  # 2.5 times the bytes in 2.5 times the time, units idle
        (
            _GEOMETRY,
            20e9,
            cases.short_contexts,
            "undetermined",
        ),  # the units are half busy: they may be what takes longer
        ({}, 100e9, cases.short_contexts, "undetermined"),  # nobody knows how busy they are
        (_GEOMETRY, 100e9, None, "undetermined"),
    ],
)
def test_between_near_and_far_a_step_that_follows_its_bytes_is_bound_by_them(info, flops_ceiling, baseline, expected):
    limits = {"bandwidth_bytes_per_second": 15e9, "flops_per_second": flops_ceiling, "info": READING_INFO | info}
    diagnosis = look(cases.long_contexts(**limits), baseline(**limits) if baseline is not None else None)
    assert verdict(diagnosis, "bandwidth_saturation") == expected, texts(diagnosis, "bandwidth_saturation")


@pytest.mark.parametrize(
    ("delay", "gap", "samples", "expected", "signs"),
    [
        (0.030, 0.030, 100, "supported", "+"),
        (0.030, 0.031, 100, "undetermined", "."),  # not a gap of the streams
        (0.029, 0.010, 100, "undetermined", "."),  # not felt
        (0.030, 0.030, 99, "undetermined", ""),  # two stalls, perhaps
        (0.010, 0.004, 100, "undetermined", "."),
        (0.0099, 0.004, 100, "refuted", "-"),
        (0.024, 0.1, 100, "refuted", "-"),
        (0.026, 0.1, 100, "undetermined", "."),
    ],
)
def test_a_front_end_is_late_by_a_gap_that_is_felt(delay, gap, samples, expected, signs):
    signals = make_signals(histograms={"frontend_delay": {delay: samples}, "inter_token_latency": {gap: 500}})
    diagnosis = diagnose(cases.TARGET, signals, is_live=True)
    assert verdict(diagnosis, "frontend_bottleneck") == expected
    assert stances(diagnosis, "frontend_bottleneck") == signs


@pytest.mark.parametrize(
    ("delay", "reported", "expected"),
    [
        (0.0002, "itl_p99=102ms", "supported"),
        (0.0002, "itl_p99=99ms", "undetermined"),
        (0.4, "itl_p99=400ms", "undetermined"),  # the server's own front end may be all of it
        (0.4, "itl_p99=900ms", "supported"),
    ],
)
def test_what_the_front_end_of_the_server_adds_is_no_clients_doing(delay, reported, expected):
    signals = make_signals(histograms={"frontend_delay": {delay: 500}, "inter_token_latency": {0.045: 500}})
    diagnosis = diagnose(cases.TARGET, signals, reported=parse_reported(reported), is_live=True)
    assert verdict(diagnosis, "client_artifact") == expected
    assert ("front end may add" in texts(diagnosis, "client_artifact")) == (delay > 0.01)


@pytest.mark.parametrize(
    ("seconds", "running", "expected"),
    [
        (30.0, (3.0, 3.0), "supported"),
        (29.0, (3.0, 3.0), "undetermined"),
        (30.0, (3.0, 0.0), "refuted"),
        (None, (3.0, 3.0), "undetermined"),
    ],
)
def test_an_engine_hangs_from_half_a_minute_without_a_step(seconds, running, expected):
    signals = make_signals(
        counters={"tokens_decode": 0, "tokens_prefill": 0}, gauges={"running": running, **pool(20)}, length_seconds=seconds
    )  # fmt: skip
    assert verdict(diagnose(cases.TARGET, signals, is_live=True), "engine_hung") == expected


@pytest.mark.parametrize(
    ("ceiling", "queue", "expected"),
    [(70e9, 0.5, "supported"), (140e9, 0.5, "undetermined"), (280e9, 0.5, "refuted"), (70e9, 0.05, "refuted")],
)
def test_the_units_are_the_limit_when_they_are_busy_and_requests_wait(ceiling, queue, expected):
    assert verdict(cases.saturated_units(ceiling, queue), "compute_saturation") == expected


@pytest.mark.parametrize(
    ("stalled", "expected", "signs"), [(1.71875, "supported", ".++"), (1.703125, "refuted", ".+-")]
)
def test_stalls_matter_from_a_tenth_of_the_decode_time(stalled, expected, signs):
    """200 pure decode steps of 62.5 ms and 50 mixed ones of exactly 1.5 times that: 17.1875 s."""
    diagnosis = judged(
        counters={"tokens_prefill": 5000.0, "stall_prefill_seconds": stalled},
        histograms={"step_decode": {0.0625: 200}, "step_mixed": {0.09375: 50}},
    )
    assert verdict(diagnosis, "prefill_interference") == expected
    assert stances(diagnosis, "prefill_interference") == signs
