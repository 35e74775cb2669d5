"""Steps that a log or a list of statistics tells of, as step durations by kind and as token counts."""

from collections.abc import Sequence
from typing import NamedTuple

from diagnose.signals import Counter, HistogramWindow, Signals

_MAX_BOUNDS = 500


class CountedStep(NamedTuple):
    seconds: float
    prefill_requests: int = 0
    prefill_tokens: int = 0
    decode_requests: int = 0
    decode_tokens: int | None = None
    """None where the source does not count them beside the requests."""

    @property
    def extra(self) -> int:
        """Tokens beyond one per decoding request."""
        return max(0, (self.decode_tokens or 0) - self.decode_requests)


def add_steps(signals: Signals, steps: Sequence[CountedStep], source: str, coverage: str = "") -> None:
    """Histograms by kind; prompt, decode and recomputed tokens; and the time that prefill took from decodes."""
    speculative = _speculates(steps)
    kinds: dict[str, list[float]] = {}
    for step in steps:
        if step.seconds > 0 and (step.prefill_tokens or step.decode_requests):
            kinds.setdefault(_kind(step, speculative), []).append(step.seconds)
    for name, values in kinds.items():
        signals.histograms[name] = histogram_of(values, source, coverage)
    prefill = sum(step.prefill_tokens for step in steps)
    signals.counters["tokens_prefill"] = Counter(prefill, source, "in the step that computed them")
    signals.counters.setdefault("tokens_decode", Counter(sum(step.decode_requests for step in steps), source))
    if not speculative and any(step.decode_tokens is not None for step in steps):
        _add_recompute(signals, steps, source)
    if decode := kinds.get("step_decode"):
        floor = sum(decode) / len(decode)
        stalled = sum(max(0.0, seconds - floor) for seconds in kinds.get("step_mixed", ()))
        text = "time of mixed steps beyond the mean pure decode step"
        signals.counters["stall_prefill_seconds"] = Counter(stalled, source, text)


def _add_recompute(signals: Signals, steps: Sequence[CountedStep], source: str) -> None:
    text = "generation tokens beyond one per request: without speculation they are contexts computed again"
    signals.counters["tokens_recompute"] = Counter(sum(step.extra for step in steps), source, text)
    resumed = sum(step.extra > 0 for step in steps)
    if resumed > (signals.delta("preemptions") or 0.0):
        text = f"at least: preempted requests resume in {resumed} steps"
        signals.counters["preemptions"] = Counter(resumed, source, text)


def _kind(step: CountedStep, speculative: bool) -> str:
    if step.prefill_tokens:
        return "step_mixed" if step.decode_requests else "step_prefill"
    return "step_recompute" if step.extra and not speculative else "step_decode"


def _speculates(steps: Sequence[CountedStep]) -> bool:
    """More tokens than requests in most decode steps is speculation; in a few, it is recompute."""
    decoding = [step for step in steps if step.decode_requests]
    return sum(step.extra > 0 for step in decoding) * 2 > len(decoding)


def histogram_of(values: Sequence[float], source: str, coverage: str = "") -> HistogramWindow:
    """Known values as a histogram: a bucket ends at each of them, or at every n-th of very many."""
    ordered = sorted(values)
    distinct = sorted(set(ordered))
    stride = -(-len(distinct) // _MAX_BOUNDS)
    bounds = distinct[stride - 1 :: stride]
    if bounds[-1] != distinct[-1]:
        bounds.append(distinct[-1])
    counts, at = [0.0] * (len(bounds) + 1), 0
    for value in ordered:
        while value > bounds[at]:
            at += 1
        counts[at] += 1
    return HistogramWindow(tuple(bounds), tuple(counts), sum(ordered), source, coverage)
