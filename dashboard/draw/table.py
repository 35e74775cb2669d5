"""Tables with a cursor, an order that a click changes, and a filter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dashboard.draw.spans import Line, Span, clip, fit, narrow
from dashboard.model.view import Table

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    title: str
    width: int
    """Cells; 0 takes what is left."""
    text: Callable[[Row], str]
    key: Callable[[Row], float | str]
    """What it sorts by."""
    right: bool = True
    role: Callable[[Row], str] = lambda _: ""
    keep_end: bool = False
    """What does not fit is cut off at its beginning: ends of addresses and paths tell more."""


def ordered(rows: Sequence[Row], columns: Sequence[Column[Row]], table: Table, search: str) -> list[Row]:
    """Those that any column matches, in the chosen order. Ties keep theirs."""
    needle = search.casefold()
    shown = [row for row in rows if not needle or any(needle in column.text(row).casefold() for column in columns)]
    column = columns[table.sort % len(columns)]
    return sorted(shown, key=column.key, reverse=table.descending)


def draw_table(
    rows: Sequence[Row], columns: Sequence[Column[Row]], table: Table, width: int, height: int, empty: str
) -> list[Line]:
    """Header, then the rows around the cursor; a click on a header sorts, one on a row selects it."""
    if height < 1:
        return []
    widths = _widths(columns, width)
    lines = [_header(columns, widths, table)]
    if not rows:
        return [*lines, clip([Span(f" {empty}", "dim")], width)]
    places = table.scroll(height - 1, len(rows))
    return [*lines, *(_row(rows[at], columns, widths, at, selected=at == table.selected) for at in places)]


def _widths(columns: Sequence[Column[Row]], width: int) -> list[int]:
    """Columns from the right are dropped (width 0) where there is no room; one elastic column takes the rest."""
    widths = [column.width for column in columns]
    elastic = [place for place, column in enumerate(columns) if column.width == 0]
    least = 14
    while sum(w + 1 for w in widths) + least * len(elastic) > width and any(
        w for place, w in enumerate(widths) if place
    ):
        last = max(place for place, w in enumerate(widths) if w and place)
        widths[last] = -1
        widths = [0 if w == -1 else w for w in widths]
    rest = width - sum(w + 1 for w in widths if w) - len(elastic)
    for place in elastic:
        widths[place] = max(0, rest // len(elastic))
    return widths


def _header(columns: Sequence[Column[Row]], widths: Sequence[int], table: Table) -> Line:
    line: Line = []
    for place, (column, width) in enumerate(zip(columns, widths, strict=True)):
        if width:
            mark = ("v" if table.descending else "^") if place == table.sort % len(columns) else ""
            title = (column.title + mark)[:width]
            text = f"{title:>{width}}" if column.right else f"{title:<{width}}"
            line.append(Span(text + " ", "head", f"sort({place})"))
    return line


def _row(row: Row, columns: Sequence[Column[Row]], widths: Sequence[int], place: int, *, selected: bool) -> Line:
    line: Line = []
    for column, width in zip(columns, widths, strict=True):
        if width:
            text = narrow(column.text(row))
            if column.keep_end and len(text) > width:
                text = "…" + text[len(text) - width + 1 :]
            shown = "".join(span.text for span in fit([Span(text)], width))
            if column.right:
                shown = f"{shown.rstrip():>{width}}"
            line.append(Span(shown + " ", "selected" if selected else column.role(row), f"select({place})"))
    return line
