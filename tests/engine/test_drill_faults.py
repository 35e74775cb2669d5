"""What a drill asks to be wrong is wrong, and only what it asked for."""

import subprocess
import sys

import pytest

from engine.core import EngineCore, TokenOutput
from engine.errors import ConfigError
from engine.prefix_cache import CacheScope
from engine.request import FinishReason
from engine.server.drill_fault import KINDS, DrillFault, make_faulty_core, parse_fault
from probes.locks import TimedLock
from probes.recorder import RingRecorder
from probes.records import DeferralReason
from tests.engine.fakes import FakeRunner, make_config, make_request


class Faulty:
    def __init__(self, text: str, **limits: int) -> None:
        self.lock, self.recorder = TimedLock(), RingRecorder()
        self.outputs: list[TokenOutput] = []
        self.core: EngineCore = make_faulty_core(
            parse_fault(text, "1"),
            make_config(**limits),
            CacheScope(weights="fake"),
            FakeRunner(),
            self.recorder,
            self.lock,
            frozenset(),
        )

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if not self.core.has_work:
                return
            self.core.step(self.outputs.extend)


def test_a_fault_needs_its_gate_and_a_known_form():
    assert parse_fault("lock=20ms", "1") == DrillFault("lock", 20)
    assert parse_fault("lock=20ms", "1").seconds == 0.02
    assert parse_fault("leak=4blocks", "1") == DrillFault("leak", 4)
    for gate in (None, "0", ""):
        with pytest.raises(ConfigError, match="STALLSCOPE_DRILLS=1"):
            parse_fault("lock=20ms", gate)
    for text in ("lock", "lock=20", "lock=0ms", "leak=5ms", "lock=-3ms", "host=60000ms", "nap=5ms", "stall=²requests"):
        with pytest.raises(ConfigError, match="lock=20ms"):
            parse_fault(text, "1")


def test_a_leak_holds_blocks_that_nobody_owns():
    faulty = Faulty("leak=3blocks")
    for number in range(4):
        faulty.core.scheduler.add(make_request(f"r{number}", [number], max_tokens=2))
    faulty.run(50)
    assert not faulty.core.scheduler.requests
    census = faulty.core.scheduler.census()
    assert census.active == 12
    assert census.active + census.reclaimable + census.free == 64


def test_a_leak_ends_where_the_pool_does():
    faulty = Faulty("leak=40blocks")
    for number in range(3):
        faulty.core.scheduler.add(make_request(f"r{number}", [number], max_tokens=2))
    faulty.run(50)
    assert faulty.core.scheduler.census().active == 40


def test_a_stalled_line_starts_nobody_and_has_room_for_them():
    faulty = Faulty("stall=2requests")
    requests = [make_request(f"r{number}", [number], max_tokens=2) for number in range(5)]
    for request in requests[:2]:
        faulty.core.scheduler.add(request)
    faulty.run(10)
    for request in requests[2:]:
        faulty.core.scheduler.add(request)
    faulty.run(10)
    assert all(request.finish_reason is FinishReason.LENGTH for request in requests[:2])
    scheduler = faulty.core.scheduler
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 3)
    assert scheduler.waiting_by_reason() == {DeferralReason.BLOCKS: 3}
    assert scheduler.census().active == 0


def test_a_slow_callback_is_on_record_as_post_processing():
    faulty = Faulty("host=5ms")
    faulty.core.scheduler.add(make_request("r", [1], max_tokens=4))
    faulty.run(10)
    assert len(faulty.outputs) == 4
    times = [record.postprocess_ns for record in faulty.recorder.steps_since(0).records]
    assert times and min(time for time in times if time is not None) >= 5_000_000


@pytest.mark.parametrize("text", ["lock=20ms", "lookups=40000tokens"])
def test_a_contended_lock_makes_the_engine_wait_for_its_holder(text: str):
    """Bounded by steps, not by time: with the lock held most of the time a step soon finds it taken."""
    faulty = Faulty(text)
    for number in range(2000):
        faulty.core.scheduler.add(make_request(f"r{number}", [1], max_tokens=2))
        faulty.run(5)
        if faulty.lock.sites["schedule"].blocked_ns["drill"] > 0:
            break
    assert faulty.lock.sites["drill"].hold.count > 0
    assert faulty.lock.sites["schedule"].blocked_ns["drill"] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="the address space of a process is limited on Linux")
def test_memory_runs_out_for_real_and_the_rest_of_the_process_goes_on():
    """In a process of its own, since the limit stays."""
    script = """
import engine.server.drill_fault as faults

class Runner:
    device_name = "fake"
    def execute(self, plan):
        return plan

faults._GROWTH_SECONDS = 1e-6
runner = faults.HungryRunner(Runner(), 64 << 20)
assert runner.device_name == "fake" and runner.execute(7) == 7
try:
    while True:
        runner.execute(0)
except MemoryError:
    kept = bytearray(16 << 20)
    print(len(runner._taken))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == 10


def test_steps_without_memory_end_their_requests_and_are_counted():
    def fail(_: object) -> None:
        raise MemoryError

    faulty = Faulty("memory=1MiB")
    faulty.core.runner = FakeRunner(before=fail)
    faulty.core.scheduler.add(make_request("r", [1], max_tokens=2))
    faulty.run(3)
    assert faulty.recorder.counters.failures == {"oom": 1}
    assert [output.finish_reason for output in faulty.outputs] == [FinishReason.ERROR]


def test_every_kind_can_be_asked_for():
    for name, kind in KINDS.items():
        assert parse_fault(f"{name}=1{kind.unit}", "1") == DrillFault(name, 1)
