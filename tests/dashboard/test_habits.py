"""Habits of a terminal program: the clipboard through ssh, the wheel, a target that hangs, --readonly in the palette."""

import asyncio
import base64

import pytest
from textual.pilot import Pilot

from dashboard.app import DashboardApp
from dashboard.model.view import Page
from dashboard.options import Options
from dashboard.session import Session
from tests.dashboard.test_app import QUIET, RECORDING, play, until
from tests.diagnose.fake_target import serving


def test_copy_reaches_the_terminal_as_osc_52(monkeypatch: pytest.MonkeyPatch):
    written: list[str] = []

    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        assert app._driver is not None
        monkeypatch.setattr(app._driver, "write", written.append)
        await pilot.press("c")
        summary = app.session.view.target.summary
        assert summary is not None
        wanted = base64.b64encode(summary.next_command.encode()).decode()
        assert f"\x1b]52;c;{wanted}\a" in "".join(written)

    play(scenario)


def test_the_wheel_goes_through_rows():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        app.action_move(-10)
        app.on_mouse_scroll_down()
        assert app.session.view.table.selected == 1
        app.on_mouse_scroll_up()
        assert app.session.view.table.selected == 0

    play(scenario, QUIET, RECORDING)


def test_readonly_leaves_its_acts_out_of_palette_and_keys():
    async def scenario(app: DashboardApp, pilot: Pilot[None]) -> None:
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert not titles & {"Export", "Screenshot"}
        assert {"Copy", "Diagnose", "Pause"} <= titles
        shown = {binding.description for _, binding, enabled, _ in app.screen.active_bindings.values() if enabled}
        assert not shown & {"export", "screenshot"}
        await pilot.press("c")
        assert "-X POST" not in app.clipboard

    play(scenario, readonly=True)


def test_keys_act_while_a_target_hangs():
    """Its thread waits; the screen does not, and leaving does not wait for it either."""

    async def run(url: str) -> None:
        app = DashboardApp(Session([url], Options(interval=0.05)))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(app, pilot, lambda: app.session.view.target.first_try is not None)
            for number, page in enumerate(Page, 1):
                await pilot.press(str(number))
                app.tick()
                assert app.session.view.page is page
            assert len(app.session.view.target.history) == 0, "it has not answered all the while"

    with serving(None) as target:
        target.metrics = target.hang
        asyncio.run(run(target.url))
