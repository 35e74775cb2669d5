"""A block bootstrap: how far a difference of two windows' statistics could move by chance.

Gaps of one step are the same event, and gaps of neighbouring steps share their stalls. So whole blocks of wall time are
drawn, never single gaps. Seeded, hence the same on every run.
"""

import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from diagnose.account import Gap

RESAMPLES = 1000
_LEVEL = 0.95


class Interval(NamedTuple):
    """95 % percentile interval of a difference."""

    low: float
    high: float


class GapBlocks:
    """Gaps of one window in blocks of `block_seconds` of wall time, by the moment at which they ended.

    A block without gaps is no block: nothing streamed in it. The last one may be shorter than the others.
    """

    def __init__(self, gaps: Sequence[Gap], block_seconds: float, slow_gap_factor: float) -> None:
        ordered = sorted(gaps, key=lambda gap: gap.seconds)
        start_ns = min((gap.step.emit_ns for gap in gaps), default=0)
        numbers = [int((gap.step.emit_ns - start_ns) / 1e9 / block_seconds) for gap in ordered]
        index_of = {number: index for index, number in enumerate(sorted(set(numbers)))}
        self.num_blocks = len(index_of)
        self._blocks = [index_of[number] for number in numbers]
        self._seconds = [gap.seconds for gap in ordered]
        self._tokens = [gap.tokens for gap in ordered]
        self._time = [0.0] * self.num_blocks
        self._slow = [0.0] * self.num_blocks
        for gap, block in zip(ordered, self._blocks, strict=True):
            self._time[block] += gap.seconds * gap.tokens
            if gap.seconds >= slow_gap_factor * gap.floor:
                self._slow[block] += gap.seconds * gap.tokens

    def quantiles(self, qs: Sequence[float], times: Sequence[int]) -> list[float]:
        """Quantiles over tokens when block i is taken times[i] times."""
        reached = list(accumulate(map(mul, self._tokens, map(times.__getitem__, self._blocks))))
        return [self._seconds[bisect_left(reached, q * reached[-1])] for q in qs]

    def stall_share(self, times: Sequence[int]) -> float:
        total = sum(map(mul, self._time, times))
        return sum(map(mul, self._slow, times)) / total if total else 0.0


def difference_intervals(
    first: GapBlocks,
    second: GapBlocks,
    statistic: Callable[[GapBlocks, Sequence[int]], Sequence[float]],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> list[Interval]:
    """Interval of second - first for every value of `statistic(blocks, times)`.

    Both windows need a block; with few of them the intervals are too narrow, which is the caller's to judge.
    """
    source = random.Random(seed)
    draws: list[list[float]] = []
    for _ in range(resamples):
        values = [statistic(blocks, _draw(source, blocks.num_blocks)) for blocks in (first, second)]
        draws.append([after - before for before, after in zip(*values, strict=True)])
    return [_interval(sorted(column)) for column in zip(*draws, strict=True)]


def _draw(source: random.Random, num_blocks: int) -> list[int]:
    times = [0] * num_blocks
    for index in source.choices(range(num_blocks), k=num_blocks):
        times[index] += 1
    return times


def _interval(values: Sequence[float]) -> Interval:
    tail = (1 - _LEVEL) / 2
    last = len(values) - 1
    return Interval(values[round(tail * last)], values[round((1 - tail) * last)])
