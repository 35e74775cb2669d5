"""What stands above every page: the tabs with the clock, and the target with its health."""

from dashboard.draw.figures import age, clock, count
from dashboard.draw.spans import Line, Span, both_ends, narrow, text_width
from dashboard.model.target import Phase, Target
from dashboard.model.view import Page, View

PHASE_MARKS = {
    Phase.CONNECTING: ("○", "wait"),
    Phase.UNREACHABLE: ("✖", "bad"),
    Phase.NOT_METRICS: ("✖", "bad"),
    Phase.LIVE: ("●", "good"),
    Phase.IDLE: ("○", "dim"),
    Phase.STALE: ("◐", "warn"),
    Phase.LOST: ("✖", "bad"),
    Phase.RECORDING: ("■", "good"),
}
_SHORT = {Page.REQUESTS: "Reqs", Page.PROTOCOL: "Proto", Page.TECHNIQUES: "Tech"}
"""Where a tab has no room for its page's name."""


def tab_bar(view: View, width: int) -> Line:
    tabs: Line = []
    for number, page in enumerate(Page, 1):
        role = "tab_on" if page is view.page else "tab"
        name = page.value.capitalize()
        shown = f" {number} {name}" if width >= 100 else f" {number}{_SHORT.get(page, name)}"
        tabs += [Span(shown, role, f"page('{page.value}')")]
        tabs += [Span(" ", role)]
    if width >= 112:
        tabs = [Span(" stallscope ", "brand"), *tabs]
    return both_ends(tabs, _time(view, room=width - text_width(tabs) - 1), width)


def _time(view: View, room: int) -> Line:
    head, at = view.playhead, clock(view.at)
    if head.follows:
        state, role = ("end" if view.target.is_file else "now"), "good"
    elif head.playing:
        state, role = f"> {head.speed:g}x", "warn"
    else:
        state, role = "paused", "warn"
    shown = f"{state} {at} "
    return [Span(shown if len(shown) <= room else f"{at} ", role)]


def status_line(view: View, width: int) -> Line:
    """Health, target, engine, model, budget, uptime, and how old what is shown is."""
    target = view.target
    phase = target.phase(view.now, view.phase_moment())
    mark, role = PHASE_MARKS[phase]
    left: Line = [Span(f" {mark} {phase.value}", role), Span(f"  {narrow(target.name)}", "title")]
    for text in _facts(view, target):
        left += [Span(" · ", "rule"), Span(text, "")]
    return both_ends(left, _freshness(view, phase), width)


def _facts(view: View, target: Target) -> list[str]:
    history, at = target.history, view.at
    found = [narrow(text) for text in (target.info.get("model", ""), _engine(target)) if text]
    if target.restarts:
        found.insert(0, f"restarted {target.restarts}x")
    budget = history.at("budget", at)
    if budget is not None:
        found.append(f"budget {count(budget)}")
    start = target.levels[-1].gauges.get("start_time") if target.levels else None
    if start is not None and at > start:
        found.append(f"up {age(at - start)}")
    return found


def _engine(target: Target) -> str:
    version = target.info.get("version", "")
    return f"{target.dialect} {version}".strip()


def _freshness(view: View, phase: Phase) -> Line:
    target = view.target
    if phase is Phase.LOST:
        gone = target.lost_for(view.at)
        return [Span(f"last answer {age(gone)} ago " if gone is not None else "never answered ", "bad")]
    if target.write_problem:
        return [Span(f"{narrow(target.write_problem)} ", "bad")]
    if target.missing:
        return [Span(f"partial: no {target.missing[0]} ", "warn")]
    if view.playhead.follows and not target.is_file and target.history.last is not None:
        return [Span(f"{age(view.now - target.history.last)} ago ", "warn" if phase is Phase.STALE else "dim")]
    return []


def problem_lines(view: View) -> list[str]:
    """What is wrong with the target, for the pages' first line; empty when nothing is."""
    target = view.target
    phase = target.phase(view.now, view.phase_moment())
    if phase is Phase.LOST:
        gone = target.lost_for(view.at)
        since = f"lost for {age(gone)}" if gone is not None else "lost"
        why = target.problem.removeprefix(f"{target.name}/metrics: ") or "it does not answer"
        return [f"{since}: {why}; older figures below; it is tried again"]
    if phase is Phase.STALE:
        return ["stale: an answer is overdue; what is shown is older"]
    return []
