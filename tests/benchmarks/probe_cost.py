"""What the probes cost: `python -m tests.benchmarks.probe_cost`. Prints a table and asserts nothing.

Thread CPU time throughout, contenders taking turns, since the machine is shared. First single operations, each with the best
of many rounds; then whole engine steps with the probes on and off, in pairs of blocks whose order is drawn, with a bootstrap
interval of the median difference: of the tiny model, and without a forward pass, where a microsecond can be seen. The same with
the probes off in both arms says what the machine makes of no difference. The goal is under 1 % of a 5 ms step.
"""

import argparse
import json
import os
import random
import threading
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from statistics import median
from time import perf_counter_ns, thread_time_ns
from types import TracebackType
from typing import Any, NamedTuple

import torch

from engine.config import SchedulerConfig
from engine.core import EngineCore
from engine.model.registry import load_model
from engine.prefix_cache import CacheScope
from engine.request import Request, SamplingParams
from engine.runner.base import Runner, StepResult
from engine.runner.cpu import CpuRunner
from engine.scheduler import Scheduler
from engine.step import BatchPlan
from probes.locks import TimedCondition, TimedLock, TimedRLock
from probes.prometheus import EngineCollector, exposition
from probes.recorder import COUNTED_TOGETHER, NullRecorder, RingRecorder
from probes.records import BlockCensus
from probes.snapshot import EngineSnapshot
from probes.wire import StepsHeader, encode_steps
from tests.engine.fakes import FakeRunner
from tests.probes.records import make_record

STEP_NS = 5_000_000
"""The decode step that the goal speaks of."""
ROUNDS = 40
LOOPS = 2_000
SCRAPED_STEPS = 10_000
SEQUENCES = 8
BLOCK_STEPS = COUNTED_TOGETHER
"""Each block with the probes on counts once."""
RESAMPLES = 2_000


class Row(NamedTuple):
    name: str
    value: float
    unit: str
    times_bare: float | None = None
    """Against the bare lock of its kind."""


# ---- Single operations


def in_turns(contenders: dict[str, Callable[[], object]], loops: int, rounds: int = ROUNDS) -> dict[str, float]:
    """Best ns of one call by name, the loop around it taken off."""
    best = dict.fromkeys([*contenders, ""], float("inf"))
    for _ in range(rounds):
        for name, work in [*contenders.items(), ("", _nothing)]:
            started = thread_time_ns()
            for _ in range(loops):
                work()
            best[name] = min(best[name], (thread_time_ns() - started) / loops)
    loop = best.pop("")
    return {name: ns - loop for name, ns in best.items()}


def _nothing() -> None:
    pass


class PythonLock:
    """The least that a context manager written in Python can do around a lock."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def _taking(lock: Any) -> Callable[[], None]:
    def take() -> None:
        with lock:
            pass

    return take


def _notifying(lock: Any, condition: Any) -> Callable[[], None]:
    def notify() -> None:
        with lock:
            condition.notify()

    return notify


def locks() -> list[Row]:
    condition, timed = threading.Condition(threading.Lock()), TimedLock()
    contenders: dict[str, Callable[[], object]] = {
        "Lock, bare": _taking(threading.Lock()),
        "Lock, a context manager in Python": _taking(PythonLock()),
        "Lock, timed": _taking(TimedLock().site("site")),
        "RLock, bare": _taking(threading.RLock()),
        "RLock, timed": _taking(TimedRLock().site("site")),
        "Condition, bare: take, notify": _notifying(condition, condition),
        "Condition, timed: take, notify": _notifying(timed.site("site"), TimedCondition(timed)),
        "clock": perf_counter_ns,
    }
    best = in_turns(contenders, LOOPS)
    bare = {name.split(",")[0]: ns for name, ns in best.items() if "bare" in name}
    return [
        Row(name, ns, "ns", ns / bare[kind] if (kind := name.split(",")[0]) in bare else None)
        for name, ns in best.items()
    ]


def records() -> list[Row]:
    ring, null, record = RingRecorder(), NullRecorder(), make_record(7, num_regular_gaps=8, num_decode_seqs=8)
    following = (record._replace(step_id=number) for number in count())
    steps = iter(list(islice(following, ROUNDS * LOOPS)))
    fields = record._asdict()
    make = type(record)
    best = in_turns(
        {
            "step record, built": lambda: make(**fields),
            "step record, RingRecorder.on_step": lambda: ring.on_step(next(steps)),
            "step record, NullRecorder.on_step": lambda: null.on_step(record),
        },
        LOOPS,
    )
    return [Row(name, ns, "ns") for name, ns in best.items()]


def scrapes() -> list[Row]:
    """Of an engine that has executed 10,000 steps: the ring holds the last 8,192."""
    recorder, lock = RingRecorder(), TimedLock()
    for name in ("schedule", "commit", "submit", "snapshot", "admin", "idle_check"):
        with lock.site(name):
            pass
    for step_id in range(SCRAPED_STEPS):
        recorder.on_step(make_record(step_id))
    collector = EngineCollector(recorder, lock, _snapshot)
    header = StepsHeader("engine", SCRAPED_STEPS, 0, 0, 0)
    best = in_turns(
        {
            "scrape of /metrics": lambda: exposition(collector),
            "last 100 steps, read and encoded": lambda: list(
                encode_steps(header, recorder.steps_since(SCRAPED_STEPS - 100).records)
            ),
            "all steps held, read": lambda: recorder.steps_since(0),
        },
        loops=5,
        rounds=10,
    )
    return [Row(f"{name}, {SCRAPED_STEPS:,} steps", ns / 1e6, "ms") for name, ns in best.items()]


def _snapshot() -> EngineSnapshot:
    return EngineSnapshot(
        census=BlockCensus(1, 2, 3),
        num_running=8,
        num_waiting=0,
        waiting_by_reason={},
        prefix_query_tokens=0,
        prefix_hit_tokens=0,
        max_batched_tokens=512,
        max_sequences=64,
        memory_bytes={"total": 4, "reserved": 3, "weights": 1, "kv_pool": 2},
        bandwidth_bytes_per_second=1e9,
        start_unix=1.0,
        info={"version": "1", "model": "tiny"},
    )


# ---- Whole steps


class BareSite:
    """A site that times nothing."""

    last_wait_ns = last_hold_ns = 0

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> "BareSite":
        self._lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class BareLock(TimedLock):
    """The scheduler lock without its probe."""

    def site(self, name: str) -> Any:
        return BareSite(self.raw)


class NoForward(FakeRunner):
    """A runner whose forward pass takes no time."""

    def execute(self, plan: BatchPlan) -> StepResult:
        return StepResult([9] * len(plan.sample_rows), 1, 1, 1, None)


RUNNERS: dict[str, Callable[[], Runner | FakeRunner]] = {
    "tiny model": lambda: CpuRunner(load_model("tiny", "float32"), threads=1),
    "no forward pass": NoForward,
}


class SwitchedEngine:
    """One engine whose probes are switched on and off: two engines would differ by where their weights lie, too.

    `SEQUENCES` streams decode for as long as the benchmark runs.
    """

    def __init__(self, runner: Any) -> None:
        config = SchedulerConfig(512, SEQUENCES, 16, 4096, 8000, False)
        runner.allocate_kv(config.kv_blocks, config.block_size)
        lock, bare = TimedLock(), BareLock()
        core = EngineCore(Scheduler(config, CacheScope(weights="tiny")), runner, RingRecorder(), lock, frozenset())
        self.core: Any = core
        self._arms = {
            True: (core._recorder, core._schedule_site, core._commit_site),
            False: (NullRecorder(), bare.site("schedule"), bare.site("commit")),
        }
        for number in range(SEQUENCES):
            params = SamplingParams(max_tokens=7000, ignore_eos=True)
            core.scheduler.add(Request(f"r{number}", [number + 1] * 16, params, arrival_ns=0))
        for _ in range(20):
            core.step(_discard)

    def block(self, probes: bool) -> float:
        """ns per step."""
        core = self.core
        core._recorder, core._schedule_site, core._commit_site = self._arms[probes]
        started = thread_time_ns()
        for _ in range(BLOCK_STEPS):
            core.step(_discard)
        return (thread_time_ns() - started) / BLOCK_STEPS


def _discard(_: object) -> None:
    pass


def whole_steps(what: str, pairs: int, *, same: bool = False, seed: int = 0) -> dict[str, Any]:
    """`same`: both arms with the probes off, which is what the measurement itself is worth."""
    draw = random.Random(seed)
    engine = SwitchedEngine(RUNNERS[what]())
    found = []
    for _ in range(pairs):
        order = [True, False] if draw.random() < 0.5 else [False, True]
        found.append({arm: engine.block(arm and not same) for arm in order})
    added = [pair[True] - pair[False] for pair in found]
    resampled = sorted(median(draw.choices(added, k=pairs)) for _ in range(RESAMPLES))
    low, high = resampled[RESAMPLES // 40], resampled[-RESAMPLES // 40]
    return {
        "what": what,
        "both_off": same,
        "pairs": pairs,
        "steps_per_block": BLOCK_STEPS,
        "sequences": SEQUENCES,
        "step_off_us": median(pair[False] for pair in found) / 1e3,
        "step_on_us": median(pair[True] for pair in found) / 1e3,
        "added_us": median(added) / 1e3,
        "added_us_95": [low / 1e3, high / 1e3],
        "throughput_ratio": median(pair[False] / pair[True] for pair in found),
        "share_of_5_ms_step": median(added) / STEP_NS,
        "share_of_5_ms_step_95": [low / STEP_NS, high / STEP_NS],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=400, help="pairs of blocks of steps (default: 400)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [*locks(), *records(), *scrapes()]
    for row in rows:
        against = "" if row.times_bare is None else f"  {row.times_bare:.1f}x bare"
        print(f"{row.name:<48}{row.value:>10.2f} {row.unit}{against}")
    steps = [whole_steps(what, options.pairs, same=same) for what in RUNNERS for same in (False, True)]
    for found in steps:
        low, high = found["added_us_95"]
        arms = "off and off again" if found["both_off"] else "off and on"
        print(
            f"engine step, {SEQUENCES} decodes, {found['what']}, probes {arms}: {found['step_off_us']:.0f} us; "
            f"added {found['added_us']:.1f} us (95 %: {low:.1f} to {high:.1f}), "
            f"{found['share_of_5_ms_step']:.2%} of a 5 ms step"
        )
    if options.json:
        figures = {"cpus": os.cpu_count(), "rows": [row._asdict() for row in rows], "whole_steps": steps}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
