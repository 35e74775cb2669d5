"""The engine end to end on a random model: tolerance of chunking, throughput, gaps between tokens, graphs, probes."""

from collections.abc import Iterator
from itertools import pairwise
from statistics import median, quantiles
from time import perf_counter, perf_counter_ns
from typing import NamedTuple

import torch
from torch import Tensor

from diagnose.roofline import DeviceCeilings, ModelShape, StepShape, statement
from engine.config import SchedulerConfig
from engine.core import EngineCore
from engine.prefix_cache import CacheScope
from engine.request import Request, SamplingParams
from engine.runner.cuda import CudaOptions, CudaRunner
from engine.runner.device import Device
from engine.scheduler import Scheduler
from engine.step import ScheduledSequence, ScheduledStep, plan_batch
from probes.arithmetic import ByteRate
from probes.locks import TimedLock
from probes.optime import NoLaps
from probes.recorder import NullRecorder, Recorder, RingRecorder
from probes.records import OpClass, StepKind, StepRecord
from tests.gpu.models import RandomModel
from tests.gpu.report import Row

BLOCK_SIZE = 16


class Load(NamedTuple):
    """Requests that arrive at once, equal in length."""

    requests: int = 64
    prompt_tokens: int = 512
    output_tokens: int = 128
    max_batched_tokens: int = 2048

    @property
    def blocks(self) -> int:
        return self.requests * -(-(self.prompt_tokens + self.output_tokens) // BLOCK_SIZE)


class Outcome(NamedTuple):
    seconds: float
    tokens: int
    emissions_ns: list[int]
    """When each step that emitted handed its tokens out."""
    records: list[StepRecord]
    """Empty when nothing was recorded."""

    def gaps_ms(self, skip: int = 0) -> list[float]:
        stamps = self.emissions_ns[skip:]
        return [(later - earlier) / 1e6 for earlier, later in pairwise(stamps)]


def make_runner(device: Device, model: RandomModel, load: Load, **options: object) -> CudaRunner:
    runner = CudaRunner(model, device, CudaOptions(max_sequences=load.requests, **options))  # type: ignore[arg-type]
    runner.allocate_kv(load.blocks, BLOCK_SIZE)
    return runner


def run_load(runner: CudaRunner, load: Load, *, record: bool = True, seed: int = 0) -> Outcome:
    config = SchedulerConfig(
        max_batched_tokens=load.max_batched_tokens,
        max_sequences=load.requests,
        block_size=BLOCK_SIZE,
        kv_blocks=load.blocks,
        max_model_len=load.prompt_tokens + load.output_tokens,
        enable_prefix_cache=False,
    )
    ring = RingRecorder()
    recorder: Recorder = ring if record else NullRecorder()
    core = EngineCore(Scheduler(config, CacheScope(weights="random")), runner, recorder, TimedLock(), frozenset())
    generator = torch.Generator().manual_seed(seed)
    params = SamplingParams(max_tokens=load.output_tokens, ignore_eos=True)
    for number in range(load.requests):
        prompt = torch.randint(0, runner.geometry.vocab_size, (load.prompt_tokens,), generator=generator).tolist()
        core.scheduler.add(Request(f"r{number}", prompt, params, arrival_ns=perf_counter_ns()))
    emissions: list[int] = []
    tokens = 0

    def hand_out(outputs: list[object]) -> None:
        nonlocal tokens
        tokens += len(outputs)
        if outputs:
            emissions.append(perf_counter_ns())

    start = perf_counter()
    while core.has_work:
        core.step(hand_out)  # type: ignore[arg-type]
    return Outcome(perf_counter() - start, tokens, emissions, ring.steps_since(0).records)


def chunked_against_whole(device: Device, model: RandomModel, prompt_tokens: int, chunk: int) -> Iterator[Row]:
    """Sums in another order are not equal in 16 bits; what must hold is a tolerance."""
    load = Load(requests=1, prompt_tokens=prompt_tokens, output_tokens=BLOCK_SIZE)
    runner = make_runner(device, model, load, graphs=False)
    prompt = torch.randint(0, model.config.vocab_size, (prompt_tokens,), generator=torch.Generator().manual_seed(3))
    whole = prompt_logits(runner, prompt.tolist(), prompt_tokens)
    chunked = prompt_logits(runner, prompt.tolist(), chunk)
    again = prompt_logits(runner, prompt.tolist(), prompt_tokens)
    name = f"{runner.attention_backend}, chunks of {chunk} against {prompt_tokens}"
    yield Row(f"{name}: logits", float((chunked - whole).norm() / whole.norm()), "rel. error", 0.05)
    agreement = float((chunked.argmax(-1) == whole.argmax(-1)).float().mean())
    yield Row(f"{name}: same best token", agreement, "share", 0.9, at_least=True)
    yield Row("the same twice", float((again - whole).abs().max()), "max. difference", 0.0)


def prompt_logits(runner: CudaRunner, prompt: list[int], chunk: int) -> Tensor:
    """Logits of every position, float32: [prompt, vocab]."""
    request = Request("r", prompt, SamplingParams(), arrival_ns=0)
    request.block_ids = list(range(-(-len(prompt) // BLOCK_SIZE)))
    parts = []
    for start in range(0, len(prompt), chunk):
        rows = min(chunk, len(prompt) - start)
        sequence = ScheduledSequence(request, start, rows, is_decode=False, samples=True)
        plan = plan_batch(ScheduledStep(prefills=[sequence]), BLOCK_SIZE)
        plan.sample_rows = list(range(rows))
        with torch.inference_mode():
            parts.append(runner.forward(plan, NoLaps()).float())
            parts[-1].sum().item()  # waits: the next chunk's inputs go through the same buffer
    return torch.cat(parts)


def serving(device: Device, model: RandomModel, load: Load) -> Iterator[Row]:
    """Throughput, gaps and utilisation, with graphs and without, on one set of weights."""
    for graphs in (True, False):
        runner = make_runner(device, model, load, graphs=graphs)
        run_load(runner, load)  # warm-up: kernels of every shape are compiled now
        outcome = run_load(runner, load)
        name = f"{model.name}, {runner.attention_backend}, graphs {'on' if graphs else 'off'}"
        yield Row(f"{name}: output", outcome.tokens / outcome.seconds, "tokens/s")
        decodes = [record for record in outcome.records if record.kind is StepKind.DECODE]
        gaps = outcome.gaps_ms(skip=len(outcome.emissions_ns) - len(decodes))
        yield Row(f"{name}: gap between tokens, p50 (decodes only)", median(gaps), "ms")
        yield Row(f"{name}: gap between tokens, p99 (decodes only)", quantiles(gaps, n=100)[98], "ms")
        yield from utilisation(runner, outcome, name)
        del runner
        _release(device)


def utilisation(runner: CudaRunner, outcome: Outcome, name: str) -> Iterator[Row]:
    """MBU of pure decode steps and MFU of pure prefill steps: nominal bytes and counted FLOPs against the ceilings."""
    labels = {key: str(value) for key, value in runner.geometry._asdict().items()}
    shape = ModelShape.from_labels(labels)
    bandwidth = ByteRate(runner.bandwidth_bytes_per_second)
    ceilings = DeviceCeilings(bandwidth, runner.flops_per_second, runner.attention_backend)
    for kind, what in ((StepKind.DECODE, "MBU"), (StepKind.PREFILL, "MFU")):
        records = [record for record in outcome.records if record.kind is kind]
        for source in ("host", "device"):
            shares = []
            for record in records:
                ns = record.end_ns - record.start_ns if source == "host" else sum(record.device_ns or ())
                step = StepShape.from_record(record)
                assert step is not None
                found = statement(step, shape, ceilings)
                use = found.memory_utilisation if what == "MBU" else found.compute_utilisation
                share = use(ns / 1e9) if ns else None
                if share is not None:
                    shares.append(share)
            value = median(shares) if shares else None
            yield Row(f"{name}: {what} of {kind} steps, {source} time", value, "share", note=f"{len(shares)} steps")
    timed = [record.device_ns for record in outcome.records if record.device_ns is not None]
    yield Row(f"{name}: steps with a device time", len(timed) / len(outcome.records), "share", 0.95, at_least=True)
    total = sum(map(sum, timed)) or 1
    for op, column in zip(OpClass, zip(*timed, strict=True), strict=True):
        if sum(column):
            yield Row(f"{name}: device time in {op}", sum(column) / total, "share")


def probe_cost(device: Device, model: RandomModel, load: Load, rounds: int = 3) -> Iterator[Row]:
    """Records, counters and device times against none of them, in turns, on decode steps."""
    runners = {on: make_runner(device, model, load, device_times=on, profile_every=0) for on in (True, False)}
    medians: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds + 1):
        for on, runner in runners.items():
            outcome = run_load(runner, load, record=on)
            if number:  # the first round compiles
                medians[on].append(median(outcome.gaps_ms(skip=len(outcome.emissions_ns) // 2)))
    with_probes, without = min(medians[True]), min(medians[False])
    yield Row("decode step without probes", without, "ms")
    yield Row("decode step with probes", with_probes, "ms")
    yield Row("cost of probes", 100 * (with_probes / without - 1), "%", note="budget: 1 % of a 5 ms step")
    runner = make_runner(device, model, load, profile_every=40)
    run_load(runner, load)
    outcome = run_load(runner, load)
    gaps = sorted(outcome.gaps_ms(skip=len(outcome.emissions_ns) // 2))
    yield Row("a step that is profiled", gaps[-1], "ms", note=f"median step {median(gaps):.2f} ms")


def _release(device: Device) -> None:
    if device.torch_device.type == "cuda":
        torch.cuda.empty_cache()
