"""Metrics pages as people keep them: one scrape, several in one file, or as JSON (Prometheus's query API, prom2json)."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from diagnose.errors import SourceError
from diagnose.exposition import ExpositionError, ExpositionParser
from diagnose.units import printable

_SCRAPED_AT = re.compile(r"^#\s*scraped_at_unix\s+(\d+(?:\.\d+)?)\s*$", re.MULTILINE)
_DECLARED = re.compile(r"^#[ \t]+(?:HELP|TYPE)[ \t]+(\S+)", re.MULTILINE)
_TYPE = re.compile(r"^#[ \t]+TYPE[ \t]+(\S+)", re.MULTILINE)
_TARGET_LABELS = ("instance", "pod")
_MAX_MOMENTS = 20_000


class TimedPage(NamedTuple):
    text: str
    unix: float | None


def read_pages_of(name: str, text: str) -> list[TimedPage]:
    """In the order of the text. The time of a page is a comment's, else that of a sample. Raises SourceError for no page."""
    pages: list[TimedPage] = []
    for part in _parts(text):
        try:
            page = ExpositionParser().parse(part)
        except ExpositionError as error:
            raise SourceError(f"{name}: not a readable metrics page ({printable(str(error))})") from None
        comment = _SCRAPED_AT.search(part)
        pages.append(TimedPage(part, float(comment[1]) if comment is not None else page.sample_unix))
    return pages


def _parts(text: str) -> Iterator[str]:
    """Scrapes that were appended to one file: the page's first family is declared again, and most others with it."""
    first = _DECLARED.search(text)
    if first is None:
        yield text
        return
    again = [found.start() for found in re.finditer(rf"^{re.escape(first[0])}(?=\s)", text, re.MULTILINE)]
    cuts = [_before_comments(text, start) for start in again[1:]]
    parts = [text[low:high] for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    families = set(_TYPE.findall(parts[0]))
    alike = all(2 * len(families.intersection(_TYPE.findall(part))) > len(families) for part in parts)
    # An exporter that declares a family twice within a page is no second page.
    yield from parts if len(parts) > 1 and alike and len(families) > 1 else [text]


def _before_comments(text: str, start: int) -> int:
    """Where the comment lines right before a declaration begin: one of them may say when the page was scraped."""
    while start:
        line = text.rfind("\n", 0, start - 1) + 1
        words = text[line:start].strip()
        if words and (not words.startswith("#") or _DECLARED.match(words) or words == "# EOF"):
            break
        start = line
    return start


# ---- as JSON


def is_metrics_json(answer: Any) -> bool:
    return _result_of(answer) is not None or _is_dump(answer)


def pages_of_json(name: str, answer: Any) -> tuple[list[TimedPage], list[str]]:
    """Pages in time order, and what is to be said of them. Raises SourceError for the result of an expression."""
    result = _result_of(answer)
    if result is None:
        return [TimedPage("\n".join(_dumped(answer)), None)], []
    if not result:
        raise SourceError(f"{name}: an answer of Prometheus without a series in it")
    moments: dict[float, list[str]] = {}
    for series in result:
        labels = series.get("metric")
        if not isinstance(labels, dict) or "__name__" not in labels:
            raise SourceError(
                f"{name}: the result of an expression, whose series have no metric names; ask for the metrics themselves: "
                'query={job="llm"}, or stallscope diagnose --prometheus URL --match \'job="llm"\''
            )
        text = _series(labels["__name__"], {key: value for key, value in labels.items() if key != "__name__"})
        for unix, value in series.get("values") or [series.get("value", (0.0, "NaN"))]:
            moments.setdefault(float(unix), []).append(f"{text} {value}")
    if len(moments) > _MAX_MOMENTS:
        raise SourceError(f"{name}: {len(moments):,} moments; ask for at most {_MAX_MOMENTS:,} (a longer step)")
    pages = [TimedPage("\n".join(lines) + "\n", unix) for unix, lines in sorted(moments.items())]
    return pages, list(_several_targets(result))


def _result_of(answer: Any) -> list[dict[str, Any]] | None:
    """Of an answer of the query API."""
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, dict) or data.get("resultType") not in ("matrix", "vector"):
        return None
    result = data.get("result")
    return result if isinstance(result, list) and all(isinstance(series, dict) for series in result) else None


def _several_targets(result: list[dict[str, Any]]) -> Iterator[str]:
    for label in _TARGET_LABELS:
        values = {series["metric"].get(label) for series in result} - {None}
        if len(values) > 1:
            yield (
                f"the series are of {len(values)} targets ({label}), and are added up: a restart of one of them looks like one "
                "of all; stallscope diagnose --prometheus URL --match SELECTOR looks at each"
            )
            return


def _is_dump(answer: Any) -> bool:
    """What prom2json makes of a page."""
    return (
        isinstance(answer, list)
        and bool(answer)
        and all(isinstance(one, dict) and "name" in one and isinstance(one.get("metrics"), list) for one in answer)
    )


def _dumped(families: list[dict[str, Any]]) -> Iterator[str]:
    for family in families:
        name, kind = str(family["name"]), str(family.get("type", "untyped")).lower()
        yield f"# TYPE {name} {kind}"
        for metric in family["metrics"]:
            if not isinstance(metric, dict):
                continue
            stated = metric.get("labels")
            labels: dict[str, Any] = stated if isinstance(stated, dict) else {}
            for bound, count in (metric.get("buckets") or {}).items():
                yield f"{_series(name + '_bucket', labels | {'le': bound})} {count}"
            if "buckets" in metric or "count" in metric:
                yield f"{_series(name + '_sum', labels)} {metric.get('sum', 'NaN')}"
                yield f"{_series(name + '_count', labels)} {metric.get('count', 'NaN')}"
            elif "value" in metric:
                yield f"{_series(name, labels)} {metric['value']}"
    yield ""


def _series(name: str, labels: dict[str, Any]) -> str:
    pairs = ",".join(f'{key}="{_escaped(str(value))}"' for key, value in labels.items())
    return f"{name}{{{pairs}}}" if pairs else name


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
