"""Where the time of a real step goes: the record's spans leave next to nothing unexplained.

On a clock that advances by a microsecond whenever it is read: what a busy machine does between two readings is no matter,
and what no span covers is a number of readings.
"""

import sys
from collections.abc import Callable
from itertools import count
from threading import get_ident
from time import perf_counter_ns

import pytest

from engine.config import SchedulerConfig
from engine.core import EngineCore
from engine.prefix_cache import CacheScope
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler
from probes.locks import TimedLock
from probes.recorder import RingRecorder
from probes.records import StepKind, StepRecord
from tests.engine.model_helpers import make_prompt, make_runner, tiny
from tests.probes.records import known
from tests.requirements import covers


def record_steps(clock_ns: Callable[[], int] = perf_counter_ns) -> list[StepRecord]:
    """Four streams, and prompts that arrive beside them, on the tiny model."""
    config = SchedulerConfig(max_batched_tokens=512, max_sequences=16, block_size=16, kv_blocks=256, max_model_len=2048)
    recorder = RingRecorder()
    core = EngineCore(
        Scheduler(config, CacheScope(weights="tiny")),
        make_runner(tiny("float32"), 256),
        recorder,
        TimedLock(clock_ns),
        frozenset(),
    )
    for number in range(4):
        core.scheduler.add(request(f"stream-{number}", 64, 40))
    for step in range(40):
        if step % 8 == 4:
            core.scheduler.add(request(f"long-{step}", 480, 1))
        core.step(lambda _: None)
    return recorder.steps_since(0).records


def request(name: str, length: int, tokens: int) -> Request:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return Request(name, make_prompt(length, seed=sum(name.encode())), params, arrival_ns=0)


TICK_NS = 1000
UNCOVERED_READINGS = 6


@pytest.fixture
def ticking_clock(monkeypatch):
    """Wherever the engine and its probes read the time on this thread; another test's may still be ending."""
    reading, here = count(0, TICK_NS), get_ident()

    def clock_ns() -> int:
        return next(reading) if get_ident() == here else perf_counter_ns()

    for name, module in list(sys.modules.items()):
        if name.startswith(("engine.", "probes.")) and getattr(module, "perf_counter_ns", None) is perf_counter_ns:
            monkeypatch.setattr(module, "perf_counter_ns", clock_ns)
    return clock_ns


@covers("S2.15")
def test_a_step_is_split_into_host_spans_and_device_classes_that_add_up(ticking_clock):
    records = record_steps(ticking_clock)
    assert {StepKind.DECODE, StepKind.MIXED} <= {record.kind for record in records}
    for record in map(known, records):
        assert record.device_ns is not None
        host = record.lock_wait_ns + record.schedule_ns + record.prepare_ns + record.postprocess_ns
        spans = host + record.forward_ns + record.sample_ns
        whole = record.end_ns - record.start_ns
        assert spans <= whole
        assert whole - spans <= UNCOVERED_READINGS * TICK_NS, "readings between two spans"
        assert abs(sum(record.device_ns) - record.forward_ns - record.sample_ns) <= UNCOVERED_READINGS * TICK_NS
        assert whole > 5 * UNCOVERED_READINGS * TICK_NS, "many readings lie inside of the spans"
    mixed = [record.device_ns for record in records if record.kind is StepKind.MIXED and record.device_ns]
    for op in ("gemm", "attention_prefill", "attention_decode", "kv_write", "norm_rope_act", "sampling"):
        assert all(getattr(times, op) > 0 for times in mixed), op
    decode = [record.device_ns for record in records if record.kind is StepKind.DECODE and record.device_ns]
    assert all(times.attention_prefill == 0 for times in decode)
