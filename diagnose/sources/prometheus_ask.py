"""Questions about one window to one Prometheus: a query that fails is a warning, a server that is gone is an error."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from diagnose.errors import TargetError
from diagnose.sources.prometheus_api import Line, Point, PrometheusApi, QueryError
from diagnose.sources.promql import Selector

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
