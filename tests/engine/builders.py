"""Builders and drivers for the policy's tests: a real scheduler, with made-up tokens in place of a forward pass."""

from collections.abc import Callable, Iterator
from time import perf_counter_ns

from engine.config import SchedulerConfig
from engine.prefix_cache import CacheScope
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler import Scheduler
from engine.step import ScheduledStep, plan_batch

SCOPE = CacheScope(weights="test-model")


def make_scheduler(
    *,
    max_batched_tokens: int = 512,
    max_sequences: int = 2048,
    block_size: int = 16,
    kv_blocks: int = 4096,
    max_model_len: int = 8192,
    enable_prefix_cache: bool = True,
    scope: CacheScope = SCOPE,
    prefix_index: str = "hash_chain",
    clock_ns: Callable[[], int] = perf_counter_ns,
    measure_reuse: bool = True,
) -> Scheduler:
    config = SchedulerConfig(
        max_batched_tokens, max_sequences, block_size, kv_blocks, max_model_len, enable_prefix_cache, prefix_index
    )
    return Scheduler(config, scope, clock_ns=clock_ns, measure_reuse=measure_reuse)


class FakeClock:
    """Nanoseconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


def make_request(
    name: str, prompt: int | list[int], *, max_tokens: int = 64, salt: str = "", first: int = 0
) -> Request:
    """`prompt`: its token ids, or how many, counted up from `first`."""
    tokens = list(range(first, first + prompt)) if isinstance(prompt, int) else prompt
    return Request(name, tokens, SamplingParams(max_tokens=max_tokens), arrival_ns=0, cache_salt=salt)


def run_step(scheduler: Scheduler, token: Callable[[Request], int] = lambda _: 9, now_ns: int = 0) -> ScheduledStep:
    """Schedules and commits one step, and finishes what reached max_tokens. Checks every invariant on the way."""
    step = scheduler.schedule()
    scheduler.check_invariants()
    if not step.is_empty:
        plan_batch(step, scheduler.config.block_size)
        for request in scheduler.commit(step, [token(one.request) for one in step.sampled], now_ns):
            if len(request.output_token_ids) >= request.params.max_tokens:
                scheduler.finish(request, FinishReason.LENGTH)
    scheduler.check_invariants()
    return step


def run_steps(scheduler: Scheduler, count: int) -> list[ScheduledStep]:
    return [run_step(scheduler) for _ in range(count)]


def run_until_idle(scheduler: Scheduler, limit: int = 10_000) -> Iterator[ScheduledStep]:
    for _ in range(limit):
        if not scheduler.has_work:
            return
        yield run_step(scheduler)
    raise AssertionError(f"{len(scheduler.requests)} requests are still there after {limit} steps")


def serve(scheduler: Scheduler, request: Request) -> Request:
    """Runs one request from arrival to its end."""
    scheduler.add(request)
    for _ in run_until_idle(scheduler):
        pass
    return request


def start_decodes(scheduler: Scheduler, count: int, *, max_tokens: int = 1000, prompt: int = 1) -> list[Request]:
    """Brings `count` requests, which share no prefix, to the point where they decode."""
    requests = [
        make_request(f"decode-{i}", prompt, max_tokens=max_tokens, first=1_000_000 + i * prompt) for i in range(count)
    ]
    for request in requests:
        scheduler.add(request)
    while not all(request.is_decoding for request in requests):
        run_step(scheduler)
    return requests


def chunks_of(steps: list[ScheduledStep], request: Request) -> list[int]:
    return [chunk.num_tokens for step in steps for chunk in step.prefills if chunk.request is request]
