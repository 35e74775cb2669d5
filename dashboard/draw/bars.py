"""Proportional bars: the block bar, shares of a whole, the account's waterfall."""

from collections.abc import Sequence

from dashboard.draw.spans import Line, Span, fit, narrow
from dashboard.model.summary import PartView
from diagnose.units import percent, seconds

Part = tuple[float, str, str]
"""Amount, role, glyph. The glyphs differ so that a bar reads without colours."""


def bar(parts: Sequence[Part], width: int, total: float | None = None) -> Line:
    """`width` cells; parts that are not nothing get a cell each, as far as there is room."""
    whole = total if total is not None else sum(amount for amount, _, _ in parts)
    if whole <= 0 or width < 1:
        return [Span(" " * max(0, width))]
    cells = [max(1, round(amount / whole * width)) if amount > 0 else 0 for amount, _, _ in parts]
    while sum(cells) > width:
        cells[cells.index(max(cells))] -= 1
    if total is None and sum(cells) < width:
        cells[cells.index(max(cells))] += width - sum(cells)
    line = [Span(glyph * count, role) for count, (_, role, glyph) in zip(cells, parts, strict=True) if count]
    return fit(line, width)


def block_bar(active: float, reclaimable: float, free: float, width: int) -> Line:
    """The pool in its three disjoint states."""
    return bar([(active, "active", "█"), (reclaimable, "reclaimable", "▒"), (free, "free", "░")], width)


def memory_bar(reserved: float, total: float, width: int) -> Line:
    """Device memory that the process reserved: lines, not blocks, since it says nothing of what is in use."""
    return bar([(reserved, "reserved", "═"), (max(0.0, total - reserved), "dim", "─")], width)


_PART_ROLES = {
    "decode (floor)": "decode",
    "co-scheduled prefill": "prefill",
    "recompute": "recompute",
    "thread off its core": "offcpu",
    "host and lock": "host",
}


def waterfall(parts: Sequence[PartView], total: float, width: int, height: int) -> list[Line]:
    """One row a part, each starting where the one before ended: the parts add up to the gap. Largest parts survive a small
    height, in their order."""
    room = max(0, width - 40)
    kept = sorted(sorted(parts, key=lambda row: -row.seconds)[:height], key=parts.index)
    lines: list[Line] = []
    start = 0.0
    for row in kept:
        share = row.seconds / total if total > 0 else 0.0
        offset = round(start / total * room) if total > 0 else 0
        length = max(1 if row.seconds > 0 else 0, round(share * room))
        offset = min(offset, room - length)
        lines.append([
            Span(f" {narrow(row.label):<21}"),
            Span(f"{seconds(row.seconds):>9} {percent(share):>6} ", "number"),
            Span(" " * offset),
            Span("█" * length, _PART_ROLES.get(row.label, "other")),
        ])  # fmt: skip
        start += row.seconds
    return lines


def share_row(label: str, share: float, text: str, width: int, role: str) -> Line:
    """`label ▇▇▇▇▇      text`"""
    room = max(0, width - len(text) - 24)
    filled = max(1 if share > 0 else 0, min(room, round(share * room)))
    return [
        Span(f" {narrow(label)[:20]:<21}"),
        Span("█" * filled, role),
        Span("·" * (room - filled), "rule"),
        Span(f"  {text}", "number"),
    ]
