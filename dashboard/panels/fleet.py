"""One row a target, worst first."""

from dashboard.draw.figures import age, compact
from dashboard.draw.spans import Line, section
from dashboard.draw.table import Column, draw_table, ordered
from dashboard.model.target import Phase, Target
from dashboard.model.view import View
from dashboard.panels.chrome import PHASE_MARKS
from diagnose.units import seconds

_PHASE_TROUBLE = {
    Phase.LOST: 5.0, Phase.UNREACHABLE: 4.5, Phase.NOT_METRICS: 4.0, Phase.STALE: 3.5, Phase.CONNECTING: 1.2,
}  # fmt: skip


def trouble(view: View, target: Target) -> float:
    """How badly somebody should look: gone, then hard failures and causes, then what waits; ties by the slow tail."""
    phase = target.phase(view.now)
    severity = float(target.summary.severity) if target.summary is not None else 0.0
    waiting = target.history.at("waiting", view.now, within=60) or 0.0
    tail = target.history.at("itl_p99", view.now, within=60) or 0.0
    return max(_PHASE_TROUBLE.get(phase, 0.0), severity) + min(0.4, waiting / 100) + min(0.05, tail / 100)


def columns(view: View) -> list[Column[Target]]:
    def value(name: str, target: Target) -> float | None:
        return target.history.at(name, target.end(view.now), within=60)

    def number(title: str, width: int, name: str, text: str = "seconds") -> Column[Target]:
        unit = seconds if text == "seconds" else compact

        def cell(target: Target) -> str:
            found = value(name, target)
            return "-" if found is None else unit(found)

        return Column(title, width, cell, lambda target: value(name, target) or 0.0)

    def tokens(target: Target) -> float:
        return (value("decode_rate", target) or 0.0) + (value("prefill_rate", target) or 0.0)

    return [
        Column("state", 13, lambda t: _state(view, t), lambda t: trouble(view, t), right=False,
               role=lambda t: PHASE_MARKS[t.phase(view.now)][1]),
        Column("target", 0, lambda t: t.name, lambda t: t.name, right=False, keep_end=True),
        Column("verdict", 24, _verdict, _verdict, right=False, role=_verdict_role),
        number("ITL p50", 8, "itl_p50"),
        number("ITL p99", 8, "itl_p99"),
        number("TTFT p99", 9, "ttft_p99"),
        number("run", 5, "running", "count"),
        number("wait", 5, "waiting", "count"),
        Column("active", 7, lambda t: _active_text(view, t), lambda t: _active(view, t) or 0.0),
        Column("tok/s", 7, lambda t: compact(tokens(t)), tokens),
        Column("model", 20, lambda t: t.info.get("model", ""), lambda t: t.info.get("model", ""), right=False),
    ]  # fmt: skip


def _state(view: View, target: Target) -> str:
    phase = target.phase(view.now)
    mark = PHASE_MARKS[phase][0]
    if phase is Phase.LOST:
        gone = target.lost_for(view.now)
        return f"{mark} lost {age(gone)}" if gone is not None else f"{mark} lost"
    return f"{mark} {'no metrics' if phase is Phase.NOT_METRICS else phase.value}"


def _verdict(target: Target) -> str:
    summary = target.summary
    if summary is None:
        return "not judged yet"
    if summary.idle:
        return "idle"
    supported = [row.name for row in summary.verdicts if row.verdict in ("supported", "confirmed") and not row.benign]
    return summary.primary or ", ".join(supported) or ("nothing wrong" if summary.exit_code == 0 else "undetermined")


def _verdict_role(target: Target) -> str:
    if target.summary is None or target.summary.idle:
        return "dim"
    return ("good", "warn", "bad", "bad_strong")[target.summary.severity]


def _active(view: View, target: Target) -> float | None:
    at = target.end(view.now)
    known = [target.history.at(name, at, within=60) for name in ("active", "reclaimable", "free")]
    found = [value for value in known if value is not None]
    total = sum(found)
    return found[0] / total if len(found) == 3 and total else None


def _active_text(view: View, target: Target) -> str:
    found = _active(view, target)
    return "-" if found is None else f"{found * 100:.0f}%"


def rows(view: View) -> list[Target]:
    return ordered(view.targets, columns(view), view.table, view.search)


def draw(view: View, width: int, height: int) -> list[Line]:
    shown = rows(view)
    lost = sum(target.phase(view.now) in (Phase.LOST, Phase.UNREACHABLE) for target in view.targets)
    causes = sum(target.summary is not None and target.summary.severity >= 2 for target in view.targets)
    note = f"{len(shown)} of {len(view.targets)} targets, {lost} not answering, {causes} with a cause"
    note += f", filter {view.search!r}" if view.search else ""
    table = draw_table(shown, columns(view), view.table, width, height - 1, "nothing matches the filter")
    return section("fleet, worst first", table, width, height, note)
