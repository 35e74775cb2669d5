"""What is on screen when there is little to show: every state has words of its own, on every page, at 80x24."""

from collections.abc import Callable

import pytest

from dashboard.draw.spans import plain, text_width
from dashboard.model.history import History, Point
from dashboard.model.target import Refusal, Target
from dashboard.model.update import Update
from dashboard.model.view import Page, View
from dashboard.panels.pages import draw_frame
from tests.dashboard.views import URL

NOW = 1_000_000.0


def connecting(target: Target) -> None:
    target.first_try = NOW - 3


def unreachable(target: Target) -> None:
    target.first_try = NOW - 75
    target.refusal = Refusal(NOW - 1, f"{URL}/metrics: connection refused: nothing listens there", answered=False)


def not_metrics(target: Target) -> None:
    target.refusal = Refusal(NOW - 1, f"{URL}/metrics: not a metrics page: it begins with '<html>'", answered=True)


def idle(target: Target) -> None:
    for ago in range(15, -1, -1):
        rates = {"decode_rate": 0.0, "prefill_rate": 0.0, "recompute_rate": 0.0}
        target.apply(Update(Point(NOW - ago, {"up": 1.0, "running": 0.0, "waiting": 0.0, **rates})))


def stale(target: Target) -> None:
    target.apply(Update(Point(NOW - 8, {"up": 1.0, "running": 2.0})))


def partial(target: Target) -> None:
    target.apply(Update(Point(NOW - 0.5, {"up": 1.0}), missing=("step records", "block buckets")))


def lost(target: Target) -> None:
    target.apply(Update(Point(NOW - 90, {"up": 1.0, "running": 2.0})))
    target.apply(Update(Point(NOW - 1, {"up": 0.0}), problem=f"{URL}/metrics: connection refused", unreachable=True))


STATES: dict[str, tuple[Callable[[Target], None], tuple[str, ...]]] = {
    "connecting": (connecting, ("connecting", f"asking for {URL}/metrics", "for 3.0s")),
    "unreachable": (unreachable, ("cannot be reached", "connection refused", "Tried for 75s")),
    "not_metrics": (not_metrics, ("not a metrics endpoint", "<html>", "It is asked again")),
    "idle": (idle, ("idle", "running 0  waiting 0")),
    "stale": (stale, ("stale", "an answer is overdue", "8.0s ago")),
    "partial": (partial, ("live", "partial: no step records")),
    "lost": (lost, ("lost for 90s: connection refused", "last answer 90s ago", "it is tried again")),
}


def view_of(state: str) -> View:
    target = Target(URL, 1.0, History(1000))
    STATES[state][0](target)
    return View([target], NOW)


@pytest.mark.parametrize("state", STATES)
def test_the_overview_says_it(state: str):
    text = "\n".join(plain(line) for line in draw_frame(view_of(state), 80, 23))
    for words in STATES[state][1]:
        assert words in text


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("page", Page)
def test_every_page_can_show_it(state: str, page: Page):
    view = view_of(state)
    view.page = page
    for width, height in ((40, 12), (80, 23), (300, 70)):
        lines = draw_frame(view, width, height)
        assert len(lines) == height
        assert {text_width(line) for line in lines} == {width}


@pytest.mark.parametrize("state", ["connecting", "unreachable", "not_metrics", "stale", "lost"])
def test_the_fleet_has_a_mark_for_it(state: str):
    view = view_of(state)
    view.page = Page.FLEET
    row = next(plain(line) for line in draw_frame(view, 120, 23)[2:] if URL in plain(line))
    assert row.split()[0] in "○◐✖"
