"""Questions about one window to one Prometheus: a query that fails is a warning, a server that is gone is an error."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar

from diagnose.errors import TargetError
from diagnose.sources.prometheus_api import Line, Point, PrometheusApi, QueryError
from diagnose.sources.promql import Membership, Selector, combined

MAX_FAILURES = 3
"""Queries in a row without an answer, after which the server is not asked any more."""
NUM_POINTS = 20
"""Intervals into which gauges divide the window."""


T = TypeVar("T")


@dataclass(slots=True)
class Asker:
    api: PrometheusApi
    selector: Selector
    start: float
    end: float
    """Unix seconds."""
    problems: list[str] = field(default_factory=list)
    _failures: int = 0

    @property
    def length(self) -> float:
        return self.end - self.start

    def must(self, expression: str, at: float) -> list[Point]:
        """Raises TargetError when there is no answer."""
        try:
            return self.api.query(expression, at)
        except QueryError as error:
            raise TargetError(f"{self.api.endpoint.url}: {expression}: {error}") from None

    def instant(self, expression: str, at: float | None = None) -> list[Point]:
        """At the window's end, unless told otherwise. Empty when the query fails, which is then among the problems."""
        return self._soft(expression, lambda: self.api.query(expression, self.end if at is None else at))

    def growth(
        self, series: Callable[[str], str], keep: Collection[str], members: Membership, ranks: Collection[str]
    ) -> list[Point]:
        """What counters gained in the window, by the labels to keep. `series` adds a matcher to their selector.

        Empty when either end of the window is not known: half a difference is none.
        """
        known = len(self.problems)
        sums: dict[tuple[tuple[str, str], ...], float] = {}
        for at, which, sign in ((self.end, members.at_end, 1), (self.start, members.at_start, -1)):
            if which is None:
                continue
            for point in self.instant(combined("sum", keep, series(which), ranks), at):
                labels = tuple(sorted(point.labels.items()))
                if labels in sums or sign > 0:
                    sums[labels] = sums.get(labels, 0.0) + sign * point.value
        return [] if len(self.problems) > known else [Point(dict(labels), value) for labels, value in sums.items()]

    def ranged(self, expression: str) -> list[Line]:
        """At `NUM_POINTS` + 1 moments from the window's start to its end."""
        step = self.length / NUM_POINTS
        return self._soft(expression, lambda: self.api.query_range(expression, self.start, self.end, step))

    def _soft(self, expression: str, ask: Callable[[], list[T]]) -> list[T]:
        try:
            found = ask()
        except QueryError as error:
            self.problems.append(f"left out: {expression}: {error}")
            return []
        except TargetError as error:
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                raise
            self.problems.append(f"left out: {expression}: {error}")
            return []
        self._failures = 0
        return found
