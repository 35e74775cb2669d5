"""The ring of events and the clock over it: late, never waiting, nothing lost in silence."""

import pytest

from engine.runner.event_ring import EventRing, TimedStep
from engine.runner.step_clock import StepClock
from probes import optime
from probes.records import DeviceTime
from tests.engine.fake_device import FakeDevice


class TickingDevice(FakeDevice):
    """Its clock advances by 1 ms per mark."""

    def __init__(self, lag: int = 0) -> None:
        super().__init__(lag)
        self.now_ns = lambda: self.recorded * 1_000_000


def run_step(ring: EventRing, step_id: int, *ops: int) -> None:
    ring.begin(step_id, "decode", is_split=True)
    for op in ops:
        ring.lap(op)
    ring.finish()


def test_classes_add_up_between_marks():
    ring = EventRing(TickingDevice().new_event)
    run_step(ring, 7, optime.GEMM, optime.KV_WRITE, optime.GEMM, optime.SAMPLING)
    times = DeviceTime(gemm=2_000_000, kv_write=1_000_000, sampling=1_000_000)
    assert ring.collect() == [TimedStep(7, "decode", True, times)]
    assert ring.collect() == []


def test_a_step_is_told_once_the_device_has_passed_it_oldest_first():
    device = TickingDevice(lag=3)
    ring = EventRing(device.new_event)
    run_step(ring, 0, optime.GEMM)
    assert ring.collect() == []
    run_step(ring, 1, optime.GEMM)
    assert ring.collect() == []  # the fake asserts that nothing is read before it is passed
    run_step(ring, 2, optime.GEMM)
    assert [timed.step_id for timed in ring.collect()] == [0]
    device.lag = 0
    assert [timed.step_id for timed in ring.collect()] == [1, 2]


def test_events_are_used_again():
    device = TickingDevice()
    ring = EventRing(device.new_event, num_steps=4)
    for step_id in range(100):
        run_step(ring, step_id, optime.GEMM, optime.SAMPLING)
        assert [timed.step_id for timed in ring.collect()] == [step_id]
    assert device.num_events == 4 * 3


def test_what_the_ring_comes_round_to_is_lost_and_said():
    device = TickingDevice(lag=1000)
    ring = EventRing(device.new_event, num_steps=4)
    for step_id in range(10):
        run_step(ring, step_id, optime.GEMM)
    assert [(timed.step_id, timed.device_ns) for timed in ring.collect()] == [(step_id, None) for step_id in range(6)]
    device.lag = 0
    assert [timed.step_id for timed in ring.collect()] == [6, 7, 8, 9]
    assert all(timed.device_ns is not None for timed in ring.collect())


def test_an_abandoned_step_leaves_its_slot():
    ring = EventRing(TickingDevice().new_event)
    ring.begin(0, "decode", is_split=False)
    ring.lap(optime.GEMM)
    ring.abandon()
    run_step(ring, 0, optime.COPY)
    assert [timed.device_ns for timed in ring.collect()] == [DeviceTime(copy=1_000_000)]


def clock_step(clock: StepClock, step_id: int, key: str = "decode", can_split: bool = True) -> bool:
    with clock.step(step_id, key, can_split=can_split) as marks:
        for op in (optime.GEMM, optime.GEMM, optime.KV_WRITE):
            marks.forward.lap(op)
        marks.step.lap(optime.OTHER)
        marks.step.lap(optime.SAMPLING)
    return marks.is_split


def test_every_nth_step_of_a_kind_is_split():
    clock = StepClock(TickingDevice().new_event, split_every=3)
    assert [clock_step(clock, step_id) for step_id in range(7)] == [True, False, False, True, False, False, True]
    assert clock_step(clock, 7, "mixed")
    assert not clock_step(StepClock(TickingDevice().new_event, split_every=0), 0)
    assert not clock_step(clock, 8, "graph 4", can_split=False)


def test_the_others_are_divided_by_the_last_split_ones_shares_and_keep_their_sum():
    device = TickingDevice()
    clock = StepClock(device.new_event, split_every=2)
    for step_id in range(2):
        clock_step(clock, step_id)
    (_, split), (_, whole) = clock.collect()
    assert split == DeviceTime(gemm=2_000_000, kv_write=1_000_000, other=1_000_000, sampling=1_000_000)
    # 1 ms between the two marks of the forward pass, divided 2 : 1 : 1.
    assert whole == DeviceTime(gemm=500_000, kv_write=250_000, other=250_000, sampling=1_000_000)


def test_shares_that_do_not_divide_evenly_keep_the_sum():
    clock = StepClock(TickingDevice().new_event, split_every=0)
    clock.learn("decode", DeviceTime(gemm=1, kv_write=1, norm_rope_act=1))
    clock_step(clock, 0)
    ((_, times),) = clock.collect()
    assert times is not None and sum(times) == 2_000_000
    assert times.gemm == 333_333


def test_before_any_split_the_forward_pass_is_other():
    clock = StepClock(TickingDevice().new_event, split_every=0)
    clock.learn("decode", DeviceTime())  # a profiler that saw nothing teaches nothing
    clock_step(clock, 0)
    assert clock.collect() == [(0, DeviceTime(other=1_000_000, sampling=1_000_000))]


def test_a_step_that_raises_is_not_timed():
    clock = StepClock(TickingDevice().new_event)
    with pytest.raises(RuntimeError), clock.step(0, "decode", can_split=True) as marks:
        marks.step.lap(optime.GEMM)
        raise RuntimeError
    assert clock.collect() == []
