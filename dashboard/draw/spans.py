"""Lines of spans: text with the role that says what it means. A theme turns roles into colours, a pipe leaves them out."""

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple


class Span(NamedTuple):
    text: str
    role: str = ""
    action: str = ""
    """What a click on it does: an action of the application."""


Line = list[Span]


def text_width(line: Iterable[Span]) -> int:
    return sum([len(span.text) for span in line])


def plain(line: Iterable[Span]) -> str:
    return "".join(span.text for span in line)


def clip(line: Sequence[Span], width: int) -> Line:
    """At most `width` cells; what is cut off ends in an ellipsis."""
    return _clip(line, text_width(line), width)


def _clip(line: Sequence[Span], used: int, width: int) -> Line:
    if used <= width:
        return list(line)
    found: Line = []
    room = max(0, width - 1)
    for span in line:
        if len(span.text) >= room:
            found.append(Span(span.text[:room] + ("…" if width > 0 else ""), span.role, span.action))
            return found
        found.append(span)
        room -= len(span.text)
    return found


def fit(line: Sequence[Span], width: int) -> Line:
    """Exactly `width` cells."""
    used = text_width(line)
    clipped = _clip(line, used, width)
    return [*clipped, Span(" " * (width - used))] if used < width else clipped


def both_ends(left: Sequence[Span], right: Sequence[Span], width: int) -> Line:
    """Left and right aligned on one line with a cell between them; the left side gives way."""
    room = width - text_width(right) - 1
    if room < 3:
        return fit(left, width)
    return [*fit(left, room), Span(" "), *right]


def narrow(text: str) -> str:
    """Text from elsewhere, one cell per character: anything else would shift what stands beside it."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char.isprintable() and unicodedata.east_asian_width(char) not in "WF" and not unicodedata.combining(char)
        else "?"
        for char in text
    )  # fmt: skip


def wrap(text: str, width: int, most: int, role: str = "", lead: str = "", indent: str = "") -> list[Line]:
    """At most `most` lines of `width` cells, broken at spaces; the last one ends in an ellipsis if something is left out.

    `lead` begins the first line, `indent` the others.
    """
    return [clip([Span(line, role)], width) for line in _wrapped(text, width, most, lead, indent)]


@lru_cache(maxsize=512)
def _wrapped(text: str, width: int, most: int, lead: str, indent: str) -> tuple[str, ...]:
    """Remembered: from frame to frame a diagnosis says the same."""
    lines, current = [], lead
    for word in narrow(text).split():
        if current.strip() and len(current) + 1 + len(word) > width:
            lines.append(current)
            current = indent + word
        else:
            current += word if not current.strip() else f" {word}"
    lines.append(current)
    if len(lines) > most and most > 0:
        lines[most - 1] = lines[most - 1][: max(0, width - 1)] + "…"
    return tuple(lines[:most])


def blank(width: int, count: int) -> list[Line]:
    return [[Span(" " * width)] for _ in range(max(0, count))]


def rule(title: str, width: int, note: str | Line = "", role: str = "title") -> Line:
    """`── title ─────────── note ──`; a note may be spans of its own."""
    title = narrow(title)
    if len(title) + 5 > width:
        return fit([Span(title, role)], width)
    room = width - len(title) - 7
    noted = [Span(narrow(note), "dim")] if isinstance(note, str) else note
    noted = clip(noted, room) if room > 8 and text_width(noted) else []
    head: Line = [Span("─ ", "rule"), Span(title, role), Span(" ", "rule")]
    tail: Line = [Span(" ", "rule"), *noted, Span(" ─", "rule")] if noted else []
    fill = width - text_width(head) - text_width(tail)
    return [*head, Span("─" * max(0, fill), "rule"), *tail]


def section(title: str, body: Sequence[Line], width: int, height: int, note: str | Line = "") -> list[Line]:
    """A titled block of exactly `height` lines."""
    if height < 1:
        return []
    lines = [rule(title, width, note), *(fit(line, width) for line in body[: height - 1])]
    return lines + blank(width, height - len(lines))


def beside(columns: Sequence[tuple[list[Line], int]], height: int, gap: int = 1) -> list[Line]:
    """Blocks side by side, each (lines, width)."""
    rows: list[Line] = []
    for y in range(height):
        row: Line = []
        for place, (lines, width) in enumerate(columns):
            row += [Span(" " * gap)] if place else []
            row += fit(lines[y] if y < len(lines) else [], width)
        rows.append(row)
    return rows


def split_width(width: int, shares: Sequence[float], gap: int = 1) -> list[int]:
    """Widths of columns in these proportions that fill `width` with gaps between them."""
    room = width - gap * (len(shares) - 1)
    found = [int(room * share / sum(shares)) for share in shares]
    found[-1] += room - sum(found)
    return found
