"""The application itself, through Textual's pilot: every key, clicks, themes, and that what is painted is what was drawn."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Footer, Input

from dashboard.app import BINDINGS, DashboardApp
from dashboard.draw.spans import plain
from dashboard.model.view import SPANS, Page
from dashboard.options import Options
from dashboard.panels.chrome import status_line, tab_bar
from dashboard.panels.pages import draw_page
from dashboard.screens.help import HelpScreen, help_lines
from dashboard.session import Session
from dashboard.theme import ROLES
from tests.dashboard.views import DATA

RECORDING, QUIET = str(DATA / "interference.rec"), str(DATA / "quiet.rec")
Scenario = Callable[[DashboardApp, Pilot[None]], Awaitable[None]]


def play(
    scenario: Scenario,
    *sources: str,
    size: tuple[int, int] = (100, 30),
    bundle_dir: Path | None = None,
    **options: object,
) -> None:
    """Runs the scenario on the application once everything is read and judged."""

    async def run() -> None:
        session = Session(sources or (RECORDING,), Options(**options))  # type: ignore[arg-type]
        app = DashboardApp(session, bundle_dir=bundle_dir)
        async with app.run_test(size=size) as pilot:
            await until(
                app, pilot, lambda: all(t.summary is not None or t.refusal is not None for t in session.view.targets)
            )
            await scenario(app, pilot)

    asyncio.run(run())


async def until(app: DashboardApp, pilot: Pilot[None], done: Callable[[], bool]) -> None:
    for _ in range(1500):
        if done():
            return
        app.tick()
        await pilot.pause(0.01)
    raise AssertionError("it did not happen")


def screen_lines(app: DashboardApp) -> list[str]:
    """What is on the terminal, from the compositor."""
    width, height = app.size
    return ["".join(segment.text for segment in strip).ljust(width)[:width]
            for strip in app.screen._compositor.render_strips()][:height]  # fmt: skip


def test_what_is_painted_is_what_was_drawn():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        for page in Page:
            app.action_page(page.value)
            await pilot.pause()
            view = app.session.view
            expected = [
                plain(tab_bar(view, 100)),
                plain(status_line(view, 100)),
                *(plain(line) for line in draw_page(view, 100, 27)),
            ]
            assert screen_lines(app)[:29] == expected, page

    play(scenario)


def test_pages_by_number_and_by_tab():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        view = app.session.view
        for number, page in enumerate(Page, 1):
            await pilot.press(str(number))
            assert view.page is page
        await pilot.press("tab")
        assert view.page.value == "overview"
        await pilot.press("shift+tab")
        assert view.page.value == "techniques"

    play(scenario)


def test_time_keys():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        view, head = app.session.view, app.session.view.playhead
        end = view.at
        await pilot.press("space")
        assert (head.at, head.playing) == (end, False)
        await pilot.press("left")
        back = view.at
        assert back < end
        await pilot.press("h")
        assert view.at < back
        await pilot.press("right", "l")
        assert view.at > back - 0.001
        await pilot.press("shift+left")
        assert view.at == pytest.approx(end - view.span / 10)
        await pilot.press("full_stop", "comma", "shift+right")
        assert view.at == pytest.approx(end)
        await pilot.press("home")
        assert view.at == view.target.history.first
        await pilot.press("greater_than_sign")
        assert head.speed == 2.0
        await pilot.press("less_than_sign", "less_than_sign")
        assert head.speed == 0.5
        await pilot.press("space")
        assert head.playing
        started = view.at
        await until(app, pilot, lambda: view.at > started)
        await pilot.press("end")
        assert head.follows
        await pilot.press("g")
        assert view.at == view.target.history.first
        await pilot.press("G")
        assert head.follows

    play(scenario)


def test_zoom_keys():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        view = app.session.view
        await pilot.press("minus")
        assert view.span == SPANS[1]
        await pilot.press("plus")
        assert view.span == SPANS[0]
        await pilot.press("equals_sign")
        assert view.span == SPANS[0], "nothing shorter"

    play(scenario)


def test_mark_diagnose_and_clear_keys():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        view, target = app.session.view, app.session.view.target
        await pilot.press("home", "b", "right", "right", "b")
        assert target.baseline is not None and target.baseline.end is not None
        await pilot.press("i", "end", "i")
        assert target.incident is not None and target.incident.end is not None
        await until(app, pilot, lambda: target.summary is not None and target.summary.has_baseline)
        assert "incident" in "\n".join(screen_lines(app))
        before = target.summary
        await pilot.press("d")
        await until(app, pilot, lambda: target.summary is not before)
        await pilot.press("x")
        assert target.incident is None and target.baseline is None
        assert view.playhead.follows

    play(scenario)


def test_copy_key_puts_the_next_command_on_the_clipboard():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        await pilot.press("c")
        assert app.clipboard == app.session.view.target.summary.next_command  # type: ignore[union-attr]
        await pilot.press("6", "j", "c")
        assert (
            app.clipboard == "stallscope record http://127.0.0.1:8000 --for 60s -o incident.rec   # on the live server"
        ), "the selected row's own"

    play(scenario)


def test_export_and_screenshot_keys_write_files(tmp_path: Path):
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        await pilot.press("s")
        picture = next(tmp_path.glob("*.svg")).read_text()
        assert picture.startswith("<svg")
        assert "@font-face" not in picture, "a picture that is opened must call nobody"
        assert 'url("http' not in picture
        await pilot.press("e")
        await until(app, pilot, lambda: any(tmp_path.glob("*/diagnosis.html")))
        folder = next(tmp_path.glob("stallscope-incident-*"))
        assert {path.name for path in folder.iterdir()} >= {
            "screen.svg",
            "incident.rec",
            "diagnosis.json",
            "diagnosis.md",
        }

    play(scenario, bundle_dir=tmp_path)


def test_readonly_writes_nothing_and_offers_no_change(tmp_path: Path):
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        await pilot.press("s", "e")
        await pilot.pause()
        assert list(tmp_path.iterdir()) == []
        await pilot.press("6")
        text = "\n".join(screen_lines(app))
        assert "left out with --readonly" in text
        assert "-X POST" not in text

    play(scenario, bundle_dir=tmp_path, readonly=True)


def test_step_keys_and_a_click_select_a_step():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        view = app.session.view
        await pilot.press("2")
        newest = view.steps()[-1].step_id
        await pilot.press("up")
        assert view.step_id == newest - 1
        await pilot.press("k", "down", "pageup")
        assert view.step_id == newest - 11
        await pilot.press("pagedown", "j")
        assert view.step_id == newest
        assert f"step {newest}:" in "\n".join(screen_lines(app))
        await pilot.click("#page", offset=(97, 4))
        assert view.step_id == newest - 2

    play(scenario)


def test_a_click_on_a_plot_goes_to_that_moment():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        view = app.session.view
        end = view.at
        await pilot.click("#page", offset=(40, 3))
        assert end - view.span < view.at < end

    play(scenario)


def test_tabs_and_the_command_are_links():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        tabs = screen_lines(app)[0]
        await pilot.click("#tabs", offset=(tabs.index("Memory"), 0))
        assert app.session.view.page is Page.MEMORY
        await pilot.press("1")
        lines = screen_lines(app)[2:]
        row = next(y for y, line in enumerate(lines) if line.strip().startswith("$ stallscope"))
        await pilot.click("#page", offset=(8, row))
        assert app.clipboard.startswith("stallscope record")

    play(scenario)


def test_fleet_keys_order_search_and_open():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        view = app.session.view
        assert view.page is Page.FLEET

        def rows() -> list[str]:
            return [line for line in screen_lines(app)[3:] if ".rec" in line]

        assert ["interference" in row for row in rows()] == [True, False], "worst first"
        await pilot.press("r")
        assert "quiet" in rows()[0]
        await pilot.press("o", "r")
        assert view.table.sort == 1
        await pilot.press("slash", *"quiet", "enter")
        assert ["quiet" in row for row in rows()] == [True]
        await pilot.press("enter")
        assert view.page.value == "overview"
        assert view.target.name == QUIET
        await pilot.press("escape")
        assert view.search == ""
        await pilot.press("n")
        assert view.target.name == RECORDING
        await pilot.press("p")
        assert view.target.name == QUIET

    play(scenario, QUIET, RECORDING)


def test_a_click_on_a_header_sorts_and_a_second_click_on_a_row_opens_it():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        view = app.session.view
        await pilot.click("#page", offset=(screen_lines(app)[3].index("target"), 1))
        assert view.table.sort == 1
        await pilot.click("#page", offset=(20, 3))
        assert view.table.selected == 1
        await pilot.click("#page", offset=(20, 3))
        assert view.page.value == "overview"

    play(scenario, QUIET, RECORDING)


def test_keys_typed_into_the_search_are_text():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", "q", "7", "space", "d")
        assert app.query_one("#search", Input).value == "q7 d"
        assert app.session.view.page is Page.OVERVIEW
        await pilot.press("escape")
        assert app.focused is None

    play(scenario)


def test_help_lists_every_binding():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        listed = dict(help_lines(BINDINGS))
        assert len(listed) == len({binding.action for binding in BINDINGS})
        assert all(listed.values())
        text = "\n".join(screen_lines(app))
        assert "Pause; again" in text
        await pilot.press("escape")
        assert not isinstance(app.screen, HelpScreen)

    play(scenario, size=(100, 60))


def test_the_palette_offers_what_the_keys_do():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        titles = {command.help for command in app.get_system_commands(app.screen)}
        assert titles == {binding.tooltip for binding in BINDINGS}
        await pilot.press("ctrl+p")
        await until(app, pilot, lambda: len(app.screen_stack) == 2)
        await pilot.press(*"memory", "enter")
        await until(app, pilot, lambda: app.session.view.page is Page.MEMORY)

    play(scenario)


def test_themes_go_round_and_no_color_has_none(monkeypatch: pytest.MonkeyPatch):
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        seen = []
        for _ in ROLES:
            await pilot.press("t")
            seen.append(app.theme)
        assert sorted(seen) == sorted(ROLES)

    play(scenario)

    async def plain_scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        assert app.theme == "stallscope-mono"

    monkeypatch.setenv("NO_COLOR", "1")
    play(plain_scenario)


def test_the_footer_shows_its_keys_at_80_columns():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        shown = screen_lines(app)[-1]
        for words in ("? help", "space pause", "d diagnose", "c copy", "q quit"):
            assert words in shown
        assert app.query_one(Footer).region.height == 1

    play(scenario, size=(80, 24))


def test_quit_key():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        await pilot.press("q")
        await pilot.pause()
        assert app.return_code == 0

    play(scenario)


def test_every_key_is_tested():
    """Each bound key appears in a `press` of this file."""
    source = Path(__file__).read_text()
    keys = {key for binding in BINDINGS for key in binding.key.split(",")}
    tested = set(re.findall(r'"([^"\n]+)"', source))
    assert {key for key in keys if key not in tested and not key.isdecimal()} == set()
