"""The Textual application: keys and clicks change the session's view, a timer redraws what changed."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Input

from dashboard.bundle import bundle_path, self_contained, write_bundle
from dashboard.draw.spans import Line
from dashboard.judge import Job
from dashboard.model.view import SPANS, Page
from dashboard.panels.chrome import status_line, tab_bar
from dashboard.panels.pages import draw_page
from dashboard.screens.help import HelpScreen
from dashboard.session import Session
from dashboard.theme import MONO, ROLES, themes
from dashboard.widgets.line_view import LineView
from diagnose.errors import DiagnoseError

REDRAW_SECONDS = 0.5
PAGE_SECONDS = 0.9
"""A page without news is drawn at every second tick."""


def _bind(key: str, action: str, text: str, tooltip: str, *, show: bool = False, priority: bool = False) -> Binding:
    return Binding(key, action, text, show=show, tooltip=tooltip, id=action, priority=priority)


BINDINGS: list[Binding] = [
    _bind("question_mark", "help", "help", "This list", show=True),
    _bind("space", "pause", "pause", "Pause; again: play on from here at the chosen speed", show=True),
    _bind("left,h", "step(-1)", "back", "Back by one sample"),
    _bind("right,l", "step(1)", "forward", "Forward by one sample"),
    _bind("shift+left,comma", "leap(-1)", "leap back", "Back by a tenth of the plots' span"),
    _bind("shift+right,full_stop", "leap(1)", "leap", "Forward by a tenth of the plots' span"),
    _bind("home,g", "first", "first", "To the first sample"),
    _bind("end,G", "newest", "live", "To the newest sample, and follow it"),
    _bind("less_than_sign", "speed(-1)", "slower", "Play at half the speed"),
    _bind("greater_than_sign", "speed(1)", "faster", "Play at twice the speed"),
    _bind("plus,equals_sign", "zoom(-1)", "zoom in", "Plots span a shorter time"),
    _bind("minus", "zoom(1)", "zoom out", "Plots span a longer time"),
    _bind("i", "mark('incident')", "incident", "Incident window: first press begins, second ends", show=True),
    _bind("b", "mark('baseline')", "base", "Baseline window: first press begins, second ends", show=True),
    _bind("x", "clear_marks", "clear", "Forget the marked windows"),
    _bind("d", "diagnose", "diagnose", "Diagnose the marked windows, or the latest seconds", show=True),
    _bind("c", "copy_command", "copy", "Copy the next or the selected command (OSC 52)", show=True),
    _bind("q", "quit", "quit", "Leave", show=True),
    _bind("e", "export", "export", "Write an incident bundle", show=True),
    _bind("s", "save_screenshot", "screenshot", "Write an SVG picture of the screen"),
    _bind("up,k", "move(-1)", "up", "Row or step above"),
    _bind("down,j", "move(1)", "down", "Row or step below"),
    _bind("pageup", "move(-10)", "page up", "Ten rows up"),
    _bind("pagedown", "move(10)", "page down", "Ten rows down"),
    _bind("enter", "open", "open", "Open the selected row"),
    _bind("o", "sort_next", "order", "Order the table by the next column"),
    _bind("r", "reverse", "reverse", "Reverse the table's order"),
    _bind("slash", "search", "search", "Show only rows that contain a text", show=True),
    _bind("escape", "leave", "back", "Close what is open; end a search"),
    _bind("n", "target(1)", "next target", "Next target"),
    _bind("p", "target(-1)", "previous target", "Previous target"),
    *(
        _bind(str(number), f"page('{page.value}')", page.value, f"{page.value.capitalize()} page")
        for number, page in enumerate(Page, 1)
    ),
    _bind("tab", "turn(1)", "next page", "Next page", priority=True),
    _bind("shift+tab", "turn(-1)", "previous page", "Previous page", priority=True),
    _bind("t", "next_theme", "theme", "Next theme: dark, light, for all eyes, no colours"),
]
_WRITES = ("export", "save_screenshot")


class DashboardApp(App[None]):
    """Draws a session. `bundle_dir` is where exports go."""

    CSS = """
    #tabs, #status { height: 1; }
    #search { dock: bottom; height: 1; border: none; padding: 0 1; display: none; }
    #search.open { display: block; }
    """
    TITLE = "stallscope"
    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[BindingType]] = list(BINDINGS)

    def __init__(
        self,
        session: Session,
        theme: str = "stallscope-dark",
        bundle_dir: Path | None = None,
        on_first_paint: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.session, self._on_first_paint = session, on_first_paint
        self._drawn = 0.0
        self._bundle_dir = bundle_dir or Path.cwd()
        for one in themes():
            self.register_theme(one)
        self.theme = MONO if self.no_color else theme

    def compose(self) -> ComposeResult:
        yield LineView(self._tabs, "tabs")
        yield LineView(self._status, "status")
        yield LineView(self._page, "page")
        yield Input(placeholder="show rows that contain ...", id="search", compact=True)
        yield Footer(show_command_palette=False)

    def _tabs(self, width: int, _: int) -> list[Line]:
        return [tab_bar(self.session.view, width)]

    def _status(self, width: int, _: int) -> list[Line]:
        return [status_line(self.session.view, width)]

    def _page(self, width: int, height: int) -> list[Line]:
        return draw_page(self.session.view, width, height)

    def on_mount(self) -> None:
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """After the first paint: feeds load what reads pages, and would take its time from the screen."""
        self._on_first_paint()
        self.session.start()
        self.set_interval(REDRAW_SECONDS, self.tick)

    def on_unmount(self) -> None:
        self.session.close()

    def tick(self) -> None:
        """The clocks in the first two lines always; the page when there is news, and once a second since time goes on."""
        news = self.session.tick()
        for notice in self.session.notices:
            self.notify(notice, markup=False)
        self.session.notices.clear()
        self.redraw(page=news or time.monotonic() - self._drawn > PAGE_SECONDS)

    def redraw(self, *, page: bool = True) -> None:
        """All lines, or those above the page alone."""
        for view in self.query(LineView):
            if page or view.id != "page":
                view.redraw()
        self._drawn = time.monotonic() if page else self._drawn

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """With --readonly nothing is written; while one types, keys are text."""
        if action in _WRITES and self.session.view.readonly:
            return False
        if action == "turn" and (isinstance(self.focused, Input) or len(self.screen_stack) > 1):
            return False
        return super().check_action(action, parameters)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette offers what the keys do."""
        for binding in BINDINGS:
            action = binding.action.partition("(")[0]
            if self.check_action(action, ()) is not False:
                title = binding.description.capitalize()
                yield SystemCommand(title, binding.tooltip, lambda action=binding.action: self.run_action(action))

    # Pages, targets, rows.

    def action_page(self, name: str) -> None:
        self.session.view.page = Page(name)
        self.redraw()

    def action_turn(self, by: int) -> None:
        pages = list(Page)
        self.action_page(pages[(pages.index(self.session.view.page) + by) % len(pages)].value)

    def action_target(self, by: int) -> None:
        view = self.session.view
        self.session.open((view.current + by) % len(view.targets))
        self.redraw()

    # Time.

    def action_pause(self) -> None:
        view = self.session.view
        view.playhead.toggle(view.target.end(view.now))
        self.redraw()

    def action_step(self, by: int) -> None:
        self.session.step(by > 0)
        self.redraw()

    def action_leap(self, by: int) -> None:
        self.session.seek(by * self.session.view.span / 10)
        self.redraw()

    def action_first(self) -> None:
        self.session.seek(-1e12)
        self.redraw()

    def action_newest(self) -> None:
        self.session.view.playhead.follow()
        self.redraw()

    def action_speed(self, by: int) -> None:
        self.session.view.playhead.faster(by)
        self.notify(f"plays at {self.session.view.playhead.speed:g}x", timeout=2)
        self.redraw()

    def action_zoom(self, by: int) -> None:
        view = self.session.view
        place = min(range(len(SPANS)), key=lambda i: abs(SPANS[i] - view.span)) + by
        view.zoomed = True
        view.span = SPANS[max(0, min(len(SPANS) - 1, place))]
        self.redraw()

    # Windows and diagnoses.

    def action_mark(self, which: str) -> None:
        self.notify(self.session.mark(which), timeout=4)
        self.redraw()

    def action_clear_marks(self) -> None:
        self.session.clear_marks()
        self.redraw()

    def action_diagnose(self) -> None:
        if not self.session.diagnose(self.session.view.current):
            self.notify("there is no window to diagnose yet", severity="warning")
        self.redraw()

    def action_copy_command(self) -> None:
        command = self.session.command()
        if not command:
            self.notify("there is no command to copy", severity="warning")
            return
        self.copy_to_clipboard(command)
        self.notify(f"copied: {command}", timeout=4, markup=False)

    # Rows.

    def action_move(self, by: int) -> None:
        self.session.move(by)
        self.redraw()

    def action_select(self, row: int) -> None:
        """A click on a row: the first selects it, the second opens it."""
        again = self.session.view.table.selected == row
        self.session.select(row)
        if again:
            self.session.enter()
        self.redraw()

    def action_open(self) -> None:
        self.session.enter()
        self.redraw()

    def action_sort(self, column: int) -> None:
        self.session.sort_by(column)
        self.redraw()

    def action_sort_next(self) -> None:
        columns = self.session.columns()
        if columns:
            self.session.sort_by((self.session.view.table.sort + 1) % columns)
            self.redraw()

    def action_reverse(self) -> None:
        self.session.sort_by(self.session.view.table.sort)
        self.redraw()

    def on_line_view_pointed(self, event: LineView.Pointed) -> None:
        """A click beside every link: on the timeline it selects a step, on a plot it goes to that moment."""
        if event.view.id == "page" and self.session.point(event.x, event.y, event.view.size.width):
            self.redraw()

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-1)

    def on_mouse_scroll_down(self) -> None:
        self.action_move(1)

    # Files.

    def action_save_screenshot(self) -> None:
        name = f"stallscope-{time.strftime('%Y%m%d-%H%M%S', time.localtime(self.session.view.now))}.svg"
        try:
            self._bundle_dir.mkdir(parents=True, exist_ok=True)
            (self._bundle_dir / name).write_text(self_contained(self.export_screenshot()), encoding="utf-8")
        except OSError as error:
            self.notify(f"{name}: cannot be written: {error.strerror or error}", severity="error", markup=False)
            return
        self.notify(f"wrote {self._bundle_dir / name}", markup=False)

    def action_export(self) -> None:
        job = self.session.job(self.session.view.current)
        if job is None:
            self.notify("there is no window to export yet", severity="warning")
            return
        self._export(job, self_contained(self.export_screenshot()))

    @work(thread=True, group="export")
    def _export(self, job: Job, picture: str) -> None:
        """In a thread: a long window takes seconds to diagnose and write."""
        path = bundle_path(self._bundle_dir, time.time())
        try:
            written = write_bundle(path, job, self.session.options.rules, picture)
        except (OSError, DiagnoseError) as error:
            self.call_from_thread(self.notify, f"{path}: not exported: {error}", severity="error", markup=False)
            return
        self.call_from_thread(self.notify, f"wrote {path}: {', '.join(written)}", timeout=8, markup=False)

    # Habits.

    def action_help(self) -> None:
        self.push_screen(HelpScreen(BINDINGS))

    def action_next_theme(self) -> None:
        names = list(ROLES)
        place = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(place + 1) % len(names)]
        self.notify(f"theme {self.theme}", timeout=2)

    def action_search(self) -> None:
        box = self.query_one("#search", Input)
        box.add_class("open")
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.session.view.search = event.value
        self.redraw()

    def on_input_submitted(self) -> None:
        self._close_search()

    def _close_search(self) -> None:
        self.query_one("#search", Input).remove_class("open")
        self.screen.set_focus(None)

    def action_leave(self) -> None:
        view = self.session.view
        box = self.query_one("#search", Input)
        if box.has_class("open") or view.search:
            box.value = ""
            self._close_search()
        self.redraw()
