"""The block bar: the pool's three disjoint states, and beside it the reserved device memory, which is a different thing."""

from dashboard.draw.bars import block_bar, memory_bar
from dashboard.draw.figures import count
from dashboard.draw.spans import Line, Span, section
from dashboard.model.view import View
from diagnose.units import binary_bytes, percent


def pool_lines(view: View, width: int) -> list[Line]:
    """Two lines; what was not measured is said, not drawn."""
    return [_blocks(view, width), _memory(view, width)]


def pool_section(view: View, width: int) -> list[Line]:
    return section("KV blocks, and device memory reserved", pool_lines(view, width), width, 3)


def _blocks(view: View, width: int) -> Line:
    history, at = view.target.history, view.at
    found = [history.at(name, at) for name in ("active", "reclaimable", "free")]
    known = [value for value in found if value is not None]
    if len(known) < 3:
        return [Span(" blocks  "), Span("active, reclaimable and free were not measured as disjoint counts", "dim")]
    active, reclaimable, free = known
    texts: Line = [
        Span(f" █ {count(active)} active", "active"),
        Span(f" ▒ {count(reclaimable)} reclaimable", "reclaimable"),
        Span(f" ░ {count(free)} free ", "free"),
    ]
    room = width - 9 - sum(len(span.text) for span in texts)
    if room < 8:
        return [Span(" blocks "), *texts]
    return [Span(" blocks  "), *block_bar(active, reclaimable, free, room), *texts]


def _memory(view: View, width: int) -> Line:
    history, at = view.target.history, view.at
    total, reserved = history.at("memory_total", at), history.at("memory_reserved", at)
    if not total or reserved is None:
        return [Span(" memory  "), Span("device memory is not reported", "dim")]
    text = f" {binary_bytes(reserved)} of {binary_bytes(total)} reserved ({percent(reserved / total)}): not occupancy "
    room = width - 9 - len(text)
    if room < 8:
        text = f" {percent(reserved / total)} of {binary_bytes(total)} reserved "
        room = width - 9 - len(text)
    return [Span(" memory  "), *memory_bar(reserved, total, max(0, room)), Span(text, "reserved")]
