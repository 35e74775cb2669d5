"""The ring and the counters: nothing is lost silently, and readers do not rob each other."""

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.counters import DecodeFloor
from probes.recorder import COUNTED_TOGETHER, NullRecorder, Recorder, RequestTrace, RingRecorder, TransferTrace
from probes.records import DeviceTime, StepKind
from tests.probes.records import make_record


def filled(count: int, capacity: int = 8) -> RingRecorder:
    recorder = RingRecorder(capacity)
    for step_id in range(count):
        recorder.on_step(make_record(step_id))
    return recorder


def make_trace(number: int) -> RequestTrace:
    return RequestTrace(
        request_id=f"r{number}",
        arrival_ns=number,
        first_scheduled_ns=number + 1,
        first_token_ns=number + 2,
        finished_ns=number + 3,
        num_prompt_tokens=9,
        num_cached_tokens=4,
        num_output_tokens=2,
        num_preemptions=0,
        finish_reason="stop",
    )


def test_a_reader_that_keeps_up_gets_everything_once():
    recorder = filled(5)
    first = recorder.steps_since(0)
    assert [record.step_id for record in first.records] == [0, 1, 2, 3, 4]
    assert (first.next_id, first.lost) == (5, 0)
    recorder.on_step(make_record(5))
    again = recorder.steps_since(first.next_id)
    assert [record.step_id for record in again.records] == [5]
    assert recorder.steps_since(again.next_id) == ([], 6, 0)


def test_a_late_reader_is_told_what_it_lost():
    recorder = filled(20)
    late = recorder.steps_since(3)
    assert [record.step_id for record in late.records] == list(range(12, 20))
    assert late.lost == 9
    assert recorder.steps_since(0).lost == 12
    assert recorder.steps_since(-5).lost == 12


def test_two_readers_do_not_rob_each_other():
    recorder = filled(6)
    one, other = recorder.steps_since(2), recorder.steps_since(2)
    assert one == other
    assert [record.step_id for record in recorder.steps_since(0).records] == list(range(6))


def test_a_limit_cuts_the_slice_and_names_where_to_go_on():
    recorder = filled(20)
    collected, since, lost = [], 0, 0
    while True:
        piece = recorder.steps_since(since, limit=3)
        if not piece.records:
            break
        collected += [record.step_id for record in piece.records]
        since, lost = piece.next_id, lost + piece.lost
    assert collected == list(range(12, 20))
    assert lost == 12


def test_a_reader_ahead_of_the_engine_gets_nothing():
    """Its cursor is of an earlier engine: it is told where this one stands."""
    assert filled(3).steps_since(100) == ([], 3, 0)


def test_reading_beside_the_writer_never_tears():
    recorder = RingRecorder(16)
    stop = threading.Event()

    def write() -> None:
        for step_id in range(20_000):
            recorder.on_step(make_record(step_id))
        stop.set()

    thread = threading.Thread(target=write)
    thread.start()
    since = seen = lost = 0
    while not stop.is_set() or since < recorder.next_id:
        piece = recorder.steps_since(since)
        ids = [record.step_id for record in piece.records]
        assert ids == sorted(set(ids))
        assert all(since <= step_id < piece.next_id for step_id in ids)
        seen, lost, since = seen + len(ids), lost + piece.lost, piece.next_id
    thread.join()
    assert seen + lost == 20_000


def test_counters_add_up():
    recorder = RingRecorder()
    recorder.on_step(make_record(0, kind=StepKind.PREFILL, num_decode_seqs=0, prefill_tokens=9, emitted_tokens=1))
    recorder.on_step(
        make_record(1, num_decode_seqs=2, emitted_tokens=2, num_regular_gaps=2, evicted_blocks=3, ghost_hits=2)
    )
    recorder.on_step(make_record(2, emitted_tokens=1, late_gaps_ns=(5_000_000_000,), num_preempted=1, host_gap_ns=7))
    recorder.on_step(make_record(3, deferral="kv_blocks", num_deferred=4))
    counters = recorder.counters
    assert dict(counters.tokens) == {"prefill": 9, "recompute": 0, "cached": 0, "received": 0, "decode": 5}
    assert (counters.evictions, counters.preemptions, counters.ghost_hits) == (3, 1, 2)
    assert counters.inter_token_latency.count == 3
    assert counters.host_gap.count == 1
    assert dict(counters.deferrals) == {"kv_blocks": 4}
    assert counters.step_duration[StepKind.PREFILL].count == 1
    assert counters.step_duration[StepKind.DECODE].count == 3
    assert counters.stall_ns["preemption_or_deferral", "some"] == 5_000_000_000


@pytest.mark.parametrize("capacity", [1, 2, COUNTED_TOGETHER, 64])
def test_every_step_is_counted_once_whatever_readers_do_meanwhile(capacity: int):
    recorder = RingRecorder(capacity)
    done = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not done.is_set():
            seen.append(recorder.counters.tokens["decode"])

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    for step_id in range(5_000):
        recorder.on_step(make_record(step_id, emitted_tokens=3, device_ns=None))
        recorder.on_device_time(step_id, DeviceTime(gemm=5, other=2))
    done.set()
    for thread in readers:
        thread.join()
    counters = recorder.counters
    assert (counters.tokens["decode"], counters.step_duration[StepKind.DECODE].count) == (15_000, 5_000)
    assert counters.device_ns[StepKind.DECODE] == [5_000 * ns for ns in DeviceTime(gemm=5, other=2)]
    assert (counters.probe_errors, counters.lost_device_times) == (0, 0)


def test_an_engine_that_starts_its_numbers_over_is_counted_on():
    recorder = RingRecorder()
    for number in (*range(5), *range(5), 40):
        recorder.on_step(make_record(number, emitted_tokens=1))
    assert recorder.counters.tokens["decode"] == 11
    assert (recorder.next_id, recorder.counters.probe_errors) == (41, 0)


def test_the_writer_does_not_wait_for_a_reader_that_is_counting():
    recorder = RingRecorder()
    with recorder._counting:  # a reader that lost the processor in the middle
        for step_id in range(3 * COUNTED_TOGETHER):
            recorder.on_step(make_record(step_id))
    assert recorder.counters.step_duration[StepKind.DECODE].count == 3 * COUNTED_TOGETHER


def test_prefill_beside_decodes_is_a_stall_by_what_exceeds_the_floor():
    recorder = RingRecorder()
    recorder.on_step(make_record(0, num_decode_seqs=4, forward_ns=10_000_000, sample_ns=0))
    recorder.on_step(make_record(1, kind=StepKind.MIXED, num_decode_seqs=4, forward_ns=110_000_000, sample_ns=0))
    stall = recorder.counters.stall_ns
    assert stall["prefill", "some"] == stall["prefill", "full"] == 100_000_000


def test_one_disturbed_step_hardly_moves_the_floor():
    floor = DecodeFloor()
    assert floor.of(4) is None
    for _ in range(10):
        floor.learn(4, 10_000_000)
    floor.learn(4, 1_000_000_000)
    assert floor.of(4) == pytest.approx(11_000_000)
    assert floor.of(1000) == floor.of(4)


PATHS = sorted(name for name in vars(Recorder) if name.startswith("on_"))
FAULTS: dict[str, tuple[Any, ...]] = {
    "on_delivered": ("not a number",),
    "on_device_time": (0, ("not", "numbers")),
    "on_failure": ([],),
    "on_first_scheduled": ("not a number",),
    "on_first_token": (None,),
    "on_request_finished": (make_trace(0)._replace(arrival_ns=None),),  # type: ignore[arg-type]
    "on_step": (make_record(0)._replace(kind="no such kind"),),  # type: ignore[arg-type]
    "on_transfer": (TransferTrace(1, None, None, "bytes", 1),),  # type: ignore[arg-type]
}
"""What each path of the recorder cannot count."""


@pytest.mark.parametrize("path", PATHS)
def test_a_fault_of_the_probe_is_counted_and_not_raised(path):
    recorder = filled(1)
    getattr(recorder, path)(*FAULTS[path])
    assert recorder.counters.probe_errors == 1


@pytest.mark.parametrize("path", PATHS)
def test_the_null_recorder_takes_everything_and_keeps_nothing(path):
    recorder = NullRecorder()
    getattr(recorder, path)(*FAULTS[path])
    assert not hasattr(recorder, "__dict__") or not vars(recorder)


def test_a_step_that_cannot_be_counted_is_still_held():
    recorder = RingRecorder()
    recorder.on_step(*FAULTS["on_step"])
    assert recorder.next_id == 1


@pytest.mark.parametrize("room", [{"capacity": 0}, {"trace_capacity": -1}])
def test_a_ring_needs_room(room):
    with pytest.raises(ValueError, match="capacity must be positive, got"):
        RingRecorder(**room)


def test_finished_requests_are_held_in_a_ring_of_their_own():
    recorder = RingRecorder(trace_capacity=4)
    for number in range(6):
        recorder.on_request_finished(make_trace(number))
    late = recorder.traces_since(0)
    assert [trace.request_id for trace in late.traces] == ["r2", "r3", "r4", "r5"]
    assert (late.next_id, late.lost) == (6, 2)
    assert recorder.traces_since(late.next_id) == ([], 6, 0)
    assert recorder.traces_since(100) == ([], 6, 0)
    assert recorder.counters.finished["stop"] == 6


@given(
    capacity=st.integers(1, 8),
    finished=st.lists(st.integers(0, 12), max_size=8),
    limit=st.one_of(st.none(), st.integers(1, 5)),
)
def test_what_a_reader_of_traces_gets_and_loses_adds_up(capacity, finished, limit):
    """Whatever comes between two reads: every trace is seen once, in order, or counted as lost."""
    recorder = RingRecorder(trace_capacity=capacity)
    total = since = lost = 0
    seen: list[int] = []
    for burst in finished:
        for _ in range(burst):
            recorder.on_request_finished(make_trace(total))
            total += 1
        piece = recorder.traces_since(since, limit)
        assert limit is None or len(piece.traces) <= limit
        seen += [int(trace.request_id[1:]) for trace in piece.traces]
        since, lost = piece.next_id, lost + piece.lost
    rest = recorder.traces_since(since)
    seen += [int(trace.request_id[1:]) for trace in rest.traces]
    assert seen == sorted(set(seen))
    assert (len(seen) + lost + rest.lost, rest.next_id) == (total, total)


def test_reading_traces_beside_the_writer_never_tears():
    recorder = RingRecorder(trace_capacity=16)
    thread = threading.Thread(target=lambda: [recorder.on_request_finished(make_trace(n)) for n in range(20_000)])
    thread.start()
    since = seen = lost = 0
    while thread.is_alive() or since < 20_000:
        piece = recorder.traces_since(since)
        numbers = [int(trace.request_id[1:]) for trace in piece.traces]
        assert numbers == sorted(set(numbers))
        assert all(since <= number < piece.next_id for number in numbers)
        seen, lost, since = seen + len(numbers), lost + piece.lost, piece.next_id
    thread.join()
    assert seen + lost == 20_000


def test_a_device_time_fills_in_its_record_and_counts_under_its_kind():
    recorder = filled(3)
    recorder.on_device_time(1, DeviceTime(gemm=5, other=2))
    assert [record.device_ns for record in recorder.steps_since(0).records] == [None, DeviceTime(gemm=5, other=2), None]
    assert sum(recorder.counters.device_ns[StepKind.DECODE]) == 7
    assert recorder.counters.lost_device_times == 0


def test_a_device_time_that_comes_never_or_too_late_is_lost_and_counted():
    recorder = filled(20)
    before = recorder.steps_since(0)
    recorder.on_device_time(11, DeviceTime(gemm=5))  # overwritten: the ring holds the last 8
    recorder.on_device_time(15, None)
    recorder.on_device_time(30, DeviceTime(gemm=5))
    assert recorder.counters.lost_device_times == 3
    assert recorder.steps_since(0) == before
