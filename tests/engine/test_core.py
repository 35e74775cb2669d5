"""One iteration of the engine: what it hands out, what it records, and what a failure costs."""

import threading
import time

import pytest

from engine.request import FinishReason
from engine.step import BatchPlan
from probes.records import StepKind
from tests.engine.fakes import FakeRunner, Harness, make_request
from tests.probes.records import known


class OutOfMemoryError(RuntimeError):
    """Named as torch names it."""


def test_tokens_come_in_order_and_end_at_max_tokens():
    harness = Harness()
    harness.add(make_request(prompt=[10, 11], max_tokens=3))
    harness.run()
    assert [output.token_id for output in harness.outputs] == [12, 13, 14]
    assert [output.finish_reason for output in harness.outputs] == [None, None, FinishReason.LENGTH]


def test_eos_ends_a_request_unless_ignored():
    harness = Harness(eos=[12])
    obedient = harness.add(make_request("obedient", [10], max_tokens=9))
    stubborn = harness.add(make_request("stubborn", [10], max_tokens=4, ignore_eos=True))
    harness.run()
    assert obedient.finish_reason is FinishReason.STOP
    assert obedient.output_token_ids == [11, 12]
    assert stubborn.finish_reason is FinishReason.LENGTH
    assert stubborn.output_token_ids == [11, 12, 13, 14]


def test_spans_of_a_record_lie_between_its_stamps():
    """lock wait + schedule + prepare + forward + sample never exceed emit - start: the account adds up."""
    harness = Harness(FakeRunner(seconds=0.002))
    harness.add(make_request(prompt=range(100), max_tokens=5))
    harness.run()
    previous_end = None
    for step_id, record in enumerate(map(known, harness.records)):
        assert record.step_id == step_id
        spans = record.lock_wait_ns + record.schedule_ns + record.prepare_ns + record.forward_ns
        assert 0 < spans + record.sample_ns - 1000 <= record.emit_ns - record.start_ns  # the fake sampled for free
        assert record.postprocess_ns == record.end_ns - record.emit_ns >= 0
        assert record.schedule_ns < record.lock_hold_ns
        assert record.host_gap_ns == (None if previous_end is None else record.start_ns - previous_end)
        previous_end = record.end_ns


def test_records_say_what_was_computed():
    harness = Harness(max_batched_tokens=64)
    harness.add(make_request("a", range(100), max_tokens=3))
    harness.run()
    records = harness.records
    assert [record.kind for record in records] == [StepKind.PREFILL, StepKind.PREFILL, StepKind.DECODE, StepKind.DECODE]
    assert [record.prefill_tokens for record in records] == [64, 36, 0, 0]
    assert [record.emitted_tokens for record in records] == [0, 1, 1, 1]
    assert [record.prefill_attention_pairs for record in records] == [64 * 65 // 2, 36 * 64 + 36 * 37 // 2, 0, 0]
    assert [record.num_regular_gaps for record in records] == [0, 0, 1, 1]
    assert all(known(record).census.total == 64 for record in records)
    assert known(records[0]).census.active == 16


def test_a_mixed_step_and_a_deferral_are_told():
    harness = Harness(max_batched_tokens=8)
    harness.add(make_request("decoding", [1], max_tokens=20))
    harness.step()
    harness.add(make_request("long", range(50), max_tokens=1))
    harness.add(make_request("behind", range(50), max_tokens=1))
    harness.step()
    record = harness.records[-1]
    assert record.kind is StepKind.MIXED
    assert (record.num_decode_seqs, record.prefill_tokens) == (1, 7)
    assert (record.num_deferred, record.deferral) == (1, "budget_taken_by_earlier_prefill")
    assert record.num_waiting == 1


def test_the_gap_of_a_preempted_sequence_is_late():
    """Two growing sequences and a pool for one and a half: the younger gives way and its next token is late."""
    harness = Harness(kv_blocks=6, max_model_len=24)
    old = harness.add(make_request("old", [1, 2, 3, 4], max_tokens=16))
    young = harness.add(make_request("young", [50, 51, 52, 53], max_tokens=16))
    harness.run()
    assert young.num_preemptions > 0
    assert old.num_preemptions == 0
    records = harness.records
    late = [gap for record in records for gap in record.late_gaps_ns]
    assert len(late) == young.num_preemptions
    assert sum(known(record).num_preempted for record in records) == young.num_preemptions
    assert sum(known(record).recomputed_tokens for record in records) > 0
    regular = sum(record.num_regular_gaps for record in records)
    assert regular + len(late) == 2 * (16 - 1)  # every gap is told once
    by_emit = {record.step_id: record.emit_ns for record in records}
    preempted_at = next(record.step_id for record in records if record.num_preempted)
    assert late[0] > by_emit[preempted_at] - by_emit[preempted_at - 1]
    assert harness.recorder.counters.inter_token_latency.count == 30


def test_host_gap_is_not_measured_after_an_idle_loop():
    harness = Harness()
    harness.add(make_request("a", max_tokens=2))
    harness.run()
    harness.core.idle()
    harness.add(make_request("b", [7, 8, 9], max_tokens=1))
    harness.run()
    assert [record.host_gap_ns is None for record in harness.records] == [True, False, True]


def test_waiting_for_the_lock_is_booked_as_lock_wait():
    harness = Harness()
    holder = harness.lock.site("holder")
    harness.add(make_request(max_tokens=1))
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with holder:
            held.set()
            time.sleep(0.2)
        done.set()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    harness.step()
    thread.join()
    record = known(harness.records[0])
    assert record.lock_wait_ns > 10_000_000
    assert record.schedule_ns < record.lock_wait_ns
    assert done.is_set()


def test_the_lock_is_free_during_the_forward_pass():
    free = []

    def look(_: BatchPlan) -> None:
        free.append(harness.lock.raw.acquire(blocking=False))
        harness.lock.raw.release()

    harness = Harness(FakeRunner(look))
    harness.add(make_request(max_tokens=2))
    harness.run()
    assert free == [True, True]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("boom"), "forward_error"),
        (OutOfMemoryError("no"), "oom"),
        (MemoryError(), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."), "oom"),
    ],
)
def test_a_failing_forward_pass_costs_only_its_own_requests(
    error: Exception, kind: str, caplog: pytest.LogCaptureFixture
):
    def fail_once(_: BatchPlan) -> None:
        harness.runner.before = None
        raise error

    harness = Harness(FakeRunner(fail_once), max_sequences=1)
    hit = harness.add(make_request("hit"))
    spared = harness.add(make_request("spared"))
    harness.run()
    assert hit.finish_reason is FinishReason.ERROR
    assert spared.finish_reason is FinishReason.LENGTH
    assert dict(harness.recorder.counters.failures) == {kind: 1}
    assert dict(harness.recorder.counters.finished) == {"error": 1, "length": 1}
    assert harness.outputs[0].finish_reason is FinishReason.ERROR
    assert harness.outputs[0].token_id is None
    assert harness.core.failures_in_a_row == 0
    assert [record.step_id for record in harness.records] == [0, 1, 2, 3]  # a failed step leaves no hole
    assert harness.scheduler.census().active == 0
    assert "step failed" in caplog.text


def test_an_abort_returns_the_blocks_with_the_next_schedule():
    harness = Harness()
    request = harness.add(make_request(prompt=range(40), max_tokens=50))
    harness.step()
    assert harness.scheduler.census().active == 10
    harness.core.abort(request.request_id)
    assert harness.core.has_work
    assert not harness.step()
    assert harness.scheduler.census().active == 0
    assert request.finish_reason is FinishReason.ABORT
    assert not harness.core.has_work
    assert dict(harness.recorder.counters.finished) == {"abort": 1}


def test_an_abort_during_the_forward_pass_takes_effect_after_it():
    def abort(_: BatchPlan) -> None:
        harness.core.abort("r", FinishReason.STOP)
        assert harness.scheduler.census().active > 0

    harness = Harness(FakeRunner(abort))
    request = harness.add(make_request(max_tokens=50))
    harness.step()
    harness.step()
    assert request.finish_reason is FinishReason.STOP
    assert request.output_token_ids == [4]
    assert dict(harness.recorder.counters.finished) == {"stop": 1}


def test_latencies_of_a_request_are_counted_once():
    harness = Harness()
    request = harness.add(make_request(max_tokens=3))
    harness.run()
    counters = harness.recorder.counters
    assert counters.queue_time.count == counters.time_to_first_token.count == counters.e2e.count == 1
    assert counters.inter_token_latency.count == 2
    assert request.first_scheduled_ns is not None and request.first_token_ns is not None
    assert request.arrival_ns < request.first_scheduled_ns < request.first_token_ns < (request.last_token_ns or 0)
    assert counters.time_to_first_token.sum_ns == request.first_token_ns - request.arrival_ns
    assert dict(counters.tokens) == {"prefill": 3, "recompute": 0, "cached": 0, "received": 0, "decode": 3}


def test_cached_tokens_and_evictions_reach_the_record():
    harness = Harness(kv_blocks=16, max_model_len=64)
    prompt = list(range(33))
    for name in ("first", "second"):
        harness.add(make_request(name, prompt, max_tokens=1))
        harness.run()
    assert [record.cached_tokens for record in harness.records] == [0, 32]
    assert known(harness.records[0]).census.reclaimable == 0
    harness.add(make_request("other", range(100, 160), max_tokens=1))
    harness.run()
    assert known(harness.records[-1]).evicted_blocks > 0
