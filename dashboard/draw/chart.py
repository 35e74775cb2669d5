"""Line charts in braille: eight dots a cell, one role a series, a band for the baseline, an axis in the unit of the figures.

Drawn with integer dots into a byte per cell; the field's plotting libraries take ten times as long for the same picture.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, log10

from dashboard.draw.spans import Line, Span

_BLANK = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""By dot row and dot column of a cell."""
AXIS_WIDTH = 7


@dataclass(frozen=True, slots=True)
class Series:
    values: Sequence[float | None]
    """One per dot column, oldest first."""
    role: str


@dataclass(frozen=True, slots=True)
class Band:
    """The baseline's range, drawn behind the series."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Marker:
    """A column of the chart: the moment that is shown, the edge of a window."""

    share: float
    """Of the width, 0 to 1."""
    role: str
    glyph: str = "│"


def nice_ceiling(value: float) -> float:
    """The next of 1, 2, 3, 4, 5, 6, 8, 10 x 10^n: a scale that does not jump at every sample."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next((power * step for step in (1, 2, 3, 4, 5, 6, 8, 10) if value <= power * step * (1 + 1e-9)), power * 10)


def dot_columns(width: int) -> int:
    """How many values a chart of `width` cells shows."""
    return max(0, width - AXIS_WIDTH) * 2


def chart(
    series: Sequence[Series],
    width: int,
    height: int,
    unit: Callable[[float], str],
    *,
    band: Band | None = None,
    markers: Sequence[Marker] = (),
    top: float | None = None,
) -> list[Line]:
    """`height` lines of `width` cells with the axis on the left; from zero up to `top`, or to what the values need."""
    columns = max(0, width - AXIS_WIDTH)
    if height < 1 or columns < 1:
        return []
    known = [value for one in series for value in one.values if value is not None]
    ceiling = top if top is not None else nice_ceiling(max([*known, band.high if band else 0.0, 0.0]))
    cells, roles = bytearray(columns * height), [""] * (columns * height)
    for one in series:
        _plot(one, cells, roles, columns, height, ceiling)
    inside = _band_rows(band, height, ceiling)
    overlay = {min(columns - 1, int(marker.share * columns)): marker for marker in markers if 0 <= marker.share <= 1}
    return [
        [Span(_label(y, height, ceiling, unit), "axis"), *_row(cells, roles, y, columns, inside, overlay)]
        for y in range(height)
    ]


def _label(y: int, height: int, ceiling: float, unit: Callable[[float], str]) -> str:
    shown = {0: ceiling, height - 1: 0.0} if height > 1 else {0: ceiling}
    if height >= 7 and height % 2:
        shown[height // 2] = ceiling / 2
    text = unit(shown[y]) if y in shown else ""
    return f"{text[: AXIS_WIDTH - 1]:>{AXIS_WIDTH - 1}} "


def _plot(one: Series, cells: bytearray, roles: list[str], columns: int, height: int, ceiling: float) -> None:
    """A connected line: neighbours are joined by a vertical run, gaps stay open."""
    bottom, previous = height * 4 - 1, -1
    for x, value in enumerate(one.values[: columns * 2]):
        if value is None:
            previous = -1
            continue
        dot = bottom - round(value / ceiling * bottom) if ceiling > 0 else bottom
        dot = 0 if dot < 0 else bottom if dot > bottom else dot
        low, high = (dot, dot) if previous < 0 else (previous, dot) if previous < dot else (dot, previous)
        for y in range(low, high + 1):
            place = (y >> 2) * columns + (x >> 1)
            cells[place] |= _DOTS[y & 3][x & 1]
            roles[place] = one.role
        previous = dot


def _band_rows(band: Band | None, height: int, ceiling: float) -> range:
    if band is None or ceiling <= 0:
        return range(0)
    high = height - 1 - floor(min(1.0, band.high / ceiling) * (height - 1e-9))
    low = height - 1 - floor(min(1.0, band.low / ceiling) * (height - 1e-9))
    return range(max(0, high), min(height - 1, low) + 1)


def _row(
    cells: bytearray, roles: list[str], y: int, columns: int, inside: range, overlay: dict[int, Marker]
) -> list[Span]:
    """Runs of one role each: fewer spans, less to style."""
    spans: list[Span] = []
    text, role = "", ""
    empty, empty_role = ("·", "band") if y in inside else (" ", "")
    if not overlay and not any(cells[y * columns : (y + 1) * columns]):
        return [Span(empty * columns, empty_role)]
    for x in range(columns):
        place = y * columns + x
        if cells[place]:
            glyph, its_role = chr(_BLANK + cells[place]), roles[place]
        elif x in overlay:
            glyph, its_role = overlay[x].glyph, overlay[x].role
        else:
            glyph, its_role = empty, empty_role
        if its_role != role and text:
            spans.append(Span(text, role))
            text = ""
        role, text = its_role, text + glyph
    return [*spans, Span(text, role)] if text else spans


def stacked(parts: Sequence[Series], width: int, height: int, unit: Callable[[float], str]) -> list[Line]:
    """Columns of eighth blocks stacked bottom up, one value per cell. A cell that two parts share has the lower one's block on
    the upper one's ground: its role names both, `lower|upper`."""
    columns = max(0, width - AXIS_WIDTH)
    if height < 1 or columns < 1:
        return []
    totals = [
        sum(one.values[x] or 0.0 for one in parts) for x in range(min([columns, *(len(p.values) for p in parts)]))
    ]
    ceiling = nice_ceiling(max([*totals, 0.0]))
    empty = (Span(" "),) * height
    stacks = [_stack(_edges(parts, x, ceiling, height), height) for x in range(len(totals))]
    stacks += [empty] * (columns - len(stacks))
    return [
        [Span(_label(y, height, ceiling, unit), "axis"), *_merge([stack[height - 1 - y] for stack in stacks])]
        for y in range(height)
    ]  # fmt: skip


_EIGHTHS = " ▁▂▃▄▅▆▇█"
Edges = tuple[tuple[float, str], ...]
"""Where each part of a column ends, in cells from the ground, and its role."""


def _edges(parts: Sequence[Series], x: int, ceiling: float, height: int) -> Edges:
    found, total = [], 0.0
    for one in parts:
        total += one.values[x] or 0.0
        found.append((total / ceiling * height, one.role))
    return tuple(found)


@lru_cache(maxsize=1024)
def _stack(edges: Edges, height: int) -> tuple[Span, ...]:
    """The cells of a column from the ground up. Remembered: from frame to frame nearly all columns are the same."""
    reach = edges[-1][0] if edges else 0.0
    filled = min(height, ceil(reach - 1e-9))
    return tuple(_stack_cell(edges, level) if level < filled else Span(" ") for level in range(height))


def _stack_cell(edges: Sequence[tuple[float, str]], level: int) -> Span:
    """The cell between heights `level` and `level + 1` of a column whose parts end at `edges`."""
    inside: list[tuple[float, str]] = []
    low = float(level)
    for edge, role in edges:
        high = min(edge, level + 1.0)
        if high > low:
            inside.append((high - low, role))
            low = high
    filled = min(1.0, sum(share for share, _ in inside))
    if filled < 1.0 - 1e-6:  # the top of the column: one part, the larger
        return Span(_EIGHTHS[max(1, round(filled * 8))], max(inside)[1])
    eighths = round(inside[0][0] * 8)
    upper = max(inside[1:], default=(0.0, ""))[1]
    if eighths >= 8 or not upper:
        return Span("█", inside[0][1])
    return Span("█", upper) if eighths == 0 else Span(_EIGHTHS[eighths], f"{inside[0][1]}|{upper}")


def _merge(row: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    text, role = "", ""
    for span in row:
        if span.role == role:
            text += span.text
            continue
        if text:
            merged.append(Span(text, role))
        text, role = span.text, span.role
    return [*merged, Span(text, role)] if text else merged


def time_axis(width: int, start: float, end: float, now: float) -> Line:
    """How long before `now` (the newest moment there is) the left edge, the middle and the right edge are."""
    columns = max(0, width - AXIS_WIDTH)
    right = "newest" if now - end < 1.5 else f"-{_ago(now - end)}"
    left, middle = f"-{_ago(now - start)}", f"-{_ago(now - (start + end) / 2)}"
    if columns < len(left) + len(middle) + len(right) + 4:
        return [Span(" " * AXIS_WIDTH), Span(f"{left}{right:>{max(1, columns - len(left))}}", "axis")]
    half = columns // 2 - len(left)
    text = left + f"{middle:>{half + len(middle) // 2}}"
    return [Span(" " * AXIS_WIDTH), Span(text + f"{right:>{columns - len(text)}}", "axis")]


def _ago(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 5400 else f"{seconds / 3600:.1f}h"
