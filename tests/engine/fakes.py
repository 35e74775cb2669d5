"""A runner whose tokens can be foretold, and builders around it."""

from collections.abc import Callable, Iterable, Sequence
from threading import Event
from time import perf_counter_ns, sleep
from typing import Any

from engine.config import SchedulerConfig
from engine.core import EngineCore, TokenOutput
from engine.loop import EngineFacts, EngineThread
from engine.prefix_cache import CacheScope
from engine.request import Request, SamplingParams
from engine.runner.base import DeviceMemory, ModelGeometry, Runner, StepResult, TokenLogprobs
from engine.scheduler import Scheduler
from engine.step import BatchPlan
from probes.locks import TimedLock
from probes.recorder import RingRecorder
from probes.records import StepRecord

VOCAB_SIZE = 259


def fake_logprobs(plan: BatchPlan, token_ids: Sequence[int]) -> list[TokenLogprobs | None] | None:
    """The best tokens are the chosen one and those after it: -0.25, -0.5, -0.75, .."""
    counts = [request.params.logprobs for request in plan.sample_requests]
    if all(count is None for count in counts):
        return None
    return [
        None
        if count is None
        else TokenLogprobs(-0.25, list(range(token, token + count)), [-0.25 * (rank + 1) for rank in range(count)])
        for token, count in zip(token_ids, counts, strict=True)
    ]


class FakeRunner:
    """The token after n is n + 1. `before` runs in front of each step: to wait, to look, to raise."""

    device_name = "fake"
    bandwidth_bytes_per_second = None
    flops_per_second = None
    attention_backend = "none"
    device_time_source = "none"
    geometry = ModelGeometry("fake", 1, 1, 1, 1, 1, 1, VOCAB_SIZE, 4096, 1, 1, 8, "float32")

    def __init__(self, before: Callable[[BatchPlan], object] | None = None, seconds: float = 0.0) -> None:
        self.before = before
        self.seconds = seconds
        self.plans: list[BatchPlan] = []

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        pass

    def memory(self) -> DeviceMemory:
        return DeviceMemory(100, 60, 20, 40)

    def read_blocks(self, block_ids: Sequence[int]) -> memoryview:
        """A byte per block."""
        return memoryview(bytes(block_id % 256 for block_id in block_ids))

    def execute(self, plan: BatchPlan) -> StepResult:
        start = perf_counter_ns()
        self.plans.append(plan)
        if self.before is not None:
            self.before(plan)
        if self.seconds:
            sleep(self.seconds)
        forward_ns = perf_counter_ns() - start
        token_ids = [(plan.token_ids[row] + 1) % VOCAB_SIZE for row in plan.sample_rows]
        return StepResult(token_ids, forward_ns, 1000, forward_ns, None, fake_logprobs(plan, token_ids))


AnyRunner = FakeRunner | Runner


class Harness:
    """An engine core without thread and server, and everything it handed out."""

    def __init__(self, runner: AnyRunner | None = None, eos: Iterable[int] = (), **limits: int) -> None:
        self.runner: Any = runner or FakeRunner()
        self.lock = TimedLock()
        self.recorder = RingRecorder()
        self.scheduler = Scheduler(make_config(**limits), CacheScope(weights="fake"))
        self.core = EngineCore(self.scheduler, self.runner, self.recorder, self.lock, frozenset(eos))
        self.outputs: list[TokenOutput] = []

    def add(self, request: Request) -> Request:
        self.scheduler.add(request)
        return request

    def step(self) -> bool:
        return self.core.step(self.outputs.extend)

    def run(self, max_steps: int = 1000) -> None:
        for _ in range(max_steps):
            if not self.core.has_work:
                self.scheduler.check_invariants()
                return
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    @property
    def records(self) -> list[StepRecord]:
        return self.recorder.steps_since(0).records


def make_config(**limits: int) -> SchedulerConfig:
    values: dict[str, Any] = {
        "max_batched_tokens": 64,
        "max_sequences": 8,
        "block_size": 4,
        "kv_blocks": 64,
        "max_model_len": 256,
    }
    return SchedulerConfig(**(values | limits))


def make_request(
    name: str = "r",
    prompt: Iterable[int] = (1, 2, 3),
    max_tokens: int = 4,
    ignore_eos: bool = False,
    arrival_ns: int | None = None,
) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
    return Request(name, list(prompt), params, perf_counter_ns() if arrival_ns is None else arrival_ns)


def make_thread(harness: Harness) -> EngineThread:
    facts = EngineFacts("engine", {"total": 100}, None, 0.0, {"model": "fake"})
    return EngineThread(harness.core, harness.lock, harness.recorder, facts)


class CollectingSink:
    """Remembers outputs; `finished` is set with the last one."""

    def __init__(self) -> None:
        self.outputs: list[TokenOutput] = []
        self.finished = Event()

    def __call__(self, output: TokenOutput) -> None:
        self.outputs.append(output)
        if output.finish_reason is not None:
            self.finished.set()

    @property
    def token_ids(self) -> list[int]:
        return [output.token_id for output in self.outputs if output.token_id is not None]
