"""What the vLLM probe costs: `make bench-vllm`. One engine, its hooks put on and taken off in turns.

A tiny Llama on the CPU stands for a fast device: its steps take milliseconds, so that the shares below are of a step that is
short for vLLM. Per load, blocks of steps alternate on-off-off-on; each pair of neighbouring blocks gives one difference.
Then the hooks alone, timed one by one. Prints a table, writes JSON with --json FILE, and asserts nothing.
"""

import argparse
import json
import os
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
os.environ["STALLSCOPE_PROBE"] = "0"  # put on by hand here

from probes.recorder import RingRecorder
from probes.vllm.census import PoolCensus
from probes.vllm.engine import hook_pool, hook_scheduler
from probes.vllm.hooks import Hook, Hooks
from probes.vllm.steps import StepProbe
from probes.vllm.worker import WorkerProbe
from tests.vllm.tiny import engine_core, make_llm

BLOCK = 16
STEPS = 16
"""Per block of one arm."""
PAIRS = 40
CHUNK = 256


class TimedHooks(Hooks):
    """Adds up what each hook takes, the call to it included."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: dict[str, list[int]] = defaultdict(list)

    def _run(self, hook: Hook, args: tuple[Any, ...], vital: bool) -> None:
        begin = perf_counter_ns()
        super()._run(hook, args, vital)
        self.spent[hook.__qualname__].append(perf_counter_ns() - begin)


class Engine:
    def __init__(self, directory: Path, max_sequences: int) -> None:
        self.llm = make_llm(
            directory,
            max_model_len=4096,
            block_size=32,
            max_num_seqs=max_sequences,
            max_num_batched_tokens=max_sequences + CHUNK,
            enable_prefix_caching=True,
        )
        self.core = engine_core(self.llm)
        self.hooks: Hooks | None = None
        self._names = count()

    def on(self, hooks: Hooks) -> None:
        scheduler = self.core.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        census = PoolCensus(pool, lambda key: key[:-4])
        worker, wrapper = WorkerProbe(hooks), type(self.core.model_executor.driver_worker)
        hook_pool(hooks, pool, census)
        hook_scheduler(hooks, scheduler, StepProbe(scheduler, census, RingRecorder(), 32))
        hooks.add(wrapper, "execute_model", before=worker.before_execute, after=worker.after_execute)
        self.hooks = hooks

    def off(self) -> None:
        assert self.hooks is not None and self.hooks.errors == 0
        self.hooks.remove()

    def add(self, prompt_tokens: int, new_tokens: int) -> None:
        from vllm import SamplingParams

        number = next(self._names)
        prompt = [(number * 31 + position * 7) % 509 for position in range(prompt_tokens)]
        params = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        self.llm.llm_engine.add_request(f"r{number}", {"prompt_token_ids": prompt}, params)

    def step(self) -> None:
        self.llm.llm_engine.step()

    def finish_all(self) -> None:
        self.core.abort_requests(list(self.core.scheduler.requests))
        while self.llm.llm_engine.has_unfinished_requests() and self.core.scheduler.requests:
            self.step()
        self.step()


def decodes(engine: Engine, sequences: int) -> Callable[[], None]:
    """`sequences` streams that decode, and nothing else."""
    for _ in range(sequences):
        engine.add(20, 3900)
    for _ in range(40):
        engine.step()
    return engine.step


def mixed(engine: Engine, sequences: int) -> Callable[[], None]:
    """The same streams, and in each step a chunk of a prompt; prompts come and go, and push each other out of the pool."""
    step = decodes(engine, sequences - 4)

    def with_prompt() -> None:
        if len(engine.core.scheduler.requests) < sequences:
            engine.add(1000, 8)
        step()

    for _ in range(20):
        with_prompt()
    return with_prompt


def blocks(engine: Engine, step: Callable[[], None]) -> Iterator[tuple[bool, float, float]]:
    """(on, wall, thread CPU), the block's median step in us, one block after the other."""
    for pair in range(PAIRS):
        for is_on in (True, False) if pair % 2 == 0 else (False, True):
            if is_on:
                engine.on(Hooks())
                step()  # the first call looks the worker up
            walls, cpus = [], []
            for _ in range(STEPS):
                wall, cpu = perf_counter_ns(), thread_time_ns()
                step()
                cpus.append(thread_time_ns() - cpu)
                walls.append(perf_counter_ns() - wall)
            if is_on:
                engine.off()
            yield is_on, median(walls) / 1000, median(cpus) / 1000


def compare(engine: Engine, step: Callable[[], None]) -> dict[str, Any]:
    found = list(blocks(engine, step))
    result: dict[str, Any] = {}
    for name, column in (("wall", 1), ("cpu", 2)):
        pairs = [sorted(found[index : index + 2], key=lambda block: block[0]) for index in range(0, len(found), 2)]
        usual = median(float(off[column]) for off, _ in pairs)
        differences = [float(on[column]) - float(off[column]) for off, on in pairs]
        interval = median_interval(differences)
        result[name] = {
            "off_us_per_step": usual,
            "added_us_per_step": median(differences),
            "added_us_interval_95": list(interval),
            "added_share": median(differences) / usual,
            "added_share_interval_95": [edge / usual for edge in interval],
        }
    return result


def median_interval(values: list[float]) -> tuple[float, float]:
    """95 % percentile bootstrap of the median."""
    source = random.Random(1)
    medians = sorted(median(source.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


def hook_costs(engine: Engine, step: Callable[[], None]) -> dict[str, Any]:
    hooks = TimedHooks()
    engine.on(hooks)
    steps = 200
    for _ in range(steps):
        step()
    engine.off()
    return {
        name: {"calls_per_step": len(spent) / steps, "median_ns": round(median(spent))}
        for name, spent in sorted(hooks.spent.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    path = parser.parse_args().json
    results: dict[str, Any] = {}
    print(f"{'load':<44} {'step off':>10} {'added, CPU us':>22} {'share':>7}   {'hooks alone':>11}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        engine = Engine(Path(directory), 256)
        for name, prepare, sequences in (
            ("decode, 8 sequences", decodes, 8),
            ("decode, 64 sequences", decodes, 64),
            (f"mixed, 64 sequences and a {CHUNK}-token chunk", mixed, 64),
            ("decode, 256 sequences", decodes, 256),
        ):
            step = prepare(engine, sequences)
            results[name] = compare(engine, step) | {"hooks": hook_costs(engine, step)}
            print(row(name, results[name]), flush=True)
            engine.finish_all()
    if path is not None:
        path.write_text(json.dumps(results, indent=1) + "\n")


def row(name: str, result: dict[str, Any]) -> str:
    cpu, alone = result["cpu"], sum(one["calls_per_step"] * one["median_ns"] for one in result["hooks"].values())
    low, high = cpu["added_us_interval_95"]
    added = f"{cpu['added_us_per_step']:.0f} [{low:.0f}, {high:.0f}]"
    share = f"{cpu['added_share']:.2%}"
    return f"{name:<44} {cpu['off_us_per_step']:>10.0f} {added:>22} {share:>7}   {alone / 1000:>8.0f} us"


if __name__ == "__main__":
    main()
