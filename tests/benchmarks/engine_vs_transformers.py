"""Tokens per second of our CPU runner and of transformers' `generate`: same weights, prompts, threads and dtype.

    python -m tests.benchmarks.engine_vs_transformers --threads 1 --repeats 3

Both run in this process and take turns, so that a busy machine slows both. The best of the repeats is reported, as wall
time and as CPU time of the process; the ratio is the result, the absolute figures are this machine's. Tokens are
compared too: greedy decoding in float32 may part ways at a near tie, and from there on every token differs.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

from engine.model.export import export_hf
from engine.model.registry import load_model
from engine.request import Request, SamplingParams
from engine.runner.cpu import CpuRunner
from engine.step import ScheduledSequence, ScheduledStep, plan_batch

BLOCK_SIZE = 16
DEFAULT_SHAPES = "1x128:32,8x128:32"


@dataclass(frozen=True, slots=True)
class Shape:
    num_prompts: int
    prompt_length: int
    num_tokens: int

    def __str__(self) -> str:
        return f"{self.num_prompts} x {self.prompt_length} -> {self.num_tokens}"


@dataclass(frozen=True, slots=True)
class Comparison:
    shape: str
    ours_seconds: float
    transformers_seconds: float
    ours_cpu_seconds: float
    transformers_cpu_seconds: float
    equal_tokens: float
    """Share of positions at which both chose the same token."""

    @property
    def cpu_ratio(self) -> float:
        """Above 1 our runner needs less CPU time."""
        return self.transformers_cpu_seconds / self.ours_cpu_seconds

    @property
    def wall_ratio(self) -> float:
        return self.transformers_seconds / self.ours_seconds


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    try:
        import transformers  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        print("transformers is not installed in this interpreter: pip install transformers", file=sys.stderr)
        return 2
    torch.set_num_threads(args.threads)
    model = load_model(args.model)
    with tempfile.TemporaryDirectory() as scratch:
        directory = export_hf(model, Path(scratch) / model.name)
        peer = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    shapes = [parse_shape(text) for text in args.shapes.split(",")]
    runner = CpuRunner(model, threads=args.threads)
    runner.allocate_kv(max(shape.num_prompts * blocks_per_sequence(shape) for shape in shapes), BLOCK_SIZE)
    comparisons = [compare(runner, peer, shape, args.repeats) for shape in shapes]
    for result in comparisons:
        print(
            f"{result.shape:>16}: ratio {result.wall_ratio:.2f} wall, {result.cpu_ratio:.2f} CPU "
            f"(ours {result.ours_seconds:.2f} s, transformers {result.transformers_seconds:.2f} s wall); "
            f"equal tokens {result.equal_tokens:.0%}"
        )
    if args.json:
        about = {"model": model.name, "threads": args.threads, "transformers": transformers.__version__}
        Path(args.json).write_text(json.dumps(about | {"results": [asdict(r) for r in comparisons]}, indent=2) + "\n")
    return 0


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2", help="a name or path that the engine loads (default: smollm2)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shapes", default=DEFAULT_SHAPES, help="PROMPTSxLENGTH:TOKENS, comma separated")
    parser.add_argument("--json", help="also write the results to this file")
    return parser.parse_args(argv)


def parse_shape(text: str) -> Shape:
    batch, _, num_tokens = text.partition(":")
    num_prompts, _, length = batch.partition("x")
    return Shape(int(num_prompts), int(length), int(num_tokens))


def compare(runner: CpuRunner, peer: Any, shape: Shape, repeats: int) -> Comparison:
    generator = torch.Generator().manual_seed(0)
    size = (shape.num_prompts, shape.prompt_length)
    prompts = torch.randint(20, runner.geometry.vocab_size, size, generator=generator)
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    our_tokens, their_tokens = [], []
    for _ in range(repeats):
        our_tokens = timed(ours, lambda: run_ours(runner, prompts.tolist(), shape))
        their_tokens = timed(theirs, lambda: run_transformers(peer, prompts, shape))
    pairs = [(a, b) for x, y in zip(our_tokens, their_tokens, strict=True) for a, b in zip(x, y, strict=True)]
    equal = sum(a == b for a, b in pairs) / len(pairs)
    our_best, their_best = ([min(column) for column in zip(*runs, strict=True)] for runs in (ours, theirs))
    return Comparison(str(shape), our_best[0], their_best[0], our_best[1], their_best[1], equal)


def timed(runs: list[tuple[float, float]], work: Callable[[], list[list[int]]]) -> list[list[int]]:
    """Appends (wall seconds, CPU seconds) of `work` to `runs`."""
    wall, cpu = perf_counter(), process_time()
    tokens = work()
    runs.append((perf_counter() - wall, process_time() - cpu))
    return tokens


def run_ours(runner: CpuRunner, prompts: list[list[int]], shape: Shape) -> list[list[int]]:
    """One prefill step of all prompts, then decode steps of all sequences."""
    num_blocks = blocks_per_sequence(shape)
    requests = []
    for index, prompt in enumerate(prompts):
        request = Request(str(index), prompt, SamplingParams(), arrival_ns=0)
        request.block_ids = list(range(index * num_blocks, (index + 1) * num_blocks))
        requests.append(request)
    length = shape.prompt_length
    step = ScheduledStep(prefills=[ScheduledSequence(request, 0, length, False, True) for request in requests])
    for _ in range(shape.num_tokens):
        token_ids = runner.execute(plan_batch(step, BLOCK_SIZE)).token_ids
        for request, token_id in zip(requests, token_ids, strict=True):
            request.output_token_ids.append(token_id)
        step = ScheduledStep(
            decodes=[ScheduledSequence(request, request.num_tokens - 1, 1, True, True) for request in requests]
        )
    return [request.output_token_ids for request in requests]


def run_transformers(peer: Any, prompts: torch.Tensor, shape: Shape) -> list[list[int]]:
    with torch.inference_mode():
        output = peer.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=shape.num_tokens,
            min_new_tokens=shape.num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    tokens: list[list[int]] = output[:, shape.prompt_length :].tolist()
    return tokens


def blocks_per_sequence(shape: Shape) -> int:
    return -(-(shape.prompt_length + shape.num_tokens) // BLOCK_SIZE)


if __name__ == "__main__":
    sys.exit(main())
