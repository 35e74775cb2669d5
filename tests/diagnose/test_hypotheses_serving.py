"""Rules about what keeps requests from being served: hangs, caps, stuck lines, storms, leaks, busy units, broken prefixes."""

from collections.abc import Sequence

import pytest

from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.dialects.base import Usage
from diagnose.observation import Observation
from diagnose.report.outline import headline
from probes.records import BlockCensus
from tests.builders import Machine, Plan, make_signals, make_steps, watch
from tests.diagnose import cases
from tests.diagnose.cases import finding, look, texts, verdict


def test_a_hung_engine_is_contained_with_its_stacks_kept():
    diagnosis = look(cases.hung())
    assert diagnosis.primary == "engine_hung"
    assert diagnosis.decision.kind == "contain"
    assert "py-spy dump" in " ".join(map(str, diagnosis.decision.steps))
    assert not diagnosis.idle


def test_a_short_window_without_a_step_is_open():
    diagnosis = look(cases.hung(seconds=20))
    assert verdict(diagnosis, "engine_hung") == "undetermined"
    assert "a window of at least 30 s" in texts(diagnosis, "engine_hung")
    assert diagnosis.exit_code == 3


def test_a_hang_that_is_not_certain_is_settled_before_anything_is_profiled():
    diagnosis = look(cases.hung(seconds=20))
    assert headline(diagnosis).endswith("; engine_hung is suspected")
    assert [(step.text, step.command) for step in diagnosis.decision.steps] == [
        ("a window of at least 30 s", f"stallscope diagnose {cases.TARGET} --window 60s")
    ]
    assert diagnosis.exit_code == 3


def test_nothing_running_is_not_called_hung_however_long():
    """Running 0, waiting 1, pool free: the head of the line, or the loop. Stacks tell."""
    diagnosis = look(cases.stuck_line(seconds=60))
    assert verdict(diagnosis, "engine_hung") == "undetermined"
    assert verdict(diagnosis, "admission_stall") == "supported"
    assert diagnosis.primary == "admission_stall"
    assert diagnosis.exit_code == 1


def test_an_idle_engine_is_not_hung():
    assert verdict(look(cases.hung(num_running=0)), "engine_hung") == "refuted"


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({}, "supported"),
        ({"num_running": 63}, "refuted"),
        ({"num_waiting": 0, "waiting_by_reason": {}}, "refuted"),
        ({"census": cases.FULL}, "refuted"),
        ({"waiting_by_reason": {"kv_blocks": 5}}, "refuted"),
    ],
)
def test_a_cap_binds_when_running_sits_at_it_and_nothing_else_does(over, expected):
    assert verdict(look(cases.capped(**over)), "sequence_cap") == expected


@pytest.mark.parametrize(
    ("running", "waiting", "expected"),
    [
        ((64, 64, 64, 64), (5, 5, 5, 5), "supported"),
        ((64, 64, 63, 12), (5, 5, 5, 0), "supported"),
        ((58, 64, 62, 60), (21, 23, 22, 2), "undetermined"),
        ((58, 63, 62, 60), (21, 23, 22, 2), "refuted"),
    ],
)
def test_a_cap_that_was_reached_once_while_others_waited_below_it_is_open(running, waiting, expected):
    """Where no reason of a wait is told, as in vLLM's log: long prompts hold requests up below the cap as well."""
    gauges = {
        "running": running,
        "waiting": waiting,
        "max_sequences": 64,
        "pool_usage": (0.3,) * 4,
        "pool_blocks": 1000,
    }
    diagnosis = diagnose(cases.TARGET, make_signals(gauges=gauges, usage=Usage.ACTIVE), is_live=True)
    assert verdict(diagnosis, "sequence_cap") == expected


def queue(running: tuple[int, ...], **gauges: float) -> Diagnosis:
    """Queue time dominates, tokens come at their usual pace, and the pool has room."""
    histograms = {
        "queue_time": {2.0: 40},
        "time_to_first_token": {2.2: 40},
        "inter_token_latency": {0.02: 4000},
    }
    levels: dict[str, float | Sequence[float]] = {
        "running": running,
        "waiting": (9,) * len(running),
        "pool_usage": (0.3,) * len(running),
        "pool_blocks": 1000,
        **gauges,
    }
    signals = make_signals(gauges=levels, histograms=histograms, usage=Usage.ACTIVE)
    usual = make_signals(histograms={"inter_token_latency": {0.02: 4000}})
    return diagnose(cases.TARGET, signals, usual, is_live=True)


@pytest.mark.parametrize(
    ("diagnosis", "expected"),
    [
        (queue((21, 34, 28, 30)), "supported"),
        (queue((32, 32, 31, 32)), "undetermined"),
        (queue((32, 32, 31, 32), max_sequences=64), "supported"),
        (queue((32, 32)), "supported"),
    ],
    ids=["moves", "flat, no cap told", "flat below the cap", "two samples"],
)
def test_a_queue_behind_a_number_that_never_moves_may_be_a_cap_that_is_not_told(diagnosis: Diagnosis, expected: str):
    assert verdict(diagnosis, "queue_overload") == expected
    if expected == "undetermined":
        assert "the configured cap of sequences" in texts(diagnosis, "queue_overload")


@pytest.mark.parametrize(("context", "expected"), [(100, "supported"), (200_000, "undetermined")])
def test_without_a_baseline_a_queue_beside_steps_that_read_long_contexts_is_open(context: int, expected: str):
    """Nothing tells whether the reading slowed the service, and with it made the queue."""
    steps = make_steps(300, lambda index: Plan(8, context + context * (index % 7) // 4))
    signals = make_signals(
        gauges={"running": (8, 9, 7), "waiting": (9, 8, 9), "max_sequences": 64},
        histograms={"queue_time": {2.0: 40}, "time_to_first_token": {2.2: 40}},
        steps=tuple(steps),
    )
    diagnosis = diagnose(cases.TARGET, signals, is_live=True)
    assert verdict(diagnosis, "queue_overload") == expected
    if expected == "undetermined":
        assert "a baseline of the same server" in texts(diagnosis, "queue_overload")


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({}, "supported"),
        ({"num_running": 1}, "supported"),
        ({"num_running": 2}, "refuted"),
        ({"num_waiting": 0}, "refuted"),
        ({"census": cases.FULL}, "refuted"),
        ({"ttft": 1.0, "queue": 0.9}, "refuted"),
    ],
)
def test_a_line_is_stuck_when_it_waits_beside_idleness(over, expected):
    assert verdict(look(cases.stuck_line(**over)), "admission_stall") == expected


@pytest.mark.parametrize(
    ("preemptions", "finished", "recomputed", "expected"),
    [
        (0, 50, 0, "refuted"),
        (2, 50, 60, "refuted"),
        (20, 50, 60, "supported"),
        (2, 50, 5000, "supported"),
        (2, None, 60, "undetermined"),
    ],
)
def test_a_storm_is_many_preemptions_or_much_recompute(preemptions, finished, recomputed, expected):
    counters = {
        "preemptions": preemptions,
        "tokens_recompute": recomputed,
        "tokens_prefill": 10_000,
        "tokens_decode": 9,
    }
    if finished is not None:
        counters["requests_finished"] = finished
    diagnosis = diagnose(cases.TARGET, make_signals(counters=counters), is_live=True)
    assert verdict(diagnosis, "preemption_storm") == expected


def test_a_leak_needs_every_idle_scrape():
    assert verdict(look(cases.leaked()), "kv_leak") == "supported"
    assert verdict(look(cases.leaked(census=BlockCensus(0, 60, 40))), "kv_leak") == "refuted"


def test_occupancy_under_load_is_no_leak_and_unowned_blocks_are_left_open():
    assert verdict(look(cases.quiet()), "kv_leak") == "refuted"
    more_than_owned = look(watch(make_steps(300, lambda _: Plan(2, 100), census=BlockCensus(90, 0, 10))))
    assert verdict(more_than_owned, "kv_leak") == "undetermined"
    assert "while no request is inside" in texts(more_than_owned, "kv_leak")


@pytest.mark.parametrize(
    ("ceiling", "queue", "expected"),
    [(70e9, 0.5, "supported"), (70e9, 0.001, "refuted"), (1e12, 0.5, "refuted"), (110e9, 0.5, "undetermined")],
)
def test_units_are_the_limit_near_the_measured_ceiling_with_a_queue(ceiling, queue, expected):
    assert verdict(cases.saturated_units(ceiling, queue), "compute_saturation") == expected


def test_without_a_ceiling_busy_units_are_open():
    diagnosis = look(cases.interference())
    assert verdict(diagnosis, "compute_saturation") == "undetermined"
    assert "matrix throughput" in texts(diagnosis, "compute_saturation")


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        ({"hits": 1000, "before": 6000}, "supported"),
        ({"hits": 5000, "before": 6000}, "refuted"),
        ({"hits": 100, "before": 1000}, "refuted"),
        ({"hits": 1000, "before": 6000, "evictions": 500}, "undetermined"),
        ({"hits": 1000, "before": 6000, "evictions": None}, "undetermined"),
        ({"hits": 1000, "before": None}, "undetermined"),
        ({"hits": 0, "before": 0, "cache": "false"}, "not_applicable"),
    ],
)
def test_a_prefix_is_broken_when_it_is_asked_for_and_nothing_was_lost(situation, expected):
    diagnosis = cases.prefix(**situation)
    assert finding(diagnosis, "cache_prefix_broken").verdict == expected


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        ({"accepted": 300}, "supported"),
        ({"accepted": 650}, "refuted"),  # high by itself
        ({"accepted": 450}, "refuted"),  # more than half of the baseline's
        ({"accepted": 300, "itl": 0.05}, "refuted"),  # nobody waits longer
        ({"accepted": 300, "before": None}, "undetermined"),
        ({"accepted": 300, "before": 0}, "undetermined"),
        ({"accepted": 30, "drafted": 100}, "undetermined"),
        ({"accepted": 0, "drafted": 0}, "not_applicable"),
    ],
)
def test_speculation_loses_when_acceptance_fell_and_streams_slowed(situation, expected):
    assert verdict(cases.speculation(**situation), "speculation_loss") == expected


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        ({"seconds": 1.5}, "supported"),
        ({"seconds": 0.05}, "refuted"),
        ({"seconds": 0.7}, "undetermined"),
        ({"seconds": 0.05, "failed": 3, "waiting": 2}, "supported"),
        ({"seconds": 0.05, "failed": 3}, "undetermined"),
        ({"seconds": 0.05, "waiting": 2}, "undetermined"),
    ],
)
def test_a_transfer_stalls_when_it_dominates_or_fails(situation, expected):
    assert verdict(cases.transfers(**situation), "transfer_stall") == expected


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([(2, 0), (9, 6), (3, 0)], "supported"),
        ([(4, 0), (5, 0), (3, 0)], "refuted"),
        ([(8, 9), (8, 7), (8, 8)], "refuted"),  # overload of all is no imbalance
        ([(2, 0), (9, 0), (3, 0)], "refuted"),  # uneven, and nobody waits
        ([(4, 1), (9, 6), (4, 1), (5, 0)], "supported"),
        ([(4, 0), (9, 0), (4, 1), (5, 0)], "undetermined"),  # the busiest one has no queue
        ([(4, 0)], "not_applicable"),
    ],
)
def test_replicas_are_unbalanced_when_one_waits_while_another_idles(loads, expected):
    assert verdict(cases.replicas(*loads), "replica_imbalance") == expected


def test_what_an_engine_cannot_do_does_not_apply():
    diagnosis = look(cases.quiet())
    for name in ("speculation_loss", "transfer_stall", "replica_imbalance"):
        assert verdict(diagnosis, name) == "not_applicable"


@pytest.mark.parametrize(
    ("reported", "gap", "tokens", "expected"),
    [
        ("itl_p99=400ms", 0.05, 500, "supported"),
        ("itl_p99=55ms", 0.05, 500, "refuted"),
        ("itl_p99=90ms", 0.05, 500, "undetermined"),  # the engine's bucket reaches from above to below half of it
        ("itl_p99=400ms", 0.05, 20, "undetermined"),
        ("ttft_p99=400ms", 0.05, 500, "undetermined"),  # of which the engine says nothing
        ("itl_p50=55ms,itl_p99=400ms", 0.05, 500, "supported"),
    ],
)
def test_what_clients_see_and_the_engine_does_not_is_theirs(reported, gap, tokens, expected):
    assert verdict(cases.clients(reported, gap, tokens), "client_artifact") == expected


def test_a_host_that_was_always_late_is_no_cause_of_a_change():
    def heavy_host() -> Observation:
        """A third of every gap, and no gap that stands out."""
        return watch(make_steps(300, machine=Machine(schedule_us=3500)))

    assert verdict(look(heavy_host()), "scheduler_contention") == "supported"
    assert verdict(look(heavy_host(), heavy_host()), "scheduler_contention") == "refuted"
    assert "as late as it always was" in texts(look(heavy_host(), heavy_host()), "scheduler_contention")
    assert verdict(look(heavy_host(), cases.quiet()), "scheduler_contention") == "supported"
