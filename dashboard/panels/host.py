"""The host's part: scheduling, the scheduler lock by site, the idle device, and whether the engine's thread had a core."""

from collections.abc import Callable, Sequence

from dashboard.draw.bars import share_row
from dashboard.draw.figures import compact, share
from dashboard.draw.spans import Line, Span, beside, clip, section, split_width
from dashboard.model.view import View
from dashboard.panels import plots
from dashboard.panels.chrome import problem_lines
from diagnose.units import percent, seconds
from probes.records import StepRecord

_LATEST_STEPS = 200
_LOWER_LINES = 14
_PARTS: tuple[tuple[str, str, Callable[[StepRecord], int | None]], ...] = (
    ("forward", "decode", lambda r: r.forward_ns),
    ("sample", "sampling", lambda r: r.sample_ns),
    ("schedule", "host", lambda r: r.schedule_ns),
    ("prepare", "host", lambda r: r.prepare_ns),
    ("post-process", "host", lambda r: r.postprocess_ns),
    ("lock wait", "lock", lambda r: r.lock_wait_ns),
    ("idle device", "gap", lambda r: r.host_gap_ns),
)


def draw(view: View, width: int, height: int) -> list[Line]:
    notices: list[Line] = [clip([Span(f" {text}", "bad_strong")], width) for text in problem_lines(view)]
    room = height - len(notices)
    charts = max(5, room // 3, room - _LOWER_LINES)
    columns = split_width(width, (1, 1))
    upper = beside(
        [
            (_shares(view, columns[0], charts), columns[0]),
            (_lock(view, columns[1], charts), columns[1]),
        ],
        charts,
    )
    below = room - charts
    lower = beside(
        [(_split(view, columns[0], below), columns[0]), (_sites(view, columns[1], below), columns[1])], below
    )
    return [*notices, *upper, *lower]


def _shares(view: View, width: int, height: int) -> list[Line]:
    columns = {"gap_share": "gap", "host_share": "host", "schedule_share": "p50"}
    history = view.target.history
    shown = [(name, history.at(f"{name}_share", view.at, within=30)) for name in ("schedule", "host", "gap")]
    note = "  ".join(f"{name} {percent(value)}" for name, value in shown if value is not None)
    return plots.lines(view, "share of time", columns, width, height, share, note=note or "not observed",
                       mean=True)  # fmt: skip


def _lock(view: View, width: int, height: int) -> list[Line]:
    value = view.target.history.at("lock_share", view.at, within=30)
    note = "not observed" if value is None else f"{percent(value)} of time waited"
    return plots.lines(view, "scheduler lock wait", {"lock_share": "lock"}, width, height, share, note=note)


def _split(view: View, width: int, height: int) -> list[Line]:
    """Where the latest steps' wall time went, and the engine's thread."""
    records = view.steps()[-_LATEST_STEPS:]
    if not records:
        return section("per step", [[Span(" no step records", "dim")]], width, height)
    total = sum(r.end_ns - r.start_ns + (r.host_gap_ns or 0) for r in records)
    body: list[Line] = []
    for name, role, part in _PARTS:
        spent = sum(part(record) or 0 for record in records)
        mean = seconds(spent / len(records) / 1e9)
        body.append(share_row(name, spent / total if total else 0.0, f"{mean:>8}", width, role))
    body += _thread(records)
    return section(f"mean of {len(records)} steps", body, width, height)


def _thread(records: Sequence[StepRecord]) -> list[Line]:
    timed = [r for r in records if r.forward_cpu_ns is not None]
    if not timed:
        return [[Span(" engine thread: its CPU time is not measured", "dim")]]
    elapsed = sum(r.forward_ns + (r.sample_ns or 0) for r in timed)
    running = sum(min(r.forward_cpu_ns or 0, r.forward_ns + (r.sample_ns or 0)) for r in timed)
    ratio = running / elapsed if elapsed else 1.0
    role = "bad" if ratio < 0.8 else "good"
    lines: list[Line] = [
        [Span(" engine thread ", ""), Span(f"on its core {percent(ratio)} of forward and sampling", role)]
    ]
    if ratio < 0.8:
        lines.append([Span(" other threads or processes take it: ", "dim"), Span("py-spy dump --pid PID", "command")])
    return lines


def _sites(view: View, width: int, height: int) -> list[Line]:
    """Who takes the lock, and how long each waits: since the previous scrape, and in all."""
    levels = list(view.target.levels)
    if not levels or not levels[-1].lock_sites:
        return section("lock by site", [[Span(" the target does not time its lock by site", "dim")]], width, height)
    now, before = levels[-1], levels[0]
    rows: list[Line] = [[Span(f" {'site':<18}{'takings/s':>10}{'wait each':>11}{'in all':>10}", "head")]]
    elapsed = now.unix - before.unix
    for site, (takings, waited) in sorted(now.lock_sites.items(), key=lambda item: -item[1][1]):
        then_takings, then_waited = before.lock_sites.get(site, (0.0, 0.0))
        took, wait = max(0.0, takings - then_takings), max(0.0, waited - then_waited)
        rate = compact(took / elapsed) if elapsed > 0 else "-"
        each = seconds(wait / took) if took else "-"
        rows.append([Span(f" {site[:17]:<18}{rate:>10}{each:>11}{seconds(waited):>10}", "")])
    return section("lock by site", rows, width, height)
