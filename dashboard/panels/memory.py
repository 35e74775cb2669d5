"""The KV memory over time: census, evictions and ghost hits, reuse, the working set against the pool, device memory."""

from dashboard.draw.bars import bar
from dashboard.draw.chart import Series, dot_columns, stacked
from dashboard.draw.figures import age, compact, count, share
from dashboard.draw.spans import Line, Span, beside, clip, section, split_width
from dashboard.model.view import View
from dashboard.panels import plots
from dashboard.panels.chrome import problem_lines
from dashboard.panels.device import device_line
from dashboard.panels.pool import pool_lines
from diagnose.units import seconds

_FIGURES = 7


def draw(view: View, width: int, height: int) -> list[Line]:
    notices: list[Line] = [clip([Span(f" {text}", "bad_strong")], width) for text in problem_lines(view)]
    room = height - len(notices) - 3 - _FIGURES
    upper = max(4, room * 3 // 5) if room >= 8 else room
    lower = room - upper
    columns = split_width(width, (1, 1))
    charts = beside(
        [
            (_evictions(view, columns[0], lower), columns[0]),
            (_hits(view, columns[1], lower), columns[1]),
        ],
        lower,
    )
    return [
        *notices,
        *_census(view, width, upper),
        *charts,
        *section("now", pool_lines(view, width), width, 3, "reclaimable blocks are cached content that may be given up"),
        *section("reuse", _figures(view, width), width, _FIGURES),
    ]  # fmt: skip


def _census(view: View, width: int, height: int) -> list[Line]:
    history, cells = view.target.history, dot_columns(width) // 2
    parts = [
        Series(history.bins(name, view.at, view.span, cells, mean=True), name)
        for name in ("active", "reclaimable", "free")
    ]
    legend = plots.legend(("█ active", "active"), ("█ reclaimable", "reclaimable"), ("█ free", "free"))
    return section("block census", stacked(parts, width, height - 1, compact), width, height, legend)


def _evictions(view: View, width: int, height: int) -> list[Line]:
    history = view.target.history
    rates = [(name, history.at(f"{column}_rate", view.at, within=30)) for name, column in _EVICTIONS]
    note = "  ".join(f"{name} {compact(rate)}/s" for name, rate in rates if rate is not None)
    columns = {"eviction_rate": "reclaimable", "ghost_rate": "bad", "preemption_rate": "warn"}
    return plots.lines(view, "evictions, ghost hits", columns, width, height, compact, note=note or "not observed")


_EVICTIONS = (("evicted", "eviction"), ("ghost", "ghost"), ("preempted", "preemption"))


def _hits(view: View, width: int, height: int) -> list[Line]:
    value = view.target.history.at("hit_ratio", view.at, within=60)
    note = "not observed" if value is None else share(value)
    columns = {"hit_ratio": "good"}
    return plots.lines(view, "prompt tokens found", columns, width, height, share, note=note, top=1.0,
                       mean=True)  # fmt: skip


def _figures(view: View, width: int) -> list[Line]:
    history, at = view.target.history, view.at
    residency, reuse = history.at("residency", at, within=120), history.at("reuse_age", at, within=120)
    lines: list[Line] = [_working_set(view, width)]
    lines.append(_fact("residency", residency, "mean time of cached content until it is evicted, last seconds"))
    lines.append(_fact("reuse age", reuse, "mean time until a given-back block is hit again"))
    if residency is not None and reuse is not None and residency < reuse:
        lines.append([Span(" content is evicted sooner than it is asked for again", "bad_strong")])
    ghosts = history.at("ghost_rate", at, within=30)
    text = (
        "not measured: the target counts none" if ghosts is None else f"{ghosts:.1f}/s blocks asked for after eviction"
    )
    lines.append([Span(f" {'ghost hits':<13}", "dim"), Span(text, "bad" if ghosts else "number")])
    lines.append(device_line(view))
    return lines


def _fact(name: str, value: float | None, meaning: str) -> Line:
    shown = "not observed" if value is None else age(value) if value >= 10 else seconds(value)
    return [Span(f" {name:<13}", "dim"), Span(f"{shown:<13}", "number"), Span(meaning, "dim")]


def _working_set(view: View, width: int) -> Line:
    history, at = view.target.history, view.at
    needed = history.at("working_set", at, within=600)
    known = [history.at(name, at) for name in ("active", "reclaimable", "free")]
    total = sum(value for value in known if value is not None)
    if needed is None or not total:
        return [Span(f" {'working set':<13}", "dim"), Span("not measured: nothing was asked for again", "dim")]
    role = "bad" if needed > total else "good"
    text = f" {count(needed)} of {count(total)} blocks would have served 95 % of the reuse"
    room = max(0, min(40, width - 14 - len(text)))
    line = bar([(min(needed, total), role, "█"), (max(0.0, total - needed), "rule", "·")], room)
    return [Span(f" {'working set':<13}", "dim"), *line, Span(text, role)]
