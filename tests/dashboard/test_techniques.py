"""The comparison of serving techniques: complete, and beside a live figure wherever there is one."""

import pytest

from dashboard.draw.spans import plain
from dashboard.model.view import Page, View
from dashboard.panels.pages import draw_page
from dashboard.panels.techniques import DIMENSIONS, TECHNIQUES
from tests.dashboard.views import engine_entries, make_view
from tests.requirements import covers


@pytest.fixture(scope="module")
def view() -> View:
    view = make_view(engine_entries(20))
    view.page = Page.TECHNIQUES
    return view


@covers("S9.1")
def test_four_techniques_answer_five_questions_each(view: View):
    assert len(TECHNIQUES) == 4
    assert DIMENSIONS == ("goal", "scheduling", "memory", "latency", "invariant")
    lines = [plain(line) for line in draw_page(view, 200, 48)]
    for name, cells in TECHNIQUES.items():
        assert len(cells) == len(DIMENSIONS)
        assert any(name in line for line in lines)
        for cell in cells:
            assert any(cell.text[:25] in line for line in lines), cell.text


@covers("S9.1")
def test_cells_show_what_the_target_counts_and_lead_to_its_page(view: View):
    spans = [span for line in draw_page(view, 200, 48) for span in line]
    history = view.target.history
    for cells in TECHNIQUES.values():
        for live in (cell.live for cell in cells if cell.live is not None):
            value = live.read(view)
            said = f"{live.name} " if value is not None else f"{live.name}: not served"
            assert any(said in span.text and span.action == f"page('{live.page.value}')" for span in spans), live.name
    budget, running = history.at("budget", view.at), history.at("running", view.at)
    assert budget is not None and running is not None
    chunk = TECHNIQUES["chunked prefill"][1].live
    assert chunk is not None and chunk.read(view) == budget - running
    lives = [cell.live for cells in TECHNIQUES.values() for cell in cells if cell.live is not None]
    served = {live.name for live in lives if live.read(view) is not None}
    assert {"ITL p99", "active blocks", "TTFT p50", "decode tokens/s"} <= served


def test_a_narrow_screen_goes_through_them(view: View):
    def shown() -> str:
        return "\n".join(plain(line) for line in draw_page(view, 80, 22))

    assert "monolithic prefill" in shown() and "disaggregation" not in shown()
    view.table.selected = 3
    assert "disaggregation" in shown() and "monolithic prefill" not in shown()
    view.table.selected = 0
