"""Pages as they should look, at three sizes; and what must hold of every frame whatever the size."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.draw.spans import plain, text_width
from dashboard.model.view import Page
from dashboard.panels.pages import draw_frame
from tests.dashboard.frames import FRAMES, SITUATIONS, cases

CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_frame_is_the_golden_one(name: str):
    """`python -m tests.dashboard.frames` draws them anew."""
    assert CASES[name]() == (FRAMES / name).read_text(encoding="utf-8")


def test_no_golden_frame_is_left_over():
    assert {path.name for path in FRAMES.iterdir()} == set(CASES)


@pytest.fixture(scope="module")
def views():
    return {name: make() for name, make in SITUATIONS.items()}


@settings(max_examples=60, deadline=None)
@given(st.integers(40, 300), st.integers(12, 80), st.sampled_from(sorted(SITUATIONS)), st.sampled_from(list(Page)))
def test_every_frame_fills_its_size_exactly(views, width: int, height: int, situation: str, page: Page):
    view = views[situation]
    view.page = page
    lines = draw_frame(view, width, height)
    assert len(lines) == height
    assert {text_width(line) for line in lines} == {width}


def test_the_verdict_and_its_five_facts_are_on_screen_at_80x24(views):
    view = views["interference"]
    view.page = Page.OVERVIEW
    lines = [plain(line) for line in draw_frame(view, 80, 23)]
    text = "\n".join(lines)
    summary = view.target.summary
    assert summary.headline in text
    assert len(summary.facts) == 5
    for fact in summary.facts:
        begun = " ".join(fact.split())[:50]
        assert any(line.strip().startswith(begun) for line in lines), fact
    assert f"-> {summary.decision}" in text
    assert summary.next_command in text
