"""Requests in flight: what each waits for, and where its time went as far as it was seen."""

from collections.abc import Callable

from dashboard.draw.figures import age, clock, compact, count
from dashboard.draw.spans import Line, Span, section
from dashboard.draw.table import Column, draw_table, ordered
from dashboard.model.requests import RequestRow
from dashboard.model.view import View
from diagnose.units import seconds


def _progress(row: RequestRow) -> str:
    if row.computed_tokens >= row.prompt_tokens:
        return f"{row.output_tokens} out"
    return f"{row.computed_tokens}/{row.prompt_tokens}"


def columns(view: View) -> list[Column[RequestRow]]:
    times = view.target.request_times

    def spent(row: RequestRow) -> str:
        return times.text(row)

    return [
        Column("request", 0, lambda r: r.request_id, lambda r: r.request_id, right=False),
        Column("age", 7, lambda r: age(r.age_seconds), lambda r: r.age_seconds),
        Column("state", 9, lambda r: r.state, lambda r: r.state, right=False, role=_state_role),
        Column("where its time went", 34, spent, lambda r: times.waited(r), right=False),
        Column("progress", 10, _progress, lambda r: r.computed_tokens / max(1, r.prompt_tokens)),
        Column("passed over", 11, lambda r: count(r.deferred_steps), lambda r: r.deferred_steps, role=_deferred_role),
        Column("waits for", 24, lambda r: r.reason, lambda r: r.reason, right=False),
        Column("blocks", 7, lambda r: count(r.blocks), lambda r: r.blocks),
        Column("preempted", 9, lambda r: count(r.preemptions), lambda r: r.preemptions),
        Column("prompt", 8, lambda r: count(r.prompt_tokens), lambda r: r.prompt_tokens),
    ]


def _state_role(row: RequestRow) -> str:
    return "wait" if row.state == "waiting" else "good" if row.state == "running" else ""


def _deferred_role(row: RequestRow) -> str:
    return "bad" if row.deferred_steps else ""


def rows(view: View) -> list[RequestRow]:
    found = view.target.requests
    return [] if found is None else ordered(found.rows, columns(view), view.table, view.search)


def draw(view: View, width: int, height: int) -> list[Line]:
    ended = _ended(view, width) if height >= 10 else []
    return [*_in_flight(view, width, height - len(ended)), *ended]


def _in_flight(view: View, width: int, height: int) -> list[Line]:
    found = view.target.requests
    if view.target.is_file:
        text = "a recording holds no request list: /debug/requests is read live only"
        return section("requests in flight", [[Span(f" {text}", "dim")]], width, height)
    if found is None:
        return section("requests in flight", [[Span(" asking the engine ...", "dim")]], width, height)
    if found.problem:
        return section("requests in flight", [[Span(f" {found.problem}", "warn")]], width, height)
    shown = rows(view)
    note = f"{len(shown)} of {found.total}, {clock(found.unix)}" + (f", filter {view.search!r}" if view.search else "")
    empty = "nothing matches the filter" if view.search else "nothing is in flight"
    table = draw_table(shown, columns(view), view.table, width, height - 1, empty)
    return section("requests in flight", table, width, height, note)


def _ended(view: View, width: int) -> list[Line]:
    """Of those that are over: how many, how many failed, how long they took, and what one of them was like."""
    history, at = view.target.history, view.at

    def shown(name: str, column: str, unit: Callable[[float], str]) -> Line:
        value = history.at(column, at, within=60)
        return [Span(f" {name} ", "dim"), Span("not observed" if value is None else unit(value), "number")]

    rates = [
        *shown("finished", "finished_rate", _per_second),
        *shown(" failed", "failure_rate", _per_second),
        *shown(" preempted", "preemption_rate", _per_second),
    ]
    times = [
        *shown("queue p50", "queue_p50", seconds),
        *shown(" end to end p50", "e2e_p50", seconds),
        Span(f"  {_typical(view)}", "dim"),
    ]
    return section("requests that ended", [rates, times], width, 3, "last seconds")


def _per_second(value: float) -> str:
    return f"{value:.2f}/s" if value < 10 else f"{compact(value)}/s"


def _typical(view: View) -> str:
    """Mean tokens of a request, from what was counted over the span of the plots."""
    means = {
        name: view.target.history.mean(f"{name}_rate", view.start, view.at)
        for name in ("finished", "prefill", "cached", "decode")
    }
    finished = means["finished"]
    if not finished or means["decode"] is None:
        return ""
    prompt = (means["prefill"] or 0.0) + (means["cached"] or 0.0)
    return f"about {compact(prompt / finished)} prompt and {compact(means['decode'] / finished)} output tokens each"
