"""What `nvidia-smi` prints, as supporting evidence: its table, `-q`, `--query-gpu=... --format=csv` (also with `-l`), and `dmon`.

GPUs of one moment are joined as those of one target: the slowest clock, the hottest chip, all of the memory and power.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from diagnose.observation import Event, Span
from diagnose.signals import DEVICE, Counter, Gauge, Signals
from probes.gpu import ThrottleReason, throttle_reasons

_MHZ, _MIB, _MB = 1e6, float(1 << 20), 1e6
_ROW = re.compile(
    r"\|\s*(?:\d+%|N/A)\s+(?P<temperature>\d+)C\s+P\d+\s+(?P<power>\d+|N/A)W?\s*/\s*(?P<limit>\d+|N/A)W?\s*\|"
    r"\s*(?P<used>\d+)MiB\s*/\s*(?P<total>\d+)MiB\s*\|\s*(?P<busy>\d+|N/A)%?"
)
_DMON_HEAD = re.compile(r"^#\s*(?:Date\s+)?(?:Time\s+)?gpu\s+\w+.*$", re.MULTILINE)
_CSV_HEAD = re.compile(
    r"^[^\n]*\b(?:utilization\.gpu|memory\.used|clocks(?:\.current)?\.sm|power\.draw|temperature\.gpu)\b"
)
_QUERY_HEAD = re.compile(r"^=+ ?NVSMI LOG ?=+", re.MULTILINE)
_QUERY_LINE = re.compile(r"^( *)(\S[^:]*?) *(?:: (.*))?$")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class _Column(NamedTuple):
    signal: str
    across: Callable[[Iterable[float]], float]
    factor: float = 1.0


_CSV: Mapping[str, _Column] = {
    "utilization.gpu": _Column("gpu_busy", min, 0.01),
    "memory.used": _Column("device_memory_reserved", sum, _MIB),
    "memory.total": _Column("device_memory_total", sum, _MIB),
    "temperature.gpu": _Column("gpu_temperature", max),
    "power.draw": _Column("gpu_power", sum),
    "power.limit": _Column("gpu_power_limit", sum),
    "clocks.sm": _Column("gpu_sm_clock", min, _MHZ),
    "clocks.current.sm": _Column("gpu_sm_clock", min, _MHZ),
    "clocks.max.sm": _Column("gpu_sm_clock_limit", min, _MHZ),
    "clocks.mem": _Column("gpu_memory_clock", min, _MHZ),
    "clocks.current.memory": _Column("gpu_memory_clock", min, _MHZ),
}
_DMON: Mapping[str, _Column] = {
    "sm": _Column("gpu_busy", min, 0.01),
    "fb": _Column("device_memory_reserved", sum, _MIB),
    "gtemp": _Column("gpu_temperature", max),
    "temp": _Column("gpu_temperature", max),
    "pwr": _Column("gpu_power", sum),
    "pclk": _Column("gpu_sm_clock", min, _MHZ),
    "mclk": _Column("gpu_memory_clock", min, _MHZ),
    "tviol": _Column("gpu_throttle_sw_thermal", max),
    "pviol": _Column("gpu_throttle_power_cap", fmean, 0.01),
    "rxpci": _Column("gpu_pcie_rx", sum, _MB),
    "txpci": _Column("gpu_pcie_tx", sum, _MB),
}
_QUERY: Mapping[tuple[str, str], str] = {
    ("FB Memory Usage", "Total"): "memory.total",
    ("FB Memory Usage", "Used"): "memory.used",
    ("Utilization", "Gpu"): "utilization.gpu",
    ("Utilization", "GPU"): "utilization.gpu",
    ("Temperature", "GPU Current Temp"): "temperature.gpu",
    ("Clocks", "SM"): "clocks.sm",
    ("Clocks", "Memory"): "clocks.mem",
    ("Max Clocks", "SM"): "clocks.max.sm",
    **{
        (section, key): column
        for section in ("Power Readings", "GPU Power Readings")
        for key, column in (
            ("Power Draw", "power.draw"),
            ("Average Power Draw", "power.draw"),
            ("Power Limit", "power.limit"),
            ("Current Power Limit", "power.limit"),
        )
    },
    **{
        (section, name): f"clocks_event_reasons.{column}"
        for section in ("Clocks Throttle Reasons", "Clocks Event Reasons")
        for name, column in (
            ("SW Power Cap", "sw_power_cap"),
            ("HW Slowdown", "hw_slowdown"),
            ("HW Thermal Slowdown", "hw_thermal_slowdown"),
            ("HW Power Brake Slowdown", "hw_power_brake_slowdown"),
            ("SW Thermal Slowdown", "sw_thermal_slowdown"),
        )
    },
}
"""Section and key of `-q` -> the column of the CSV that says the same. A section is a line without a value, less indented."""
_REASONS: Mapping[str, ThrottleReason] = {
    "gpu_throttle_hw_slowdown": ThrottleReason.HW_SLOWDOWN,
    "gpu_throttle_hw_thermal": ThrottleReason.HW_THERMAL,
    "gpu_throttle_sw_thermal": ThrottleReason.SW_THERMAL,
    "gpu_throttle_power_brake": ThrottleReason.HW_POWER_BRAKE,
    "gpu_throttle_power_cap": ThrottleReason.SW_POWER_CAP,
}
_REASON_COLUMNS = {
    "hw_slowdown": "gpu_throttle_hw_slowdown",
    "hw_thermal_slowdown": "gpu_throttle_hw_thermal",
    "sw_thermal_slowdown": "gpu_throttle_sw_thermal",
    "hw_power_brake_slowdown": "gpu_throttle_power_brake",
    "sw_power_cap": "gpu_throttle_power_cap",
}
_UNCORRECTED = frozenset({"ecc.errors.uncorrected.volatile.total", "dbecc"})

Moment = list[dict[str, float]]
"""One row per GPU, by signal; `gpu_ecc_uncorrected` is since the driver was loaded."""


@dataclass(frozen=True, slots=True)
class DeviceEvidence:
    name: str
    form: str
    moments: tuple[Moment, ...]
    """In time order."""

    @property
    def origin(self) -> str:
        gpus = max(len(moment) for moment in self.moments)
        return f"{self.name}: {self.form}, {len(self.moments)} reading(s) of {gpus} GPU(s)"

    def events(self, span: Span | None) -> Iterable[Event]:
        return ()

    def signals(self, span: Span | None) -> Signals:
        signals = Signals(DEVICE, None, 0)
        joins = {column.signal: column.across for column in (*_CSV.values(), *_DMON.values())}
        for signal in dict.fromkeys(name for moment in self.moments for row in moment for name in row):
            per_moment = [[row[signal] for row in moment if signal in row] for moment in self.moments]
            across = joins.get(signal, max)
            values = tuple(across(found) for found in per_moment if found)
            if signal == "gpu_ecc_uncorrected":
                if len(values) > 1:
                    growth = sum(max(0.0, after - before) for before, after in pairwise(values))
                    signals.counters[signal] = Counter(growth, self.form)
            else:
                signals.gauges[signal] = Gauge(values, self.form)
        return signals


def is_nvidia_smi(text: str) -> bool:
    return bool(_QUERY_HEAD.search(text) or _ROW.search(text) or _DMON_HEAD.search(text) or _CSV_HEAD.match(text))


def read_nvidia_smi(name: str, text: str) -> DeviceEvidence | None:
    """None when no GPU is in it."""
    if _DMON_HEAD.search(text):
        form, moments = "nvidia-smi dmon", _dmon(text)
    elif _CSV_HEAD.match(text):
        form, moments = "nvidia-smi's CSV", _csv(text)
    elif _QUERY_HEAD.search(text):
        form, moments = "nvidia-smi -q", [_query(part) for part in _QUERY_HEAD.split(text)[1:]]
    else:
        form, moments = "nvidia-smi's table", _table(text)
    found = tuple(moment for moment in moments if any(moment))
    return DeviceEvidence(name, form, found) if found else None


def _table(text: str) -> list[Moment]:
    rows: Moment = []
    kinds = {
        "temperature": ("gpu_temperature", 1.0),
        "power": ("gpu_power", 1.0),
        "limit": ("gpu_power_limit", 1.0),
        "used": ("device_memory_reserved", _MIB),
        "total": ("device_memory_total", _MIB),
        "busy": ("gpu_busy", 0.01),
    }
    for found in _ROW.finditer(text):
        known = {group: text for group, text in found.groupdict().items() if text != "N/A"}
        rows.append({kinds[group][0]: float(number) * kinds[group][1] for group, number in known.items()})
    return [rows]


def _query(text: str) -> Moment:
    """One report: a row per GPU. Sections within a section (thermal ones of the slowdowns) keep the outer one's name."""
    rows: Moment = []
    section = ""
    for line in text.split("\n"):
        if line.startswith("GPU "):
            rows.append({})
        found = _QUERY_LINE.match(line.rstrip())
        if found is None:
            continue
        indent, key, value = len(found[1]), found[2], found[3]
        if indent == 4:
            section = key if value is None else ""
        if rows and value is not None and (column := _QUERY.get((section, key))) is not None:
            rows[-1] |= _csv_row([column], [value.strip()])
    return rows


def _csv(text: str) -> list[Moment]:
    lines = [line for line in text.strip().split("\n") if line.strip()]
    names = [cell.strip().partition(" ")[0] for cell in lines[0].split(",")]
    # A header may come again: `-l` prints one per start.
    rows = [[cell.strip() for cell in line.split(",")] for line in lines[1:] if not _CSV_HEAD.match(line)]
    key = next((names.index(name) for name in ("index", "uuid", "pci.bus_id", "name") if name in names), None)
    return _by_moment(
        (row[key] if key is not None else "", _csv_row(names, row)) for row in rows if len(row) == len(names)
    )


def _csv_row(names: list[str], cells: list[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, cell in zip(names, cells, strict=True):
        topic, _, reason = name.partition(".")
        if topic in ("clocks_throttle_reasons", "clocks_event_reasons"):
            values |= _reasons(reason, cell)
        elif (number := _NUMBER.match(cell)) is not None and (column := _CSV.get(name)) is not None:
            values[column.signal] = float(number[0]) * column.factor
        elif number is not None and name in _UNCORRECTED:
            values["gpu_ecc_uncorrected"] = float(number[0])
    return values


def _reasons(reason: str, cell: str) -> dict[str, float]:
    if reason == "active" and cell.startswith("0x"):
        reasons = throttle_reasons(int(cell, 16))
        return {signal: float(one in reasons) for signal, one in _REASONS.items()}
    signal = _REASON_COLUMNS.get(reason)
    return {signal: float(cell == "Active")} if signal is not None and cell in ("Active", "Not Active") else {}


def _dmon(text: str) -> list[Moment]:
    names: list[str] = []
    rows: list[tuple[str, dict[str, float]]] = []
    for line in text.split("\n"):
        if _DMON_HEAD.match(line):
            names = line.lstrip("# ").lower().split()
        cells = line.split()
        if line.startswith("#") or not names or len(cells) != len(names):
            continue
        stated = dict(zip(names, cells, strict=True))
        values = {
            _DMON[name].signal: float(cell) * _DMON[name].factor
            for name, cell in stated.items()
            if name in _DMON and _NUMBER.fullmatch(cell)
        }
        if _NUMBER.fullmatch(stated.get("dbecc", "-")):
            values["gpu_ecc_uncorrected"] = float(stated["dbecc"])
        rows.append((stated.get("gpu", ""), values))
    return _by_moment(rows)


def _by_moment(rows: Iterable[tuple[str, dict[str, float]]]) -> list[Moment]:
    """A GPU that comes again begins the next moment."""
    return list(_moments(rows))


def _moments(rows: Iterable[tuple[str, dict[str, float]]]) -> Iterator[Moment]:
    moment: Moment = []
    seen: set[str] = set()
    for gpu, values in rows:
        if gpu in seen:
            yield moment
            moment, seen = [], set()
        moment.append(values)
        seen.add(gpu)
    if moment:
        yield moment
