"""Chunked against whole prefill on the same weights: how far logits, choices and a task's score move apart.

    python -m tests.benchmarks.validate_chunking --model smollm2 --budget 64

Sums in another order are not equal, in float32 or below, and greedy tokens may part at a near tie. So chunking is held
to a tolerance that is stated beforehand, not to equality: quantiles of the logit difference, agreement of the best token,
and a task's score with and without chunks. Prompts are passages of the licence in this repository, cut by the model's
own tokenizer; the task is to put a fact's right ending above three wrong ones, after such a passage. Exit code 0 when
within the tolerance, 1 when not.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from diagnose.stats import weighted_quantile
from engine.model.registry import LoadedModel, load_model
from engine.request import Request, SamplingParams
from engine.runner.cpu import CpuRunner
from engine.step import ScheduledSequence, ScheduledStep, plan_batch
from probes.arithmetic import plan_chunks
from probes.optime import LapTimer

BLOCK_SIZE = 16
QUANTILES = (0.5, 0.9, 0.99, 1.0)
DATA = Path(__file__).parent / "chunking_task.json"
LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What chunking may change. Stated per precision, before anything is run."""

    p99_logit_difference: float
    """At 99 % of the positions: largest difference of a logit, over the standard deviation of the position's logits."""
    top1_agreement: float
    """Least share of positions with the same best token."""
    task_score: float
    """Largest change of the task's score, either way."""


TOLERANCES = {
    # No rounding worth the name: what differs is a defect.
    "float64": Tolerance(1e-10, 1.0, 0.0),
    # Far above what rounding of 2^-24 leaves, far below what a wrong position or mask does: only near ties may flip.
    "float32": Tolerance(1e-3, 0.999, 0.0),
    # Rounding of 2^-9: ties flip, and of the task one item in thirty may.
    "bfloat16": Tolerance(0.2, 0.95, 0.034),
}


@dataclass(frozen=True, slots=True)
class PromptResult:
    """One prompt, prefilled whole and in chunks."""

    differences: tuple[float, ...]
    """Per position: largest absolute logit difference over the standard deviation of the position's logits."""
    whole_tokens: tuple[int, ...]
    """Best token per position."""
    chunked_tokens: tuple[int, ...]
    whole_right: bool | None = None
    """Whether the task's item was answered rightly; None for a prompt without one."""
    chunked_right: bool | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    prompts: int
    positions: int
    difference_quantiles: dict[str, float]
    top1_agreement: float
    first_divergence: int | None
    """The earliest position at which a prompt's best tokens differ; None when none does."""
    whole_score: float | None
    chunked_score: float | None
    failures: tuple[str, ...]
    """What lies outside the tolerance."""

    @property
    def passed(self) -> bool:
        return not self.failures


def summarise(results: Sequence[PromptResult], tolerance: Tolerance) -> Summary:
    """Pure. Raises ValueError without any position: nothing was validated then."""
    differences = [value for result in results for value in result.differences]
    if not differences:
        raise ValueError("no position was compared")
    quantiles = {f"p{q * 100:g}": weighted_quantile(differences, [1.0] * len(differences), q) for q in QUANTILES}
    pairs = [list(zip(result.whole_tokens, result.chunked_tokens, strict=True)) for result in results]
    equal = [first == second for prompt in pairs for first, second in prompt]
    diverged = [i for prompt in pairs for i, (first, second) in enumerate(prompt) if first != second]
    agreement = sum(equal) / len(equal)
    whole = _score([result.whole_right for result in results])
    chunked = _score([result.chunked_right for result in results])
    failures = []
    if quantiles["p99"] > tolerance.p99_logit_difference:
        failures.append(f"p99 logit difference {quantiles['p99']:.2e} > {tolerance.p99_logit_difference:g}")
    if agreement < tolerance.top1_agreement:
        failures.append(f"top-1 agreement {agreement:.4f} < {tolerance.top1_agreement:g}")
    if whole is not None and chunked is not None and abs(whole - chunked) > tolerance.task_score:
        failures.append(f"task score {whole:.3f} -> {chunked:.3f}, more than {tolerance.task_score:g} apart")
    first = min(diverged, default=None)
    return Summary(len(results), len(differences), quantiles, agreement, first, whole, chunked, tuple(failures))


def _score(answers: Sequence[bool | None]) -> float | None:
    known = [answer for answer in answers if answer is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class TaskItem:
    """A statement's beginning, and four endings of which the first is right."""

    start: str
    endings: tuple[str, ...]


def read_task(path: Path = DATA) -> list[TaskItem]:
    return [TaskItem(item["start"], tuple(item["endings"])) for item in json.loads(path.read_text(encoding="utf-8"))]


class Prefiller:
    """Logits at every position of a prompt, whole or in the chunks that a budget allows beside some decodes."""

    def __init__(self, model: LoadedModel, max_tokens: int) -> None:
        self._runner = CpuRunner(model, threads=1)
        self._num_blocks = -(-max_tokens // BLOCK_SIZE)
        self._runner.allocate_kv(self._num_blocks, BLOCK_SIZE)

    def logits(self, tokens: Sequence[int], chunks: Sequence[int]) -> Tensor:
        request = Request("r", list(tokens), SamplingParams(), arrival_ns=0)
        request.block_ids = list(range(self._num_blocks))
        parts, start = [], 0
        for chunk in chunks:
            sequence = ScheduledSequence(request, start, chunk, is_decode=False, samples=False)
            plan = plan_batch(ScheduledStep(prefills=[sequence]), BLOCK_SIZE)
            plan.sample_rows = list(range(chunk))
            with torch.inference_mode():
                parts.append(self._runner.forward(plan, LapTimer()))
            start += chunk
        return torch.cat(parts)


def validate(
    model: LoadedModel, items: Sequence[TaskItem], *, budget: int, decodes: int, passage_tokens: int
) -> list[PromptResult]:
    """A prompt per item: a passage of the licence, then the item's beginning."""
    text = model.tokenizer.encode(LICENSE.read_text(encoding="utf-8"), add_special_tokens=False)
    prompts, endings = [], []
    for index, item in enumerate(items):
        start = index * passage_tokens % max(1, len(text) - passage_tokens)
        shared, choices = split_endings(model, item)
        beginning = model.tokenizer.encode("\n\n" + item.start, add_special_tokens=False)
        prompts.append([*text[start : start + passage_tokens], *beginning, *shared])
        endings.append(choices)
    prefiller = Prefiller(model, max(map(len, prompts)))
    results = []
    for tokens, choices in zip(prompts, endings, strict=True):
        whole = prefiller.logits(tokens, [len(tokens)])
        chunked = prefiller.logits(tokens, plan_chunks(len(tokens), decodes, budget))
        results.append(compare_logits(whole, chunked, choices))
    return results


def compare_logits(whole: Tensor, chunked: Tensor, endings: Sequence[int] = ()) -> PromptResult:
    """Of [positions, vocab] each. The task is right when the first of `endings` is the likeliest of them at the end."""

    def right(logits: Tensor) -> bool | None:
        return int(logits[-1, list(endings)].argmax()) == 0 if endings else None

    differences = (whole - chunked).abs().amax(-1) / whole.std(-1)
    return PromptResult(
        tuple(differences.tolist()),
        tuple(whole.argmax(-1).tolist()),
        tuple(chunked.argmax(-1).tolist()),
        right(whole),
        right(chunked),
    )


def split_endings(model: LoadedModel, item: TaskItem) -> tuple[list[int], list[int]]:
    """Tokens with which all endings begin, and the one after them of each ending.

    Raises ValueError when two of those are the same: the item could not be scored by one position.
    """
    ids = [model.tokenizer.encode(ending, add_special_tokens=False) for ending in item.endings]
    shared: list[int] = []
    while all(ids) and len({tokens[0] for tokens in ids}) == 1:
        shared.append(ids[0][0])
        ids = [tokens[1:] for tokens in ids]
    choices = [tokens[0] for tokens in ids if tokens]
    if len(set(choices)) < len(item.endings):
        raise ValueError(f"two endings of {item.start!r} are not told apart by one token")
    return shared, choices


def report(model: LoadedModel, summary: Summary, tolerance: Tolerance, chunks: Sequence[int]) -> list[str]:
    quantiles = ", ".join(f"{name} {value:.2e}" for name, value in summary.difference_quantiles.items())
    first = "none" if summary.first_divergence is None else f"first at position {summary.first_divergence}"
    lines = [
        f"{model.name}, {str(model.weights.dtype).removeprefix('torch.')}: {summary.prompts} prompts, "
        f"{summary.positions} positions, chunks {list(chunks)} against whole",
        f"logit difference over the spread of the logits: {quantiles}",
        f"best token agrees at {summary.top1_agreement:.4%} of the positions; differing: {first}",
    ]
    if summary.whole_score is not None and summary.chunked_score is not None:
        lines.append(f"task score: {summary.whole_score:.3f} whole, {summary.chunked_score:.3f} chunked")
    lines.append(f"tolerance: {', '.join(f'{name} {value:g}' for name, value in asdict(tolerance).items())}")
    lines.append("within the tolerance" if summary.passed else f"OUTSIDE the tolerance: {'; '.join(summary.failures)}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2", help="what load_model takes")
    parser.add_argument("--dtype", default="float32", choices=sorted(TOLERANCES))
    parser.add_argument("--budget", type=int, default=64, help="tokens per step")
    parser.add_argument("--decodes", type=int, default=4, help="decodes that take their share of it")
    parser.add_argument("--passage-tokens", type=int, default=160)
    parser.add_argument("--items", type=int, default=None, help="only the first so many items of the task")
    parser.add_argument("--json", action="store_true", help="the summary as JSON")
    options = parser.parse_args()
    model, tolerance = load_model(options.model, options.dtype), TOLERANCES[options.dtype]
    results = validate(
        model,
        read_task()[: options.items],
        budget=options.budget,
        decodes=options.decodes,
        passage_tokens=options.passage_tokens,
    )
    summary = summarise(results, tolerance)
    if options.json:
        print(json.dumps(asdict(summary) | {"passed": summary.passed, "tolerance": asdict(tolerance)}, indent=2))
    else:
        longest = max(len(result.differences) for result in results)
        print("\n".join(report(model, summary, tolerance, plan_chunks(longest, options.decodes, options.budget))))
    return 0 if summary.passed else 1


if __name__ == "__main__":
    sys.exit(main())
