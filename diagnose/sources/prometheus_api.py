"""A Prometheus-compatible HTTP API (Prometheus, VictoriaMetrics, Thanos, Mimir), with every failure in words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple, TypeVar

import msgspec

from diagnose.errors import SourceError, TargetError
from diagnose.sources.http import Endpoint
from diagnose.units import printable

QUERY_TIMEOUT_SECONDS = 30.0
_NAMES_PATH = "/api/v1/label/__name__/values"


T = TypeVar("T")


class _Series(msgspec.Struct, gc=False):
    metric: dict[str, str]
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Answer(msgspec.Struct):
    """Beside these, VictoriaMetrics adds `stats`, newer Prometheus `infos`."""

    status: str
    data: msgspec.Raw = msgspec.Raw()
    error: str = ""
    errorType: str = ""  # noqa: N815 - the API's own name
    warnings: list[str] = []
    isPartial: bool = False  # noqa: N815


class _Vector(msgspec.Struct):
    result: list[_Series]


class QueryError(TargetError):
    """One query was answered with an error; others may do."""


class Point(NamedTuple):
    labels: dict[str, str]
    value: float


class Line(NamedTuple):
    labels: dict[str, str]
    points: list[tuple[float, float]]
    """Unix seconds and value."""


@dataclass(slots=True)
class PrometheusApi:
    endpoint: Endpoint
    num_queries: int = 0
    warnings: list[str] = field(default_factory=list)
    """What the server said beside its answers: results that are partial."""

    def names(self, match: str, start: float, end: float) -> list[str]:
        """Names of the metrics behind a selector. Raises SourceError when the server rejects it."""
        fields = {"match[]": match, "start": f"{start:.3f}", "end": f"{end:.3f}"}
        try:
            return self._decoded(self._ask(_NAMES_PATH, fields, post=False), list[str])
        except QueryError as error:
            raise SourceError(f"--match {match}: {error}") from None

    def query(self, expression: str, at: float) -> list[Point]:
        """An instant vector at `at` (unix seconds). Raises QueryError, or TargetError when the server is not there."""
        answer = self._ask("/api/v1/query", {"query": expression, "time": f"{at:.3f}", **_LIMIT})
        found = self._decoded(answer, _Vector).result
        return [Point(series.metric, float(series.value[1])) for series in found if series.value is not None]

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Line]:
        fields = {"query": expression, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}", **_LIMIT}
        found = self._decoded(self._ask("/api/v1/query_range", fields), _Vector).result
        return [Line(series.metric, [(at, float(text)) for at, text in series.values]) for series in found]

    def _ask(self, path: str, fields: Mapping[str, str], *, post: bool = True) -> msgspec.Raw:
        """By POST: a list of a fleet's replicas is longer than an URL may be. Label values take no POST everywhere."""
        self.num_queries += 1
        status, body = self.endpoint.ask(path, fields, post=post)
        url = self.endpoint.url + path
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except msgspec.DecodeError:
            raise TargetError(f"{url}: {_no_api(status, body)}") from None
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise TargetError(f"{url}: {_no_api(status, body)}")
        if answer.status != "success":
            raise QueryError(f"the server rejects it (HTTP {status}): {_in_words(answer)}")
        if status != HTTPStatus.OK:
            raise TargetError(f"{url}: {_no_api(status, body)}")
        said = [printable(text[:200]) for text in answer.warnings]
        said += ["the server says that its answer is partial"] if answer.isPartial else []
        self.warnings += [text for text in said if text not in self.warnings]
        return answer.data

    def _decoded(self, data: msgspec.Raw, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, ValueError) as error:
            raise TargetError(f"{self.endpoint.url}: an answer that is no Prometheus API's ({error})") from None


_LIMIT = {"timeout": f"{QUERY_TIMEOUT_SECONDS:.0f}s"}


def _in_words(answer: _Answer) -> str:
    text = printable(" ".join(answer.error.split())[:300]) or answer.errorType or "no reason given"
    low = text.lower()
    if "too many samples" in low or "limit" in low:
        return f"{text}; a shorter --window or a narrower --match needs less"
    if answer.errorType in ("timeout", "canceled") or "timeout" in low or "timed out" in low:
        return f"{text}; the query took too long there: a shorter --window or a narrower --match needs less"
    return text


def _no_api(status: int, body: str) -> str:
    """What answers instead of an API."""
    if status == HTTPStatus.UNAUTHORIZED:
        return "HTTP 401: it wants credentials: --bearer-token-file FILE, or --basic-auth-file FILE with USER:PASSWORD in it"
    if status == HTTPStatus.FORBIDDEN:
        return "HTTP 403: the credentials do not allow it to be read"
    begin = body.lstrip()[:200]
    if begin.startswith("<"):
        what = "an HTML page: a proxy or a log-in page, not a Prometheus API"
    elif begin.startswith("{"):
        what = "JSON that is cut short or no Prometheus API's"
    elif not begin:
        what = "nothing"
    else:
        what = f"{printable(' '.join(begin.split())[:80])!r}, not a Prometheus API's JSON"
    hint = "; give the server's address as it stands before /api/v1" if status == HTTPStatus.NOT_FOUND else ""
    return f"HTTP {status}: answers {what}{hint}"
