"""The plots that several pages show."""

from collections.abc import Callable

from dashboard.draw.chart import Band, Marker, Series, chart, dot_columns, stacked, time_axis
from dashboard.draw.figures import compact
from dashboard.draw.spans import Line, Span, section
from dashboard.model.view import View
from diagnose.units import seconds


def markers(view: View) -> list[Marker]:
    """The edges of the marked windows, and the moment that is shown when it is not the newest."""
    found: list[Marker] = []
    for mark, role in ((view.target.baseline, "baseline"), (view.target.incident, "incident")):
        if mark is not None:
            edges = [mark.start] if mark.end is None else [mark.start, mark.end]
            found += [Marker((edge - view.start) / view.span, role, "┊") for edge in edges]
    return found


def lines(
    view: View,
    title: str,
    columns: dict[str, str],
    width: int,
    height: int,
    unit: Callable[[float], str],
    *,
    mean: bool = False,
    note: str = "",
    band: Band | None = None,
    top: float | None = None,
    axis: bool = False,
) -> list[Line]:
    """A titled chart of history columns (name -> role), `axis` with the time below."""
    inner = height - 1 - axis
    history = view.target.history
    series = [
        Series(history.bins(name, view.at, view.span, dot_columns(width), mean=mean), role)
        for name, role in columns.items()
    ]
    body = chart(series, width, max(0, inner), unit, band=band, markers=markers(view), top=top)
    if axis:
        body.append(time_axis(width, view.start, view.at, view.target.end(view.now)))
    return section(title, body, width, height, note)


def latency(view: View, which: str, title: str, width: int, height: int, *, axis: bool = False) -> list[Line]:
    """p99 above p50, with the band of the marked baseline."""
    history, at = view.target.history, view.at
    shown = [
        f"p{q} {seconds(value)}" for q in (50, 99) if (value := history.at(f"{which}_p{q}", at, within=15)) is not None
    ]
    return lines(
        view,
        title,
        {f"{which}_p99": "p99", f"{which}_p50": "p50"},
        width,
        height,
        seconds,
        note="  ".join(shown) or "not observed",
        band=baseline_band(view, which),
        axis=axis,
    )


def baseline_band(view: View, which: str) -> Band | None:
    """Mean p50 to mean p99 of the marked baseline window."""
    mark = view.target.baseline
    if mark is None or mark.end is None:
        return None
    low = view.target.history.mean(f"{which}_p50", mark.start, mark.end)
    high = view.target.history.mean(f"{which}_p99", mark.start, mark.end)
    return None if low is None or high is None else Band(low, high)


TOKEN_PARTS = (("prefill", "prefill"), ("decode", "decode"), ("recompute", "recompute"))


def tokens(view: View, width: int, height: int) -> list[Line]:
    """Computed tokens per second by phase, stacked; cached ones cost nothing and are only named."""
    history, cells = view.target.history, dot_columns(width) // 2
    parts = [
        Series(history.bins(f"{name}_rate", view.at, view.span, cells, mean=True), role) for name, role in TOKEN_PARTS
    ]
    rates = [(name, history.at(f"{name}_rate", view.at, within=15)) for name, _ in (*TOKEN_PARTS, ("cached", ""))]
    note = "  ".join(f"{name} {compact(rate)}" for name, rate in rates if rate is not None)
    return section("tokens/s", stacked(parts, width, max(0, height - 1), compact), width, height, note)


def queue(view: View, width: int, height: int) -> list[Line]:
    return lines(
        view,
        "requests",
        {"waiting": "wait", "running": "running"},
        width,
        height,
        compact,
        note=queue_text(view),
    )


def queue_text(view: View) -> str:
    """`running 5/16  waiting 2 (kv_blocks 2)`"""
    history, at, levels = view.target.history, view.at, view.target.levels
    running, waiting = history.at("running", at, within=30), history.at("waiting", at, within=30)
    cap = history.at("max_sequences", at)
    if running is None and waiting is None:
        return "not observed"
    of_cap = "" if cap is None else f"/{cap:.0f}"
    text = f"running {running or 0:.0f}{of_cap}  waiting {waiting or 0:.0f}"
    if waiting and view.playhead.follows and levels:
        reasons = [f"{name} {value:.0f}" for name, value in levels[-1].waiting_reasons.items() if value]
        text += f" ({', '.join(reasons)})" if reasons else ""
    return text


def legend(*entries: tuple[str, str]) -> Line:
    line: Line = []
    for glyph_and_name, role in entries:
        line += [Span(" " if line else ""), Span(glyph_and_name, role)]
    return line
