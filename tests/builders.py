"""Synthetic engines for the diagnosis: step records of known composition, signals, and real pages of text.

The pages are written by the product's own exporter from the same records, so that a test can say "an engine that did this"
once, and look at it through records, through histograms alone, or through a recording.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from diagnose.assembly import assemble
from diagnose.observation import Observation, observe
from diagnose.policy import DEFAULT_POLICY
from diagnose.signals import Counter, Gauge, HistogramWindow, Signals
from probes.catalog import LATENCY_BOUNDS_SECONDS
from probes.gpu import GpuReading, GpuSample
from probes.locks import TimedLock
from probes.prometheus import EngineCollector, exposition
from probes.recorder import RingRecorder
from probes.recording import Entry
from probes.records import BlockCensus, StepRecord, step_kind
from probes.snapshot import EngineSnapshot
from probes.wire import StepsHeader, encode_steps
from tests.probes.gpus import FixedMonitor, healthy_gpu
from tests.probes.records import make_record as make_step

__all__ = ["Engine", "Machine", "Plan", "make_exposition", "make_signals", "make_step", "make_steps", "watch"]

US, MS = 1_000, 1_000_000
START_UNIX = 1_700_000_000.0
BUDGET = 2048
HEALTHY_GPU = healthy_gpu()


@dataclass(frozen=True, slots=True)
class Machine:
    """What work costs, as the CPU time of an undisturbed thread. `slowdown` is elapsed over CPU time."""

    base_us: float = 4000
    per_sequence_us: float = 250
    per_context_ns: float = 200
    per_prefill_token_us: float = 30
    per_pair_ns: float = 2
    lock_us: float = 20
    schedule_us: float = 200
    prepare_us: float = 150
    postprocess_us: float = 120
    idle_us: float = 100
    unbooked_us: float = 0
    """Between lock request and emission, in no part: what the account must call other."""
    slowdown: float = 1.0
    noise: float = 0.0
    """Relative spread of each step's cost."""

    def decode_us(self, sequences: int, context: int) -> float:
        return self.base_us + self.per_sequence_us * sequences + self.per_context_ns * context / 1e3

    def prefill_us(self, tokens: int, pairs: int) -> float:
        return self.per_prefill_token_us * tokens + self.per_pair_ns * pairs / 1e3


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step does."""

    sequences: int = 8
    context: int = 4000
    """KV positions of all decode sequences together."""
    prefill: int = 0
    recompute: int = 0
    history: int = 0
    """Positions that the chunk finds already computed."""
    late_ms: tuple[float, ...] = ()
    preempted: int = 0
    disturbed_us: float = 0
    """Elapsed time in which the thread had no core."""


def varied(index: int) -> Plan:
    """Batch and context move independently, so that a fit can tell them apart."""
    sequences = 4 + index % 7
    return Plan(sequences, sequences * (300 + (index * 37) % 500))


def constant(index: int) -> Plan:
    return Plan(8, 8 * (300 + (index * 37) % 500))


def with_prefill(every: int, tokens: int, base: Callable[[int], Plan] = varied) -> Callable[[int], Plan]:
    """A chunk of about `tokens` in each `every`-th step; the doses vary by two, as real prompts do."""

    def plan(index: int) -> Plan:
        dose = tokens if index // every % 2 else tokens // 2
        return replace(base(index), prefill=dose) if index % every == every - 1 else base(index)

    return plan


def make_steps(
    count: int,
    plan: Callable[[int], Plan] = varied,
    machine: Machine | None = None,
    *,
    first_id: int = 0,
    start_ns: int = 1_000 * MS,
    seed: int = 1,
    census: BlockCensus | None = None,
    **over: Any,
) -> list[StepRecord]:
    """Records with consistent stamps: each step starts where the one before ended, plus the idle time."""
    machine = machine or Machine()
    random, records, clock = Random(seed), [], start_ns
    for index in range(count):
        record = _step(plan(index), machine, random, first_id + index, clock, first=index == 0)
        records.append(record._replace(census=census or BlockCensus(40, 20, 40), **over))
        clock = record.end_ns + round(machine.idle_us * US)
    return records


def _step(plan: Plan, machine: Machine, random: Random, step_id: int, start: int, *, first: bool) -> StepRecord:
    chunk = plan.prefill + plan.recompute
    pairs = chunk * plan.history + chunk * (chunk + 1) // 2
    cost = machine.decode_us(plan.sequences, plan.context) if plan.sequences else 0.0
    cpu_us = (cost + machine.prefill_us(chunk, pairs)) * max(0.2, random.gauss(1.0, machine.noise))
    elapsed = round((cpu_us * machine.slowdown + plan.disturbed_us) * US)
    lock, schedule, prepare = (round(us * US) for us in (machine.lock_us, machine.schedule_us, machine.prepare_us))
    emit = start + lock + schedule + prepare + elapsed + round(machine.unbooked_us * US)
    late = tuple(round(ms * MS) for ms in plan.late_ms)
    return make_step(
        step_id,
        start_ns=start,
        emit_ns=emit,
        end_ns=emit + round(machine.postprocess_us * US),
        kind=step_kind(plan.sequences, int(chunk > 0)),
        num_decode_seqs=plan.sequences,
        num_prefill_seqs=int(chunk > 0),
        prefill_tokens=plan.prefill,
        recomputed_tokens=plan.recompute,
        decode_context_tokens=plan.context,
        prefill_attention_pairs=pairs,
        emitted_tokens=plan.sequences,
        max_batched_tokens=BUDGET,
        schedule_ns=schedule,
        prepare_ns=prepare,
        forward_ns=elapsed * 9 // 10,
        sample_ns=elapsed - elapsed * 9 // 10,
        postprocess_ns=round(machine.postprocess_us * US),
        lock_wait_ns=lock,
        host_gap_ns=None if first else round(machine.idle_us * US),
        forward_cpu_ns=round(cpu_us * US),
        num_running=plan.sequences,
        num_preempted=plan.preempted,
        num_regular_gaps=0 if first else plan.sequences - len(late),
        late_gaps_ns=late,
    )


ENGINE_INFO = {
    "version": "0.1.0",
    "model": "tiny",
    "weight_bytes": "1000000",
    "kv_bytes_per_token": "1000",
    "block_size": "16",
}


@dataclass(slots=True)
class Engine:
    """An engine's counters and gauges, grown by records and shown as text by the product's own exporter."""

    start_unix: float = START_UNIX
    engine_id: str = "engine-1"
    state: dict[str, Any] = field(default_factory=dict)
    """Overrides of the snapshot."""
    recorder: RingRecorder = field(default_factory=RingRecorder)
    lock: TimedLock = field(default_factory=TimedLock)
    front_end_seconds: float | None = None
    """From each hand-out to the front end; None: not measured, as in another engine."""

    def __post_init__(self) -> None:
        self.lock.site("schedule").wait.observe(0)

    def run(self, records: Iterable[StepRecord]) -> None:
        for record in records:
            self.recorder.on_step(record)
            if self.front_end_seconds is not None:
                self.recorder.on_delivered(round(self.front_end_seconds * 1e9))

    def requests(self, count: int, ttft_seconds: float, queue_seconds: float = 0.0) -> None:
        for _ in range(count):
            self.recorder.on_first_scheduled(round(queue_seconds * 1e9))
            self.recorder.on_first_token(round(ttft_seconds * 1e9))

    def page(self, **state: Any) -> str:
        return make_exposition(self.recorder, self.lock, start_unix=self.start_unix, **(self.state | state))

    def steps(self, records: Sequence[StepRecord], lost: int = 0) -> str:
        next_id = records[-1].step_id + 1 if records else 0
        header = StepsHeader(self.engine_id, next_id, lost, records[-1].end_ns if records else 0, 0)
        return "".join(encode_steps(header, records))


def make_exposition(recorder: RingRecorder | None = None, lock: TimedLock | None = None, **state: Any) -> str:
    """A page of the stallscope dialect."""
    return exposition(make_collector(recorder, lock, **state)).decode()


def make_collector(
    recorder: RingRecorder | None = None,
    lock: TimedLock | None = None,
    gpu: GpuSample | None = HEALTHY_GPU,
    **state: Any,
) -> EngineCollector:
    """Over a snapshot that does not change. `gpu` None: the engine knows of none."""
    defaults: dict[str, Any] = {
        "census": BlockCensus(40, 20, 40),
        "num_running": 8,
        "num_waiting": 0,
        "waiting_by_reason": {},
        "prefix_query_tokens": 0,
        "prefix_hit_tokens": 0,
        "max_batched_tokens": BUDGET,
        "max_sequences": 64,
        "memory_bytes": {"total": 100 << 30, "reserved": 60 << 30, "weights": 20 << 30, "kv_pool": 40 << 30},
        "bandwidth_bytes_per_second": 10e9,
        "flops_per_second": 50e9,
        "start_unix": START_UNIX,
        "info": ENGINE_INFO,
    }
    snapshot = EngineSnapshot(**(defaults | state))
    monitor = None if gpu is None else FixedMonitor(GpuReading((gpu,)))
    return EngineCollector(recorder or RingRecorder(), lock or TimedLock(), lambda: snapshot, monitor)


def watch(
    records: Sequence[StepRecord],
    *,
    engine: Engine | None = None,
    show_records: bool = True,
    seconds: float = 20.0,
    ttft: float | None = None,
    queue: float = 0.0,
    target: str = "http://127.0.0.1:8000",
    **state: Any,
) -> Observation:
    """What a watch of an engine that executes `records` brings home: a page before, one in the middle, one after."""
    engine = engine or Engine()
    engine.state |= state
    entries = [Entry(START_UNIX, "exposition", engine.page())]
    half = len(records) // 2
    for at, part in ((seconds / 2, records[:half]), (seconds, records[half:])):
        engine.run(part)
        if ttft is not None:
            engine.requests(10, ttft, queue)
        entries.append(Entry(START_UNIX + at, "exposition", engine.page()))
        if show_records:
            entries.append(Entry(START_UNIX + at, "steps", engine.steps(part)))
    return observe(target, entries)


def build_signals(observation: Observation) -> Signals:
    """Under the documented policy."""
    return assemble(observation, DEFAULT_POLICY).signals


def make_signals(
    *,
    counters: Mapping[str, float] | None = None,
    gauges: Mapping[str, float | Sequence[float]] | None = None,
    histograms: Mapping[str, Mapping[float, float]] | None = None,
    **fields: Any,
) -> Signals:
    """A window of 20 s. `histograms` maps a name to {seconds: how many}, put into the engine's own buckets."""
    defaults: dict[str, Any] = {"dialect": "stallscope", "length_seconds": 20.0, "num_scrapes": 3}
    signals = Signals(**(defaults | {"free_includes_reclaimable": False} | fields))
    signals.counters = {name: Counter(value, f"x_{name}") for name, value in (counters or {}).items()}
    for name, values in (gauges or {}).items():
        series = (float(values),) if isinstance(values, int | float) else tuple(values)
        signals.gauges[name] = Gauge(series, f"x_{name}")
    signals.histograms = {name: make_histogram(counts) for name, counts in (histograms or {}).items()}
    return signals


def make_histogram(values: Mapping[float, float]) -> HistogramWindow:
    bounds = LATENCY_BOUNDS_SECONDS
    counts = [0.0] * (len(bounds) + 1)
    for value, count in values.items():
        counts[sum(bound < value for bound in bounds)] += count
    return HistogramWindow(bounds, tuple(counts), sum(v * n for v, n in values.items()), "x_seconds")
