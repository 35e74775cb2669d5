"""One target's samples over time: columns of single-precision numbers, bounded, flat in memory."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import floor, inf, isnan, nan
from typing import NamedTuple

COLUMNS = (
    "up",  # 1: a page was read, 0: the scrape failed
    "itl_p50", "itl_p99", "ttft_p50", "ttft_p99", "queue_p50", "e2e_p50",  # seconds over the trailing seconds
    "prefill_rate", "decode_rate", "recompute_rate", "cached_rate", "finished_rate",  # per second
    "eviction_rate", "ghost_rate", "preemption_rate", "failure_rate",
    "running", "waiting", "active", "reclaimable", "free", "working_set", "memory_total", "memory_reserved",
    "budget", "max_sequences",
    "hit_ratio",  # prompt tokens found in the prefix cache
    "schedule_share", "lock_share", "gap_share", "host_share",  # of the time that went by
    "stall_ratio",  # of the streams' time lost to stalls, where counted
    "residency", "reuse_age",  # mean seconds
)  # fmt: skip
_INDEX = {name: place for place, name in enumerate(COLUMNS)}


_Bin = tuple[float, int, float]
"""Largest value or sum, number of points, time of the last one."""


@dataclass(slots=True)
class _Closed:
    """Bins of one plot that no later point can fall into: a frame reads only what is new."""

    width: float
    first: int
    """Number of the first one: its start over the width."""
    bins: list[_Bin] = field(default_factory=list)

    def forget_before(self, first: int) -> None:
        del self.bins[: first - self.first]
        self.first = first


class Point(NamedTuple):
    unix: float
    values: Mapping[str, float]
    """Of some columns; the others were not measured."""


class History:
    """Points in time order. A point that is older than the newest is refused: a clock was set back, or a file is out of order."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._times = array("d")
        self._columns = [array("f") for _ in COLUMNS]
        self._closed: dict[tuple[str, bool], _Closed] = {}

    def __len__(self) -> int:
        return len(self._times)

    def append(self, point: Point) -> bool:
        """False when the point was refused."""
        if self._times and point.unix < self._times[-1]:
            return False
        self._times.append(point.unix)
        for name, column in zip(COLUMNS, self._columns, strict=True):
            column.append(point.values.get(name, nan))
        # In batches: each deletion moves all that is left.
        if len(self._times) > self._capacity * 5 // 4:
            excess = len(self._times) - self._capacity
            for column in (self._times, *self._columns):
                del column[:excess]
        return True

    @property
    def first(self) -> float | None:
        return self._times[0] if self._times else None

    @property
    def last(self) -> float | None:
        return self._times[-1] if self._times else None

    def at(self, name: str, unix: float, within: float = inf) -> float | None:
        """The newest known value at or before `unix`, no older than `within` seconds; None when there is none."""
        place = bisect_right(self._times, unix) - 1
        column = self._columns[_INDEX[name]]
        while place >= 0 and unix - self._times[place] <= within:
            if not isnan(value := column[place]):
                return float(value)
            place -= 1
        return None

    def between(self, name: str, start: float, end: float) -> list[tuple[float, float]]:
        """(unix, value) of the known points in [start, end]."""
        low, high = bisect_left(self._times, start), bisect_right(self._times, end)
        column = self._columns[_INDEX[name]]
        return [(self._times[i], column[i]) for i in range(low, high) if not isnan(column[i])]

    def bins(self, name: str, end: float, span: float, count: int, *, mean: bool = False) -> list[float | None]:
        """The `span` seconds up to `end` in `count` bins: the largest value of each, or the mean; None where nothing is known.

        Edges lie on multiples of a bin's width, so that a plot moves by whole bins and does not flicker. A value holds for
        two and a half times the usual distance of points: a bin that none happened to fall into is not a gap.
        """
        if count < 1 or span <= 0:
            return []
        width = span / count
        first = floor(end / width) - (count - 1)
        known = self._closed.get((name, mean))
        if known is None or known.width != width or not known.first <= first <= known.first + len(known.bins):
            known = self._closed[name, mean] = _Closed(width, first)
        known.forget_before(first)
        bins = known.bins[: count - 1]  # the last bin may end in the middle, at `end`
        bins += self._fill(name, width, first + len(bins), first + count, end, mean=mean)
        closed = min(count - 1, floor(self._times[-1] / width) - first) if self._times else 0
        if closed > len(known.bins):
            known.bins = bins[:closed]
        return self._held(bins, first * width, width, mean=mean)

    def _fill(self, name: str, width: float, low: int, high: int, end: float, *, mean: bool) -> list[_Bin]:
        """The bins from number `low` up to `high`, from the points up to `end`."""
        values, numbers, times = [0.0] * (high - low), [0] * (high - low), [0.0] * (high - low)
        column, points = self._columns[_INDEX[name]], self._times
        # One pass without a call per point: this runs for every plot of every frame.
        for place in range(bisect_left(points, (low - 1e-6) * width), bisect_right(points, end)):
            value = column[place]
            if value != value:
                continue  # NaN: not known
            unix = points[place]
            at = int(unix / width) - low
            if at < 0:
                continue
            if mean or not numbers[at]:
                values[at] += value
            elif value > values[at]:
                values[at] = value
            numbers[at] += 1
            times[at] = unix
        return list(zip(values, numbers, times, strict=True))

    def _held(self, bins: list[_Bin], start: float, width: float, *, mean: bool) -> list[float | None]:
        """Bins without a point show the value before them for as long as it holds."""
        found: list[float | None] = []
        hold, held = max(width, 2.5 * self.spacing), -inf
        known: float | None = None
        for place, (value, number, unix) in enumerate(bins):
            if number:
                known, held = value / number if mean else value, unix
            found.append(known if start + place * width - held <= hold else None)
        return found

    @property
    def spacing(self) -> float:
        """Usual seconds between points."""
        return (self._times[-1] - self._times[0]) / (len(self._times) - 1) if len(self._times) > 1 else 1.0

    def mean(self, name: str, start: float, end: float) -> float | None:
        values = [value for _, value in self.between(name, start, end)]
        return sum(values) / len(values) if values else None

    def last_up(self, unix: float) -> float | None:
        """When the target last answered, at or before `unix`."""
        up = self._columns[_INDEX["up"]]
        for place in range(bisect_right(self._times, unix) - 1, -1, -1):
            if up[place] == 1.0:
                return self._times[place]
        return None

    def times_near(self, unix: float) -> tuple[float | None, float | None]:
        """The point before `unix` and the one after it: where a scrub by one step leads."""
        before = bisect_left(self._times, unix) - 1
        after = bisect_right(self._times, unix)
        return (
            self._times[before] if before >= 0 else None,
            self._times[after] if after < len(self._times) else None,
        )
