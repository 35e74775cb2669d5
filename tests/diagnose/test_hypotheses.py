"""Every rule fires where it should, stays quiet where it should, and names what it lacks where it cannot know."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from diagnose.case import Case
from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.hypotheses.base import Hypothesis
from diagnose.hypotheses.registry import HYPOTHESES
from diagnose.observation import Event
from diagnose.verdict import Argument, Judgement, Stance, Verdict
from probes.gpu import ThrottleReason
from probes.records import BlockCensus, DeviceTime
from tests.builders import Machine, make_signals, make_steps, varied, watch, with_prefill
from tests.diagnose import cases
from tests.diagnose.cases import finding, look, texts, verdict
from tests.requirements import covers

NAMES = [hypothesis.name for hypothesis in HYPOTHESES]


def bare(**fields: Any) -> Diagnosis:
    """A page that says next to nothing."""
    return diagnose(cases.TARGET, make_signals(**fields), is_live=True)


FIRES: dict[str, Callable[[], Diagnosis]] = {
    "prefill_interference": lambda: look(cases.interference()),
    "bandwidth_saturation": lambda: look(cases.long_contexts(), cases.short_contexts()),
    "scheduler_contention": lambda: look(cases.slow_host()),
    "expected_reservation": lambda: look(cases.quiet(census=cases.MOSTLY_FREE, memory_bytes=cases.HIGH_MEMORY)),
    "kv_exhaustion": lambda: look(cases.exhaustion()),
    "queue_overload": lambda: look(cases.queue()),
    "cache_thrashing": lambda: cases.thrashing(),
    "engine_hung": lambda: look(cases.hung()),
    "sequence_cap": lambda: look(cases.capped()),
    "admission_stall": lambda: look(cases.stuck_line()),
    "preemption_storm": lambda: look(cases.exhaustion()),
    "kv_leak": lambda: look(cases.leaked()),
    "compute_saturation": cases.saturated_units,
    "cache_prefix_broken": lambda: cases.prefix(hits=1000, before=6000),
    "replica_imbalance": lambda: cases.replicas((2, 0), (9, 6), (3, 0)),
    "transfer_stall": cases.transfers,
    "speculation_loss": lambda: cases.speculation(accepted=300),
    "client_artifact": lambda: cases.clients("itl_p99=400ms"),
    "collective_stall": lambda: look(cases.late_collectives()),
    "frontend_bottleneck": lambda: look(cases.looked_at(cases.host(frontend=0.97, starved=0.6))),
    "device_degraded": lambda: look(cases.throttled(ThrottleReason.HW_THERMAL), cases.quiet()),
    "hard_failure": lambda: look(cases.quiet(), events=(Event(0, "gone", "the target is gone: refused"),)),
}


@pytest.mark.parametrize("name", NAMES)
def test_fires(name):
    diagnosis = FIRES[name]()
    assert verdict(diagnosis, name) == "supported", texts(diagnosis, name)
    judgement = finding(diagnosis, name).judgement
    assert any(item.stance is Stance.FOR for item in judgement.evidence)
    assert not [item.text for item in judgement.evidence if item.stance is Stance.AGAINST], "nothing speaks against it"
    assert judgement.missing == ()


QUIET: dict[str, Callable[[], Diagnosis]] = {
    "replica_imbalance": lambda: cases.replicas((4, 0), (5, 0), (3, 0)),
    "transfer_stall": lambda: cases.transfers(seconds=0.05),
    "speculation_loss": lambda: cases.speculation(accepted=750),
    "client_artifact": lambda: cases.clients("itl_p99=55ms"),
    "collective_stall": lambda: look(watch(make_steps(300, device_ns=DeviceTime(gemm=95, comm=5)))),
    "frontend_bottleneck": lambda: look(cases.looked_at(cases.host())),
}
"""Of causes that need more than an ordinary engine to occur at all."""


def healthy() -> Diagnosis:
    return look(cases.quiet(ttft=0.2, queue=0.001), cases.quiet())


@pytest.mark.parametrize("name", NAMES)
def test_stays_quiet(name):
    """A healthy engine with a baseline, a few requests and memory to spare: nothing is left open either."""
    diagnosis = QUIET.get(name, healthy)()
    assert verdict(diagnosis, name) == "refuted", texts(diagnosis, name)
    judgement = finding(diagnosis, name).judgement
    assert any(item.stance is Stance.AGAINST for item in judgement.evidence)
    assert judgement.missing == (), "what is refuted lacks nothing"


@pytest.mark.parametrize("name", NAMES)
def test_says_what_it_lacks(name):
    """A page without a figure for it: undetermined, and the measurement, its reason and a command are named."""
    diagnosis = bare()
    assert verdict(diagnosis, name) == "undetermined"
    for missing in finding(diagnosis, name).judgement.missing:
        assert missing.measurement
        assert missing.decides
        assert missing.command.startswith(("stallscope ", "curl ", "nvidia-smi "))
    assert finding(diagnosis, name).judgement.missing


def test_only_the_expected_cause_fires():
    """No situation makes another cause of latency fire beside its own; a storm is what exhaustion can end in."""
    latency = {h.name for h in HYPOTHESES if h.causes_latency}
    for name in latency:
        diagnosis = FIRES[name]()
        fired = {f.name for f in diagnosis.findings if f.is_supported and f.name in latency}
        expected = {"kv_exhaustion", "preemption_storm"} if name in ("kv_exhaustion", "preemption_storm") else {name}
        assert fired == expected
        assert diagnosis.primary in expected


# ---- prefill_interference


def test_mixed_steps_that_are_no_slower_refute_interference():
    cheap = Machine(per_prefill_token_us=0.1, per_pair_ns=0)
    diagnosis = look(watch(make_steps(300, with_prefill(5, 1500), cheap)))
    assert verdict(diagnosis, "prefill_interference") == "refuted"
    assert "1.0x a pure decode step" in texts(diagnosis, "prefill_interference")


def test_no_prefill_refutes_interference():
    assert "no prompt token was computed" in texts(look(cases.quiet()), "prefill_interference")


def test_a_dose_response_is_stated_where_doses_differ():
    def constant_dose(index):
        return replace(varied(index), prefill=1024 if index % 5 == 4 else 0)

    assert "dose response" in texts(look(cases.interference()), "prefill_interference")
    assert "dose response" not in texts(look(watch(make_steps(300, constant_dose))), "prefill_interference")


def test_few_mixed_steps_are_anecdotes():
    few = look(watch(make_steps(300, with_prefill(150, 20_000))))
    assert verdict(few, "prefill_interference") == "undetermined", "two huge stalls in 300 steps"
    assert "at least 5 mixed steps (found 2)" in texts(few, "prefill_interference")
    small = look(watch(make_steps(300, with_prefill(150, 50))))
    assert verdict(small, "prefill_interference") == "refuted"


STEPS = {"step_decode": {0.008: 200}, "step_mixed": {0.060: 50}}


@pytest.mark.parametrize(
    ("histograms", "stalled", "expected"),
    [
        (STEPS, 2.5, "supported"),
        (STEPS, 0.1, "refuted"),
        (STEPS, None, "undetermined"),
        ({"step_decode": {0.008: 200}, "step_mixed": {0.0081: 50}}, 0.0, "refuted"),
        ({"step_decode": {0.008: 3}, "step_mixed": {0.060: 50}}, 2.5, "undetermined"),
        ({"step_decode": {0.008: 200}}, 2.5, "undetermined"),
    ],
)
def test_interference_from_histograms_alone(histograms, stalled, expected):
    counters = {"tokens_prefill": 5000.0} | ({} if stalled is None else {"stall_prefill_seconds": stalled})
    diagnosis = bare(counters=counters, histograms=histograms)
    assert verdict(diagnosis, "prefill_interference") == expected
    if expected == "undetermined":
        assert "/debug/steps" in texts(diagnosis, "prefill_interference")


# ---- bandwidth_saturation


def test_flat_decode_without_a_baseline_refutes_saturation():
    flat = look(watch(make_steps(300, machine=Machine(per_context_ns=0, per_sequence_us=0))))
    assert verdict(flat, "bandwidth_saturation") == "refuted"


def test_far_from_the_ceiling_refutes_saturation():
    diagnosis = look(
        cases.long_contexts(bandwidth_bytes_per_second=100e9), cases.short_contexts(bandwidth_bytes_per_second=100e9)
    )
    assert verdict(diagnosis, "bandwidth_saturation") == "refuted"
    assert "8 % of the ceiling" in texts(diagnosis, "bandwidth_saturation")


def test_a_grown_decode_step_without_a_ceiling_is_open():
    diagnosis = look(
        cases.long_contexts(bandwidth_bytes_per_second=None), cases.short_contexts(bandwidth_bytes_per_second=None)
    )
    assert verdict(diagnosis, "bandwidth_saturation") == "undetermined"
    assert "read bandwidth" in texts(diagnosis, "bandwidth_saturation")


def test_a_busy_bus_without_a_baseline_is_open():
    diagnosis = look(cases.long_contexts())
    assert verdict(diagnosis, "bandwidth_saturation") == "undetermined"
    assert "baseline" in texts(diagnosis, "bandwidth_saturation")


# ---- scheduler_contention


@pytest.mark.parametrize(
    ("schedule", "expected"), [({0.003: 100}, "supported"), ({0.0001: 100}, "refuted"), ({0.0018: 100}, "undetermined")]
)
def test_contention_from_histograms_alone(schedule, expected):
    diagnosis = bare(histograms={"step_decode": {0.009: 100}, "schedule": schedule, "lock_wait": {0.0001: 100}})
    assert verdict(diagnosis, "scheduler_contention") == expected


@covers("S5.8")
def test_contention_states_each_host_time_and_their_share():
    text = texts(look(cases.slow_host()), "scheduler_contention")
    assert "host work holds 55 % of the gaps: schedule 6.0 ms, prepare 0.1 ms" in text
    assert "lock_wait 2.0 ms" in text


def test_a_host_share_between_small_and_large_is_open():
    moved = look(watch(make_steps(300, with_prefill(5, 700), Machine(schedule_us=2500))))
    assert verdict(moved, "scheduler_contention") == "undetermined", texts(moved, "scheduler_contention")


# ---- the pool's rules


@pytest.mark.parametrize(
    ("active", "preempted", "waiting", "expected"),
    [
        (95, 4, 0, "supported"),
        (95, 0, 2, "supported"),
        (95, 0, 0, "undetermined"),
        (20, 0, 0, "refuted"),
        (20, 4, 0, "undetermined"),
        (87, 0, 0, "undetermined"),
    ],
)
def test_exhaustion_is_a_denial_not_a_level(active, preempted, waiting, expected):
    diagnosis = bare(
        counters={"preemptions": preempted},
        gauges={
            "blocks_active": active,
            "blocks_reclaimable": 0,
            "blocks_free": 100 - active,
            "waiting_blocks": waiting,
        },
    )
    assert verdict(diagnosis, "kv_exhaustion") == expected


def test_the_peak_of_the_step_records_counts():
    """Scrapes a second apart miss a pool that was full in between; the records do not."""
    diagnosis = look(cases.exhaustion(census=BlockCensus(30, 0, 70)))
    assert "peaked at 98 %" in texts(diagnosis, "kv_exhaustion")


@pytest.mark.parametrize(
    ("active", "reserved", "expected"),
    [(20, 98, "supported"), (20, 50, "refuted"), (95, 98, "refuted"), (70, 98, "undetermined")],
)
def test_reservation(active, reserved, expected):
    diagnosis = bare(
        gauges={
            "blocks_active": active, "blocks_reclaimable": 0, "blocks_free": 100 - active,
            "device_memory_total": 100e9, "device_memory_reserved": reserved * 1e9,
        }
    )  # fmt: skip
    assert verdict(diagnosis, "expected_reservation") == expected


def test_a_full_pool_refutes_reservation_whatever_the_device_says():
    diagnosis = bare(gauges={"blocks_active": 95, "blocks_reclaimable": 0, "blocks_free": 5})
    assert verdict(diagnosis, "expected_reservation") == "refuted"
    assert finding(diagnosis, "expected_reservation").judgement.missing == ()


@pytest.mark.parametrize("buckets", [(0, 0, 0), (10, 40, 20)])
def test_an_empty_or_contradictory_pool_is_not_judged(buckets):
    """No blocks at all, or fewer free than reclaimable where free is said to include them: no division, no negative count."""
    gauges = dict(zip(("blocks_active", "blocks_reclaimable", "blocks_free"), buckets, strict=True))
    diagnosis = bare(gauges=gauges, free_includes_reclaimable=True)
    for name in ("kv_exhaustion", "expected_reservation"):
        assert finding(diagnosis, name).error is None
        assert verdict(diagnosis, name) == "undetermined"


# ---- queue_overload


def test_a_queue_behind_a_slowed_service_is_a_consequence():
    diagnosis = look(cases.interference(ttft=2.0, queue=1.8, num_waiting=9))
    assert verdict(diagnosis, "queue_overload") == "undetermined"
    assert "the service itself slowed down" in texts(diagnosis, "queue_overload")


def test_a_short_queue_is_no_overload_even_if_it_dominates():
    assert verdict(look(cases.queue(ttft=0.05, queue=0.045)), "queue_overload") == "refuted"


# ---- hard_failure


@covers("S5.11")
def test_counted_failures_and_a_restart_under_load_are_hard():
    counted = bare(counters={"failures": 1}, failures={"oom": 1.0})
    assert "counted 1 oom" in texts(counted, "hard_failure")
    assert counted.exit_code == 4
    assert counted.decision.kind == "contain", "at once, although nothing was profiled"
    assert any(step.text.startswith("undo") for step in counted.decision.steps)
    assert verdict(look(cases.restarted_engine(running=5)), "hard_failure") == "supported"
    calm = look(cases.restarted_engine(running=0))
    assert verdict(calm, "hard_failure") == "refuted"
    assert "while no request was running" in texts(calm, "hard_failure")


def test_a_missed_scrape_is_told_and_left_open():
    """The target came back: no proof of a failure, and not 'answered at every scrape' either."""
    diagnosis = look(cases.quiet(), events=(Event(1, "unreachable", "http://x/metrics: no answer within 5 s"),))
    assert verdict(diagnosis, "hard_failure") == "undetermined"
    assert "1 of 4 scrapes failed, the first with: http://x/metrics: no answer within 5 s" in texts(
        diagnosis, "hard_failure"
    )
    assert diagnosis.exit_code == 0, "it leaves the other answers as they are"
    assert any("1 scrape failed: http://x/metrics: no answer" in warning for warning in diagnosis.warnings)


# ---- all of them


class Broken(Hypothesis):
    """Always raises."""

    name = "broken"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        argument.say(Stance.FOR, "found before it broke")
        raise ZeroDivisionError("float division by zero")


def test_a_rule_that_raises_is_reported_and_the_others_still_run():
    diagnosis = diagnose("t", make_signals(), hypotheses=(Broken(), *HYPOTHESES))
    broken = finding(diagnosis, "broken")
    assert broken.error == "ZeroDivisionError: float division by zero"
    assert broken.verdict is Verdict.UNDETERMINED
    assert len(diagnosis.findings) == len(HYPOTHESES) + 1
    assert all(f.error is None for f in diagnosis.findings if f.name != "broken")


def test_every_hypothesis_explains_itself():
    """The docstring is what `explain` prints: mechanism, evidence and fix are all there."""
    for hypothesis in HYPOTHESES:
        text = type(hypothesis).__doc__ or ""
        for heading in (
            "Symptom",
            "Mechanism",
            "Refuted when",
            "Supported when",
            "Proves nothing",
            "Measure next",
            "Fix",
        ):
            assert f"{heading}" in text, (hypothesis.name, heading)


def test_every_hypothesis_has_a_case_that_fires_and_the_names_are_its_own():
    """The tests above run each registered one: where it fires, on a healthy engine, and on a page without a figure for it."""
    assert FIRES.keys() == set(NAMES)
    assert QUIET.keys() <= set(NAMES)
    assert len(set(NAMES)) == len(NAMES)
