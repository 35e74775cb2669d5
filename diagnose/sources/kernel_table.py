"""Tables of kernels as profilers print them: nvprof, `nsys stats`, rocprof's kernel stats and torch's `key_averages().table()`.

Each has its own columns; their roles are the same. Rows of host functions (the API calls of nvprof, the operators of torch) are
left out: what a kernel took is in its own row.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from diagnose.kernel_profile import KernelTotals
from diagnose.observation import Event, Span
from diagnose.signals import KERNELS, Signals
from probes.kernel_patterns import KernelClass, kernel_class

_NS = {"ns": 1.0, "us": 1e3, "μs": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_NUMBER = re.compile(r"([\d,]*\.?\d+)\s*(ns|us|μs|µs|ms|s)?")
_UNIT = re.compile(r" ?\((ns|us|μs|µs|ms|s)\)$")
_NVPROF_SECTION = re.compile(r"^\s*(?:==\d+==\s*)?(GPU activities|API calls|OpenACC \([^)]*\)|Unified Memory[^:]*):")
_HOST_NAME = re.compile(r"^(?:hip[A-Z]|hsa_|cu[A-Z]|cuda[A-Z])")
_GAP = re.compile(r"\s{2,}")


class _Form(NamedTuple):
    """One profiler's columns, in lower case and without units: what each of them is."""

    name: str
    total: str
    calls: str
    share: str
    shortest: str = ""
    longest: str = ""
    own: str = ""
    """A column that is zero in rows of kernels and above it in rows of host functions."""
    factor: float = 1.0
    """Of times that state no unit."""


_FORMS = (
    _Form("nvprof", "time", "calls", "time(%)", "min", "max"),
    _Form("nsys stats", "total time", "instances", "time (%)", "min", "max"),
    _Form("nsys stats", "total time", "instances", "time(%)", "minimum", "maximum"),
    _Form("rocprof", "totaldurationns", "calls", "percentage", "minns", "maxns"),
    _Form("torch's profiler", "self cuda", "# of calls", "self cuda %", own="self cpu"),
)


class _Row(NamedTuple):
    name: str
    ns: float
    calls: int
    share: float
    """Of the device's time as the table says, percent."""
    shortest: float
    longest: float


@dataclass(frozen=True, slots=True)
class KernelTableEvidence:
    name: str
    totals: KernelTotals

    @property
    def origin(self) -> str:
        return (
            f"{self.name}: a table of kernels by {self.totals.form}, {self.totals.num_kernels:,} launches, "
            f"{self.totals.listed_share:.0%} of the device's time"
        )

    def events(self, span: Span | None) -> Iterable[Event]:
        return ()

    def signals(self, span: Span | None) -> Signals:
        """Whatever the window: a table does not say when it was made."""
        return Signals(KERNELS, None, 0, kernels=self.totals)


_HOST_ONLY = frozenset({"name", "self cpu", "# of calls"})
"""Columns of torch's table where no device was profiled: it has none for the device."""


def is_kernel_table(text: str) -> bool:
    """A table of host functions alone is one too: what it lacks is said when it is read."""
    headers = (cells for cells in map(_header, text.split("\n")[:400]) if len(cells) > 3)
    return any(_form_of(cells) is not None or set(cells) >= _HOST_ONLY for cells in headers)


def read_kernel_table(name: str, text: str) -> KernelTableEvidence | None:
    """None when no kernel is in it. Of several tables in one text, all kernels count."""
    rows: list[_Row] = []
    form = ""
    for table, found in _tables(text.split("\n")):
        form = form or table.name
        rows += found
    if not rows or not any(row.ns > 0 for row in rows):
        return None
    classes: dict[KernelClass, float] = {}
    for row in rows:
        kind = kernel_class(row.name)
        classes[kind] = classes.get(kind, 0.0) + row.ns
    comm = [row for row in rows if kernel_class(row.name) is KernelClass.COMM and row.longest]
    listed = sum(classes.values())
    # A table that is cut to its longest rows still says what share of all each of them is.
    widest = max(rows, key=lambda row: row.ns)
    total = max(listed, widest.ns / widest.share * 100) if widest.share else listed
    extremes = (min(row.shortest for row in comm), max(row.longest for row in comm)) if comm else None
    return KernelTableEvidence(name, KernelTotals(form, classes, total, sum(row.calls for row in rows), extremes))


def _header(line: str) -> list[str]:
    return [_UNIT.sub("", cell.strip().lower()) for cell in _cells(line)]


def _cells(line: str) -> list[str]:
    """Of a row of either kind: columns two spaces apart, or commas."""
    text = line.strip()
    if text.count(",") >= 4 and not _GAP.search(text):
        try:
            return next(csv.reader([text]))
        except csv.Error:  # bytes of some other file: a lone line end, a field beyond all limits
            return [text]
    return _GAP.split(text)


def _form_of(header: list[str]) -> _Form | None:
    named = set(header)
    return next((form for form in _FORMS if {form.total, form.calls, form.share, "name"} <= named), None)


def _tables(lines: Iterable[str]) -> Iterator[tuple[_Form, list[_Row]]]:
    form: _Form | None = None
    columns: list[str] = []
    units: dict[str, float] = {}
    rows: list[_Row] = []
    on_device = True
    for raw in lines:
        section = _NVPROF_SECTION.match(raw)
        if section is not None:
            on_device = section[1] == "GPU activities"
        line = raw[section.end() :] if section is not None else raw
        cells = _cells(line)
        header = _header(line)
        if len(cells) > 3 and (found := _form_of(header)) is not None:
            if form is not None:
                yield form, rows
            form, rows, on_device = found, [], True
            columns = [name for name in header if name != "type"]
            units = _column_units([cell for cell in cells if cell.strip().lower() != "type"])
        elif form is not None and len(cells) == len(columns):
            row = _row(form, dict(zip(columns, cells, strict=True)), units)
            if row is not None and on_device:
                rows.append(row)
        elif form is not None and rows and form.name == "nvprof" and len(cells) == 1 and line.strip() and on_device:
            rows[-1] = rows[-1]._replace(name=rows[-1].name + line.strip())  # a name that a terminal has cut
    if form is not None:
        yield form, rows


def _column_units(cells: Iterable[str]) -> dict[str, float]:
    """Of columns that state theirs in the header."""
    units: dict[str, float] = {}
    for cell in cells:
        if (unit := _UNIT.search(cell.strip())) is not None:
            units[_UNIT.sub("", cell.strip().lower())] = _NS[unit[1]]
    return units


def _row(form: _Form, cells: Mapping[str, str], units: Mapping[str, float]) -> _Row | None:
    """None for what is no kernel."""
    name, calls = cells["name"].strip(), cells[form.calls].replace(",", "")
    ns = _time(cells[form.total], units.get(form.total, form.factor))
    share = _NUMBER.match(cells[form.share])
    if ns is None or share is None or not calls.isdecimal() or _HOST_NAME.match(name):
        return None
    if form.own and (_time(cells.get(form.own, ""), 1.0) or 0.0) > 0:
        return None
    shortest, longest = (
        _time(cells.get(column, ""), units.get(column, form.factor)) or 0.0 for column in (form.shortest, form.longest)
    )
    return _Row(name, ns, int(calls), float(share[1].replace(",", "")), shortest, longest)


def _time(cell: str, factor: float) -> float | None:
    """Nanoseconds; `factor` where the cell states no unit."""
    found = _NUMBER.match(cell.strip())
    if found is None:
        return None
    return float(found[1].replace(",", "")) * (_NS[found[2]] if found[2] else factor)
