"""The expressions that a diagnosis asks of a Prometheus: everything is summed on the server, nothing is extrapolated.

The growth of a counter is the difference of two sums of samples, the last ones before the window's two ends. `increase()`
would extrapolate to the ends and give 3.07 preemptions; a window is as long as the time between its samples instead.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from diagnose.errors import SourceError

_METRIC_BEFORE = re.compile(r"^\s*[\w:.]+\s*\{")


@dataclass(frozen=True, slots=True)
class Selector:
    """Label matchers, as `job="llm",namespace="prod"`."""

    matchers: str

    def __str__(self) -> str:
        return f"{{{self.matchers}}}"

    def of(self, metric: str, *more: str) -> str:
        """The series of one metric; `more` are further matchers."""
        return "{" + ",".join([f'__name__="{metric}"', self.matchers, *filter(None, more)]) + "}"


def parse_selector(text: str) -> Selector:
    """With or without braces. Raises SourceError; whether the matchers are well formed is for the server to say."""
    inner = text.strip()
    if _METRIC_BEFORE.match(inner):
        raise SourceError(f"--match {text!r} names a metric: give label matchers alone, as 'job=\"llm\"'")
    inner = inner.removeprefix("{").removesuffix("}").strip().rstrip(",")
    if "=" not in inner:
        raise SourceError(f'--match {text!r} is no selector: write label matchers, as \'job="llm",namespace="prod"\'')
    return Selector(inner)


def matcher(label: str, values: Iterable[str], operator: str) -> str:
    """`label=~"a|b"`; values are taken literally."""
    pattern = "|".join(re.escape(value) for value in values)
    return f"{label}{operator}" + quoted(pattern)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def combined(operator: str, keep: Collection[str], inner: str, ranks: Collection[str] = ()) -> str:
    """`operator by (keep) (inner)`. Ranks that all report the same thing count once."""
    if ranks:
        inner = f"max without ({', '.join(ranks)}) ({inner})"
    return f"{operator} by ({', '.join(keep)}) ({inner})"


@dataclass(frozen=True, slots=True)
class Membership:
    """Which replicas a window's growth is made of, by the label that names them.

    Sums over those at the window's two ends are subtracted. A label that had no event at the start is so counted from zero.
    """

    label: str
    """Empty: the selector is one replica."""
    started: tuple[str, ...] = ()
    """They began to count within the window: all that they counted is growth."""
    unknown: tuple[str, ...] = ()
    """They were not there at the window's start, and nothing says since when they count: left out."""
    gone: tuple[str, ...] = ()
    """They were not there at the window's end: left out."""

    @property
    def at_start(self) -> str | None:
        """Matcher of those whose values at the start are subtracted; empty: of all; None: of none."""
        return self._without([*self.started, *self.gone])

    @property
    def at_end(self) -> str | None:
        return self._without(self.unknown)

    def _without(self, names: Collection[str]) -> str | None:
        if not names:
            return ""
        return matcher(self.label, names, "!~") if self.label else None
