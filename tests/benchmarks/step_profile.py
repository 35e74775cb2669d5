"""Where the time of a step goes, by kernel class, with our compiled kernels and with torch's:

    python -m tests.benchmarks.step_profile --json tests/benchmarks/results/step_profile.json

SmolLM2 in float32 on one thread: decodes, so many at so many tokens of context each, and chunks of a prompt, so many rows after
so many others. Both runners live in one process and take turns; of each the quickest of several steps is shown, in milliseconds
of the engine thread's clock. Nothing is asserted.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

from engine.model.registry import load_model
from engine.request import Request, SamplingParams
from engine.runner.cpu import CpuRunner
from engine.step import BatchPlan, ScheduledSequence, ScheduledStep, plan_batch

BLOCK_SIZE = 16
NUM_BLOCKS = 640
DECODES = ((1, 128), (8, 128), (32, 128), (8, 1024))
CHUNKS = ((128, 0), (512, 0), (256, 768))
KERNELS = ("native", "torch")
CLASSES = {
    "products": ("gemm",),
    "attention": ("attention_decode", "attention_prefill"),
    "norm, rope, act": ("norm_rope_act",),
    "KV write": ("kv_write",),
    "sampling": ("sampling",),
    "other": ("other", "copy"),
}
ROUNDS = 7


class Case(NamedTuple):
    name: str
    plan: BatchPlan


class Row(NamedTuple):
    step: str
    kernels: str
    milliseconds: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.milliseconds.values())


def cases() -> list[Case]:
    found: list[Case] = []
    for count, context in DECODES:
        requests = [_request(index, context, 1) for index in range(count)]
        decodes = [ScheduledSequence(each, context, 1, is_decode=True, samples=True) for each in requests]
        found.append(Case(f"{count} x decode at {context}", plan_batch(ScheduledStep(decodes, []), BLOCK_SIZE)))
    for rows, before in CHUNKS:
        chunk = ScheduledSequence(_request(0, before + rows, 0), before, rows, is_decode=False, samples=True)
        found.append(Case(f"chunk of {rows} after {before}", plan_batch(ScheduledStep([], [chunk]), BLOCK_SIZE)))
    return found


def _request(index: int, prompt_length: int, num_output: int) -> Request:
    request = Request(str(index), [20 + i % 1000 for i in range(prompt_length)], SamplingParams(), arrival_ns=0)
    request.output_token_ids += [20] * num_output
    num_blocks = -(-(prompt_length + num_output) // BLOCK_SIZE)
    request.block_ids = list(range(index * num_blocks, (index + 1) * num_blocks))
    return request


def runner_with(kernels: str) -> CpuRunner:
    runner = CpuRunner(load_model("smollm2", "float32"), threads=1, kernels=kernels, takes_weights=True)
    runner.allocate_kv(NUM_BLOCKS, BLOCK_SIZE)
    return runner


def measure(rounds: int) -> list[Row]:
    runners = {kernels: runner_with(kernels) for kernels in KERNELS}
    found: list[Row] = []
    for name, plan in cases():
        best: dict[str, Row] = {}
        for _ in range(rounds):
            for kernels, runner in runners.items():
                times = runner.execute(plan).device_ns
                assert times is not None
                by_title = {title: sum(getattr(times, op) for op in ops) / 1e6 for title, ops in CLASSES.items()}
                row = Row(name, kernels, by_title)
                best[kernels] = min(best.get(kernels, row), row, key=lambda row: row.total)
        found += best.values()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    found = measure(options.rounds)
    print(f"{'step':24}  {'kernels':7}  {'ms':>7}  " + "  ".join(f"{title:>15}" for title in CLASSES))
    for row in found:
        cells = (f"{ms:8.1f} ({ms / row.total:4.0%})" for ms in row.milliseconds.values())
        print(f"{row.step:24}  {row.kernels:7}  {row.total:7.1f}  " + "  ".join(f"{cell:>15}" for cell in cells))
    if options.json is not None:
        options.json.write_text(json.dumps([row._asdict() for row in found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
