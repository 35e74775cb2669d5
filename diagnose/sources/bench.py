"""Results of a load generator, the clients' side of the same time: `vllm bench serve` and SGLang's (text, JSON), genai-perf."""

import csv
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diagnose.observation import Event, Span
from diagnose.signals import BENCHMARK, Gauge, Signals

_METRICS = {"ttft": "client_ttft", "itl": "client_itl", "tpot": "client_tpot", "e2el": "client_e2e"}
_STATISTICS = {"mean": "mean", "median": "p50", "avg": "mean"}
_ROW = re.compile(r"^\s*(Mean|Median|P\d+) (TTFT|ITL|TPOT|E2EL) \(ms\):\s+([\d.,]+)\s*$", re.MULTILINE)
_KEY = re.compile(r"(mean|median|p\d+)_(ttft|itl|tpot|e2el)_ms")
_DURATION = re.compile(r"Benchmark duration \(s\):\s+([\d.]+)")
_BLOCK = re.compile(r"=+ (?:Serving|Offline) Benchmark Result =+")
_GENAI_HEAD = re.compile(r"^\W*(?:Statistic|Metric)\W+((?:avg|min|max|p\d+)\b.*)$", re.MULTILINE)
_GENAI_KEYS = {
    "time_to_first_token": "client_ttft",
    "inter_token_latency": "client_itl",
    "request_latency": "client_e2e",
}
_GENAI_JSON = re.compile(r'"(?:time_to_first_token|request_latency)"\s*:\s*\{')
_GENAI_ROWS = {
    "Time To First Token (ms)": "client_ttft",
    "Inter Token Latency (ms)": "client_itl",
    "Request Latency (ms)": "client_e2e",
}


@dataclass(frozen=True, slots=True)
class BenchEvidence:
    name: str
    tool: str
    values: Mapping[str, float]
    """`client_ttft_p99` and the like -> seconds."""
    seconds: float | None

    @property
    def origin(self) -> str:
        return f"{self.name}: a result of {self.tool}, {len(self.values)} figures of the clients' side"

    def events(self, span: Span | None) -> Iterable[Event]:
        return ()

    def signals(self, span: Span | None) -> Signals:
        gauges = {name: Gauge((value,), self.tool, "as the clients saw it") for name, value in self.values.items()}
        return Signals(BENCHMARK, self.seconds, 0, gauges=gauges)


def is_bench(text: str) -> bool:
    return bool(_BLOCK.search(text) or _GENAI_HEAD.search(text) or '"mean_ttft_ms"' in text or _GENAI_JSON.search(text))


def read_bench(name: str, text: str) -> BenchEvidence | None:
    """None when no figure is in it."""
    if _BLOCK.search(text):
        values = {_signal(metric, statistic): _seconds(number) for statistic, metric, number in _ROW.findall(text)}
        length = _DURATION.search(text)
        found = BenchEvidence(name, "a serving benchmark", values, float(length[1]) if length is not None else None)
    elif (head := _GENAI_HEAD.search(text)) is not None:
        found = BenchEvidence(name, "genai-perf", _genai(text, head[1]), None)
    else:
        found = _from_json(name, text)
    return found if found.values else None


def _from_json(name: str, text: str) -> BenchEvidence:
    """One JSON document, or the last line of an appended file."""
    answer: Any = None
    for part in (text, text.strip().rpartition("\n")[2]):
        try:
            answer = json.loads(part)
            break
        except (ValueError, RecursionError):
            continue
    values: dict[str, float] = {}
    if isinstance(answer, dict):
        for key, value in answer.items():
            match = _KEY.fullmatch(key)
            if match is not None and isinstance(value, int | float):
                values[_signal(match[2], match[1])] = value / 1e3
        values |= _genai_json(answer)
    length = answer.get("duration") if isinstance(answer, dict) else None
    return BenchEvidence(
        name, "a serving benchmark", values, float(length) if isinstance(length, int | float) else None
    )


_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}


def _genai_json(answer: Mapping[str, Any]) -> dict[str, float]:
    """The export of genai-perf and of its successor: an object of statistics per metric, with its unit."""
    values: dict[str, float] = {}
    for key, metric in _GENAI_KEYS.items():
        stated = answer.get(key)
        unit = _UNITS.get(str(stated.get("unit", "ms"))) if isinstance(stated, dict) else None
        if not isinstance(stated, dict) or unit is None:
            continue
        for statistic, value in stated.items():
            if isinstance(value, int | float) and (statistic == "avg" or re.fullmatch(r"p\d+", statistic)):
                values[f"{metric}_{_STATISTICS.get(statistic, statistic)}"] = value * unit
    return values


def _genai(text: str, head: str) -> dict[str, float]:
    columns = re.findall(r"avg|min|max|p\d+", head)
    values: dict[str, float] = {}
    for line in text.split("\n"):
        label = next((row for row in _GENAI_ROWS if row in line), None)
        if label is not None:
            rest = line.partition(label)[2]
            is_csv = rest.lstrip('"').startswith(",")
            cells = next(csv.reader([rest.lstrip('"')]))[1:] if is_csv else re.findall(r"[\d.,]+\d|\d|N/A", rest)
            for column, cell in zip(columns, cells, strict=False):
                if cell != "N/A" and column not in ("min", "max"):
                    values[f"{_GENAI_ROWS[label]}_{_STATISTICS.get(column, column)}"] = _seconds(cell)
    return values


def _signal(metric: str, statistic: str) -> str:
    statistic = statistic.lower()
    return f"{_METRICS[metric.lower()]}_{_STATISTICS.get(statistic, statistic)}"


def _seconds(milliseconds: str) -> float:
    return float(milliseconds.replace(",", "")) / 1e3
