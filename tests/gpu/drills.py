"""Drills on the device's engine: a labelled condition is induced, and the diagnosis must name it from the step records."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import NamedTuple

import torch

from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.signals import Counter, Gauge, Signals
from engine.config import SchedulerConfig
from engine.core import EngineCore
from engine.prefix_cache import CacheScope
from engine.request import Request, SamplingParams
from engine.runner.cuda import CudaRunner
from engine.runner.device import Device
from engine.scheduler import Scheduler
from probes.locks import TimedLock
from probes.recorder import RingRecorder
from probes.records import StepRecord
from tests.gpu.engine_checks import BLOCK_SIZE, Load, make_runner
from tests.gpu.models import RandomModel
from tests.gpu.report import Row


class Interference(NamedTuple):
    """Streams that decode, and long prompts that arrive beside them. Bounded by its number of steps."""

    streams: int = 16
    stream_prompt: int = 256
    quiet_steps: int = 200
    disturbed_steps: int = 400
    long_prompt: int = 4096
    every_steps: int = 25
    budget: int = 8192
    smaller_budget: int = 256

    @property
    def load(self) -> Load:
        """The pool and batch it needs: all streams to their end, and some long prompts at the same time."""
        tokens = self.streams * (self.stream_prompt + self.stream_tokens) + 8 * self.long_prompt
        requests = self.streams + 8
        return Load(requests=requests, prompt_tokens=-(-tokens // requests), output_tokens=BLOCK_SIZE)

    @property
    def stream_tokens(self) -> int:
        """None ends before the drill does."""
        return 2 * (self.quiet_steps + 2 * self.disturbed_steps)


@dataclass(slots=True)
class _Bench:
    """An engine core on a runner; every step is on record."""

    runner: CudaRunner
    drill: Interference
    recorder: RingRecorder = field(default_factory=RingRecorder)
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(5))
    core: EngineCore = field(init=False)
    num_added: int = 0

    def __post_init__(self) -> None:
        load, drill = self.drill.load, self.drill
        config = SchedulerConfig(
            max_batched_tokens=drill.budget,
            max_sequences=load.requests,
            block_size=BLOCK_SIZE,
            kv_blocks=load.blocks,
            max_model_len=max(drill.stream_prompt + drill.stream_tokens, drill.long_prompt + 2),
            enable_prefix_cache=False,
        )
        scheduler = Scheduler(config, CacheScope(weights="random"))
        self.core = EngineCore(scheduler, self.runner, self.recorder, TimedLock(), frozenset())
        for _ in range(drill.streams):
            self.add(drill.stream_prompt, drill.stream_tokens)
        while not all(request.is_decoding for request in scheduler.requests.values()):
            self.core.step(lambda _: None)

    def add(self, prompt_tokens: int, max_tokens: int) -> None:
        vocab = self.runner.geometry.vocab_size
        prompt = torch.randint(0, vocab, (prompt_tokens,), generator=self.generator).tolist()
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        self.core.scheduler.add(Request(f"r{self.num_added}", prompt, params, arrival_ns=perf_counter_ns()))
        self.num_added += 1

    def run(self, steps: int, *, disturbed: bool) -> list[StepRecord]:
        first = self.recorder.steps_since(0).records[-1].step_id + 1
        for number in range(steps):
            if disturbed and number % self.drill.every_steps == 0:
                self.add(self.drill.long_prompt, 2)
            self.core.step(lambda _: None)
        return self.recorder.steps_since(first).records

    def settle(self) -> None:
        """Until only the streams are left."""
        while len(self.core.scheduler.requests) > self.drill.streams:
            self.core.step(lambda _: None)

    def signals(self, records: list[StepRecord]) -> Signals:
        """As an observer over HTTP has them from the records."""
        signals = Signals("stallscope", (records[-1].end_ns - records[0].start_ns) / 1e9, 2)
        signals.steps, signals.steps_source = tuple(records), "step records"
        signals.info = {key: str(value) for key, value in self.runner.geometry._asdict().items()}
        signals.counters = {
            "tokens_prefill": Counter(sum(record.prefill_tokens or 0 for record in records), "records"),
            "tokens_decode": Counter(sum(record.num_decode_seqs for record in records), "records"),
        }
        signals.gauges = {
            "max_batched_tokens": Gauge((self.core.scheduler.config.max_batched_tokens,), "scheduler"),
            "bandwidth_ceiling": Gauge((self.runner.bandwidth_bytes_per_second,), "runner"),
            "flops_ceiling": Gauge((self.runner.flops_per_second,), "runner"),
        }
        return signals


def interference(device: Device, model: RandomModel, drill: Interference) -> Iterator[Row]:
    """Quiet, then disturbed under the large budget, then under the small one; the second of them is diagnosed."""
    runner = make_runner(device, model, drill.load)
    bench = _Bench(runner, drill)
    bench.run(drill.every_steps, disturbed=True)  # warm-up: kernels of every shape are compiled now
    bench.settle()
    quiet = bench.signals(bench.run(drill.quiet_steps, disturbed=False))
    disturbed = bench.signals(bench.run(drill.disturbed_steps, disturbed=True))
    found = diagnose("drill", disturbed, quiet, is_live=True)
    bench.settle()
    bench.core.scheduler.set_limits(max_batched_tokens=drill.smaller_budget)
    chunked = bench.signals(bench.run(drill.disturbed_steps, disturbed=True))
    yield from _gaps(diagnose("drill", quiet), "quiet")
    yield from _gaps(found, f"{drill.long_prompt}-token prompts, budget {drill.budget}")
    yield from _gaps(
        diagnose("drill", chunked, quiet), f"{drill.long_prompt}-token prompts, budget {drill.smaller_budget}"
    )
    is_named = float(found.primary == "prefill_interference")
    yield Row("interference is what the diagnosis names", is_named, "", 1.0, at_least=True, note=f"{found.primary}")


def _gaps(diagnosis: Diagnosis, what: str) -> Iterator[Row]:
    for q in (0.5, 0.99):
        latency = diagnosis.case.incident.latency("inter_token_latency", q)
        if latency is not None:
            bounds, samples, _ = latency
            yield Row(f"{what}: gap between tokens, p{100 * q:.0f}", bounds.high * 1e3, "ms", note=f"{samples} gaps")
