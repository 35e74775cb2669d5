"""Load as an engine's log states it line by line: what ran, waited and came out, in time order."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from diagnose.stats import median


class LoadPoint(NamedTuple):
    """One periodic line of one engine. None: the line does not say."""

    seconds: float
    """That the line speaks of; 0 for a line that follows the work and not a clock."""
    running: float | None = None
    waiting: float | None = None
    pool_usage: float | None = None
    decode_tokens_per_second: float | None = None
    prefill_tokens: float | None = None
    streams: float | None = None
    """Of a line about a prefill: requests that were decoding when it began."""


class Pace(NamedTuple):
    """Tokens per second of one running request, in the first and the last half of the window."""

    first: float
    last: float
    samples: int

    @property
    def slowdown(self) -> float:
        """How many times slower the last half is."""
        return self.first / self.last


def pace(points: Sequence[LoadPoint]) -> Pace | None:
    """None with fewer than two lines that tell, or when nothing came out in one of the halves."""
    rates = [
        point.decode_tokens_per_second / point.running
        for point in points
        if point.running and point.decode_tokens_per_second is not None
    ]
    half = len(rates) // 2
    if not half:
        return None
    first, last = median(rates[:half]), median(rates[-half:])
    return Pace(first, last, len(rates)) if first > 0 and last > 0 else None


class Interference(NamedTuple):
    """Lines that say how fast streams went since the one before, with prefill between the two and without."""

    without: tuple[float, ...]
    """Tokens per second of one stream."""
    mixed: tuple[float, ...]
    prefills: int
    """Lines of prefills in those intervals: one long prompt is many chunks in a single one."""

    @property
    def slowdown(self) -> float:
        return median(self.without) / median(self.mixed)

    @property
    def lost_share(self) -> float:
        """Share of the streams' time that prefill took: a line stands for so many steps, and its time for one over its pace."""
        usual = 1 / median(self.without)
        lost = sum(max(0.0, 1 / pace - usual) for pace in self.mixed)
        return lost / sum(1 / pace for pace in (*self.without, *self.mixed))


def interference(points: Sequence[LoadPoint]) -> Interference | None:
    """Of an engine that logs prefills and decodes in lines of their own; None without both kinds of intervals, or when the two
    kinds had batches of different sizes. The pace after an idle time holds that time, and is left out."""
    kinds: dict[bool, list[LoadPoint]] = {False: [], True: []}
    began, prefills, num_prefills = False, list[LoadPoint](), 0
    for point in points:
        if point.decode_tokens_per_second is None:
            prefills.append(point)
            continue
        if began and point.running and point.decode_tokens_per_second and all(one.streams for one in prefills):
            kinds[bool(prefills)].append(point)
            num_prefills += len(prefills)
        began, prefills = True, []
    if not kinds[False] or not kinds[True]:
        return None
    sizes = [median([point.running or 0.0 for point in found]) for found in kinds.values()]
    if max(sizes) > _LIKE_BATCH * min(sizes):
        return None
    without, mixed = (
        tuple((p.decode_tokens_per_second or 0.0) / (p.running or 1.0) for p in found) for found in kinds.values()
    )
    return Interference(without, mixed, num_prefills)


_LIKE_BATCH = 1.25
"""Batches within a quarter of each other: a stream's pace falls with the batch by itself."""


def flat_top(running: Sequence[float], waiting: Sequence[float], least: int, share: float) -> float | None:
    """The most that ran while requests waited, where that many ran in at least `share` of those samples; else, and under `least`
    samples, None. A limit looks like that; the number that a load keeps busy moves."""
    busy = [ran for ran, waits in zip(running, waiting, strict=False) if waits > 0]
    top = max(busy, default=0.0)
    return top if top > 1 and len(busy) >= least and busy.count(top) >= share * len(busy) else None


def admitted(points: Sequence[LoadPoint]) -> bool | None:
    """Whether any prompt was computed, or more requests ran than before: the line of waiting requests moves. None: unknown."""
    prompts = [point.prefill_tokens for point in points if point.prefill_tokens is not None]
    running = [point.running for point in points if point.running is not None]
    if any(prompts) or any(after > before for before, after in pairwise(running)):
        return True
    return False if prompts else None


def pool_growth(points: Sequence[LoadPoint]) -> float | None:
    """Share of the pool per second, while it only grows; None when it does not, or when too few lines tell."""
    known = [point for point in points if point.pool_usage is not None]
    if len(known) < 3 or not all(point.seconds for point in known):
        return None
    levels = [point.pool_usage or 0.0 for point in known]
    if levels[-1] <= levels[0] or any(after < before for before, after in pairwise(levels)):
        return None
    return (levels[-1] - levels[0]) / sum(point.seconds for point in known[1:])
