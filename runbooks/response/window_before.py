"""The window before an alert, from Prometheus: what a target's page said then, as pages again."""

import math
from urllib.parse import urlencode

import msgspec

from diagnose.errors import DiagnoseError, SourceError
from diagnose.observation import Observation, observe
from diagnose.sources.http import Endpoint
from probes.recording import Entry
from runbooks.response.config import Target

_PAGES = 5
_GUARD_SECONDS = 120.0
"""Between the end of the window and the alert: its rate windows had begun to fill before it fired."""


class _Series(msgspec.Struct, gc=False):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct):
    resultType: str  # noqa: N815 - the name on the wire
    result: list[_Series]


class _Answer(msgspec.Struct):
    status: str
    data: _Data


class PrometheusWindow:
    def __init__(self, url: str) -> None:
        """Raises SourceError when `url` is not one."""
        self._endpoint = Endpoint(url, timeout_seconds=10.0)

    def before(self, target: Target, seconds: float, alert_unix: float) -> Observation:
        """Pages over `seconds` that end two minutes before the alert. Raises DiagnoseError when Prometheus has none."""
        end = alert_unix - _GUARD_SECONDS
        times = [end - seconds + seconds * number / (_PAGES - 1) for number in range(_PAGES)]
        entries = [Entry(time, "exposition", page) for time in times if (page := self._page(target.selector, time))]
        if len(entries) < 2:
            raise SourceError(f"{self._endpoint.url} holds nothing of {{{target.selector}}} before the alert")
        return observe(f"{target.name} before the alert, by Prometheus", entries)

    def _page(self, selector: str, unix: float) -> str:
        query = urlencode({"query": f"{{{selector}}}", "time": f"{unix:.3f}"})
        body = self._endpoint.get(f"/api/v1/query?{query}")
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except msgspec.DecodeError as error:
            raise DiagnoseError(f"{self._endpoint.url}: its answer is not Prometheus': {error}") from None
        return "".join(line for series in answer.data.result if (line := _line(series)))


def _line(series: _Series) -> str:
    name = series.metric.get("__name__", "")
    # Recorded and synthetic series (up, ALERTS, rules' results) are not the target's own words.
    if not name or series.metric.get("alertname") or not math.isfinite(float(series.value[1].replace("Inf", "inf"))):
        return ""
    labels = ",".join(f'{key}="{_escape(text)}"' for key, text in series.metric.items() if key not in _ADDED)
    return f"{name}{{{labels}}} {series.value[1]}\n"


_ADDED = ("__name__", "job", "instance")
"""Labels that Prometheus put there."""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
