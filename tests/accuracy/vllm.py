"""What a vLLM 0.32 would show of the simulated server: its metrics page, and its log with a line per step.

For tools that read nothing else, and for a diagnosis that has only that. Names, buckets and what is booked when are vLLM's: a
prompt in the step that ends its prefill, queue time when the request ends, a preemption when its victim next yields a token.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from engine.request import Request
from engine.scheduler import Scheduler
from engine.step import ScheduledStep

_GAP_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_REQUEST_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_ITERATION_BOUNDS = (1.0, 8.0, *(float(2**power) for power in range(4, 15)))


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        for bound, count in zip((*map(str, self.bounds), "+Inf"), accumulate(self.counts), strict=True):
            yield f'{name}_bucket{{{labels},le="{bound}"}} {count}.0'
        yield f"{name}_count{{{labels}}} {sum(self.counts)}.0"
        yield f"{name}_sum{{{labels}}} {self.sum!r}"


class LogLine(NamedTuple):
    unix: float
    text: str


@dataclass(slots=True)
class VllmFace:
    """Fed by the server as it runs; `page` and `log` show what was booked so far."""

    model: str
    start_unix: float
    gaps: Histogram = field(default_factory=lambda: Histogram(_GAP_BOUNDS))
    first_tokens: Histogram = field(default_factory=lambda: Histogram(_FIRST_TOKEN_BOUNDS))
    iterations: Histogram = field(default_factory=lambda: Histogram(_ITERATION_BOUNDS))
    ended: dict[str, Histogram] = field(
        default_factory=lambda: {
            name: Histogram(_REQUEST_BOUNDS)
            for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time")
        }
    )
    per_token: Histogram = field(default_factory=lambda: Histogram(_GAP_BOUNDS))
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    log: list[LogLine] = field(default_factory=list)
    _preempted: dict[str, int] = field(default_factory=dict)
    _steps: int = 0
    _logged: tuple[float, int, int] = (0.0, 0, 0)
    """When the periodic line was last written, and the tokens until then."""

    def on_step(self, step: ScheduledStep, elapsed_ns: int, unix: float, usage: float) -> None:
        self.iterations.observe(step.num_query_tokens)
        self.log.append(
            LogLine(
                unix,
                f"Engine 000: Iteration({self._steps}): {len(step.prefills)} context requests, "
                f"{step.prefill_tokens + step.recomputed_tokens} context tokens, {len(step.decodes)} generation requests, "
                f"{len(step.decodes)} generation tokens, iteration elapsed time: {elapsed_ns / 1e6:.2f} ms, "
                f"GPU KV cache usage: {100 * usage:.1f}%",
            )
        )
        self._steps += 1

    def on_token(self, request: Request, gap_seconds: float | None, first_seconds: float | None) -> None:
        self.generated_tokens += 1
        if gap_seconds is not None:
            self.gaps.observe(gap_seconds)
        if first_seconds is not None:
            self.first_tokens.observe(first_seconds)
            self.prompt_tokens += len(request.prompt_token_ids)
            self.cached_tokens += request.num_cached_tokens
        known = self._preempted.get(request.request_id, 0)
        if request.num_preemptions > known:
            self.preemptions += request.num_preemptions - known
            self._preempted[request.request_id] = request.num_preemptions

    def on_finished(self, request: Request, now_ns: int) -> None:
        scheduled, first = request.first_scheduled_ns, request.first_token_ns
        assert scheduled is not None and first is not None
        spans = (now_ns - request.arrival_ns, scheduled - request.arrival_ns, first - scheduled, now_ns - first)
        for histogram, span in zip(self.ended.values(), spans, strict=True):
            histogram.observe(span / 1e9)
        if len(request.output_token_ids) > 1:
            self.per_token.observe(spans[-1] / 1e9 / (len(request.output_token_ids) - 1))

    def say_load(self, scheduler: Scheduler, num_waiting: int, unix: float) -> None:
        """The periodic line, of the time since the last one."""
        before, prompts, generated = self._logged
        seconds = max(1e-9, unix - before)
        counters = scheduler.counters
        hits = counters.prefix_hit_tokens / max(1, counters.prefix_query_tokens)
        self.log.append(
            LogLine(
                unix,
                f"Engine 000: Avg prompt throughput: {(self.prompt_tokens - prompts) / seconds:.1f} tokens/s, "
                f"Avg generation throughput: {(self.generated_tokens - generated) / seconds:.1f} tokens/s, "
                f"Running: {scheduler.num_running} reqs, Waiting: {num_waiting} reqs, "
                f"GPU KV cache usage: {100 * usage_of(scheduler):.1f}%, Prefix cache hit rate: {100 * hits:.1f}%",
            )
        )
        self.begin_interval(unix)

    def begin_interval(self, unix: float) -> None:
        self._logged = (unix, self.prompt_tokens, self.generated_tokens)

    def page(self, scheduler: Scheduler, num_waiting: int) -> str:
        labels = f'engine="0",model_name="{self.model}"'
        lines = list(self._samples(scheduler, num_waiting, labels))
        seconds = {"inter_token_latency": self.gaps, "time_to_first_token": self.first_tokens, **self.ended}
        seconds["request_time_per_output_token"] = self.per_token
        for name, histogram in seconds.items():
            lines.append(f"# TYPE vllm:{name}_seconds histogram")
            lines += histogram.lines(f"vllm:{name}_seconds", labels)
        lines.append("# TYPE vllm:iteration_tokens_total histogram")
        lines += self.iterations.lines("vllm:iteration_tokens_total", labels)
        return "\n".join(lines) + "\n"

    def _samples(self, scheduler: Scheduler, num_waiting: int, labels: str) -> Iterator[str]:
        config, counters = scheduler.config, scheduler.counters
        yield f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {self.start_unix!r}"
        cache = (
            f'block_size="{config.block_size}",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
            f'gpu_memory_utilization="0.9",num_gpu_blocks="{config.kv_blocks}"'
        )
        yield f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{cache}}} 1.0"
        gauges = {
            "num_requests_running": scheduler.num_running,
            "num_requests_waiting": num_waiting,
            "kv_cache_usage_perc": usage_of(scheduler),
        }
        for name, value in gauges.items():
            yield f"# TYPE vllm:{name} gauge\nvllm:{name}{{{labels}}} {value}"
        yield "# TYPE vllm:num_requests_waiting_by_reason gauge"
        yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} {num_waiting}'
        totals = {
            "prefix_cache_queries": counters.prefix_query_tokens,
            "prefix_cache_hits": counters.prefix_hit_tokens,
            "num_preemptions": self.preemptions,
            "prompt_tokens": self.prompt_tokens,
            "prompt_tokens_cached": self.cached_tokens,
            "generation_tokens": self.generated_tokens,
        }
        for name, value in totals.items():
            yield f"# TYPE vllm:{name} counter\nvllm:{name}_total{{{labels}}} {value}.0"
        yield "# TYPE vllm:prompt_tokens_by_source counter"
        computed = self.prompt_tokens - self.cached_tokens
        for source, tokens in (("local_compute", computed), ("local_cache_hit", self.cached_tokens)):
            yield f'vllm:prompt_tokens_by_source_total{{{labels},source="{source}"}} {tokens}.0'
        yield "# TYPE vllm:request_success counter"
        finished = sum(self.ended["e2e_request_latency"].counts)
        for reason, count in (("stop", 0), ("length", finished), ("abort", 0), ("error", 0)):
            yield f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {count}.0'


def usage_of(scheduler: Scheduler) -> float:
    """As vLLM has it: cached blocks that nobody uses count as free."""
    return scheduler.census().active / scheduler.config.kv_blocks


def start_up(scheduler: Scheduler, model: str, unix: float) -> list[LogLine]:
    """What vLLM states when it starts, as far as it matters here."""
    config = scheduler.config
    return [
        LogLine(unix, f"non-default args: {{'model': '{model}', 'max_num_seqs': {config.max_sequences}}}"),
        LogLine(unix, f"Chunked prefill is enabled with max_num_batched_tokens={config.max_batched_tokens}."),
        LogLine(
            unix, f"Initializing a V1 LLM engine (v0.32.0) with config: model='{model}', enable_prefix_caching=True"
        ),
        LogLine(unix, f"GPU KV cache size: {config.kv_blocks * config.block_size:,} tokens"),
    ]


def written(lines: Sequence[LogLine]) -> Iterator[str]:
    """As vLLM writes them, in this machine's time."""
    for line in lines:
        stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(line.unix))
        yield f"(EngineCore pid=100) INFO {stamp} [loggers.py:199] {line.text}"
