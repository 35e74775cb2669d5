"""Prometheus text format 0.0.4 and OpenMetrics 1.0, parsed for speed: a series text seen before costs one dictionary look-up.

The official parser is the oracle in the tests; it needs a multiple of the time on a page of vLLM's size, which decides how many
targets one core can watch. What is broken costs its own line and no more: how much was left out is counted.
"""

import re
from dataclasses import dataclass, field

from diagnose.native_histogram import expand, is_native

Labels = tuple[tuple[str, str], ...]
"""Sorted (name, value) pairs."""

MAX_LINE_CHARS = 64 << 10
MAX_SERIES = 200_000
"""Of one page. No engine has a hundredth of it; a page without end must not fill the memory."""


class ExpositionError(ValueError):
    """Not the text format; the text names the line."""


@dataclass(slots=True)
class Exposition:
    """One scrape. `samples[name]` maps label sets to values; histogram series keep their `_bucket/_sum/_count` names."""

    samples: dict[str, dict[Labels, float]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    sample_unix: float | None = None
    """Unix seconds of the first sample that carries a timestamp."""
    skipped: int = 0
    """Lines that could not be read."""
    first_problem: str = ""
    """What was wrong with the first of them; names the line."""

    def value(self, name: str, **labels: str) -> float | None:
        """Sum over the series of `name` that carry all the given labels; None when there is none."""
        wanted = labels.items()
        found = [value for key, value in self.samples.get(name, {}).items() if all((k, v) in key for k, v in wanted)]
        return sum(found) if found else None


class ExpositionParser:
    """Keeps the series texts it has seen. Targets of a kind, and their threads, may share one: what it keeps only grows."""

    _MAX_CACHED = 200_000

    def __init__(self) -> None:
        self._series: dict[str, tuple[str, Labels]] = {}

    def parse(self, text: str) -> Exposition:
        """Raises ExpositionError, with the first line that is broken, when no more lines can be read than cannot."""
        page = Exposition()
        samples, known, read, count = page.samples, self._series, 0, 0
        timestamp: float | None = None
        for number, line in enumerate(text.split("\n"), 1):
            series_text, _, value_text = line.rpartition(" ")
            series = known.get(series_text)
            try:
                if series is not None and "_" not in value_text:
                    value = float(value_text)
                else:
                    found = self._read(line, page)
                    if found is None:
                        continue
                    series, value, stamp = found
                    timestamp = stamp if timestamp is None else timestamp
            except ValueError as error:
                _skip(page, number, line, error)
                continue
            read += 1
            family = samples.get(series[0])
            if family is None:
                family = samples[series[0]] = {}
            size = len(family)
            family[series[1]] = value
            if len(family) == size:
                continue
            count += 1
            if count > MAX_SERIES:
                del family[series[1]]
                _skip(page, number, line, ValueError(f"more than {MAX_SERIES:,} series"))
        if page.skipped and page.skipped >= read:
            raise ExpositionError(page.first_problem)
        if timestamp is not None:
            page.sample_unix = timestamp if text.rstrip().endswith("# EOF") else timestamp / 1000
        return page

    def _read(self, line: str, page: Exposition) -> tuple[tuple[str, Labels], float, float | None] | None:
        """Series, value and timestamp of a line that is not known yet; None when it is no sample. Raises ValueError."""
        line = line.strip()  # margins mean nothing; a carriage return is one
        if not line:
            return None
        if line[0] == "#":
            _comment(line, page)
            return None
        if len(line) > MAX_LINE_CHARS:
            raise ValueError(f"longer than {MAX_LINE_CHARS >> 10} KiB")
        series, end = _parse_series(line)
        rest = line[end:]
        if is_native(rest):
            _add_native(page, series, rest)
            return None
        value, stamp = _value_and_timestamp(rest)
        if len(self._series) < self._MAX_CACHED:
            self._series[line[:end]] = series
        return series, value, stamp


def _skip(page: Exposition, number: int, line: str, error: ValueError) -> None:
    page.skipped += 1
    if not page.first_problem:
        reason = f"{line.split()[-1][:60]!r} is not a number" if "could not convert" in str(error) else str(error)
        page.first_problem = f"line {number}: {reason}"


def _comment(line: str, page: Exposition) -> None:
    parts = line.split(None, 3)
    if len(parts) == 4 and parts[1] == "TYPE":
        name = parts[2]
        page.types[_unescaped(name[1:-1]) if name[:1] == '"' else name] = parts[3]


def _add_native(page: Exposition, series: tuple[str, Labels], text: str) -> None:
    """A native histogram, as the classic series that mean the same."""
    name, labels = series
    for suffix, le, value in list(expand(text)):  # all of it or nothing
        key = tuple(sorted((*labels, ("le", le)))) if le else labels
        page.samples.setdefault(name + suffix, {})[key] = value
    page.types.setdefault(name, "histogram")


def _value_and_timestamp(rest: str) -> tuple[float, float | None]:
    """Of what follows a series. An exemplar is left out."""
    tokens = rest.partition("#")[0].split()
    if not 1 <= len(tokens) <= 2:
        raise ValueError(f"expected a value after the series, found {rest[:60]!r}")
    return _number(tokens[0]), _number(tokens[1]) if len(tokens) == 2 else None


def _number(text: str) -> float:
    try:
        if "_" in text:  # Python reads 1_000, the format does not
            raise ValueError
        return float(text)
    except ValueError:
        raise ValueError(f"{text[:60]!r} is not a number") from None


_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_OPEN = re.compile(r"[ \t]*\{[ \t]*")
_NATIVE_OPEN = re.compile(r"[ \t]+\{[ \t]*count:")
_QUOTED = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
_LABEL = re.compile(rf"(?:([a-zA-Z_][a-zA-Z0-9_]*)|{_QUOTED})[ \t]*=[ \t]*{_QUOTED}[ \t]*")
_QUOTED_NAME = re.compile(rf"{_QUOTED}[ \t]*(?=[,}}])")
_ESCAPED = re.compile(r'\\([\\n"])')
_ESCAPES = {"\\": "\\", '"': '"', "n": "\n"}


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: _ESCAPES[match[1]], text) if "\\" in text else text


def _parse_series(line: str) -> tuple[tuple[str, Labels], int]:
    """The series at the start of `line`, and where it ends. A name beyond the old alphabet stands in the braces, in quotes."""
    name = _NAME.match(line)
    if name is None and line[0] != "{":
        raise ValueError(f"{line[:60]!r} does not begin with a metric name")
    start = 0 if name is None else name.end()
    brace = _OPEN.match(line, start) if _NATIVE_OPEN.match(line, start) is None else None
    if brace is None:
        assert name is not None
        if line[start : start + 1] not in ("", " ", "\t"):
            raise ValueError(f"{line.split(None, 1)[0][:60]!r} is not a metric name")
        return (name[0], ()), start
    at, quoted = brace.end(), None
    if name is None:
        quoted = _QUOTED_NAME.match(line, at)
        if quoted is None:
            raise ValueError(f"{line[:60]!r} does not begin with a metric name")
        at = _after_comma(line, quoted.end())
    labels, end = _parse_labels(line, at)
    return (name[0] if name is not None else _unescaped(quoted[1] if quoted is not None else ""), labels), end


def _after_comma(line: str, at: int) -> int:
    if line[at : at + 1] == ",":
        at += 1
        while line[at : at + 1] in (" ", "\t"):
            at += 1
    return at


def _parse_labels(line: str, at: int) -> tuple[Labels, int]:
    """`a="x",b="y"}` from position `at`, and the position behind the brace."""
    labels: dict[str, str] = {}
    while line[at : at + 1] != "}":
        pair = _LABEL.match(line, at)
        if pair is None or line[pair.end() : pair.end() + 1] not in (",", "}"):
            raise ValueError(f"labels are broken near {line[at : at + 40]!r}")
        name = pair[1] if pair[1] is not None else _unescaped(pair[2])
        if name in labels:
            raise ValueError(f"label {name!r} appears twice")
        labels[name] = _unescaped(pair[3])
        at = _after_comma(line, pair.end())
    return tuple(sorted(labels.items())), at + 1
