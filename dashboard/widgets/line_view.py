"""A widget that shows drawn lines and repaints only those that changed."""

from collections.abc import Callable

from rich.segment import Segment
from rich.style import Style
from textual.events import Click
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from dashboard.draw.spans import Line
from dashboard.theme import style

Draw = Callable[[int, int], list[Line]]


class LineView(Widget):
    """`draw(width, height)` gives the lines; `redraw()` asks for them again."""

    DEFAULT_CSS = """
    LineView { width: 1fr; height: 1fr; }
    """

    class Pointed(Message):
        """A click on cell (x, y) that is no link."""

        def __init__(self, view: "LineView", x: int, y: int) -> None:
            super().__init__()
            self.view, self.x, self.y = view, x, y

    def __init__(self, draw: Draw, name: str) -> None:
        super().__init__(id=name)
        self._draw = draw
        self._lines: list[Line] = []
        self._strips: list[Strip] = []
        self._theme = ""
        self._ground: Style | None = None
        """Asked for once per change of styles: Textual works it out anew from all ancestors."""

    def redraw(self) -> None:
        width, height = self.size
        if not width or not height or not self.display:
            return
        lines = self._draw(width, height)[:height]
        theme = self.app.theme
        everything = theme != self._theme or len(lines) != len(self._lines)
        changed = [y for y, line in enumerate(lines) if everything or line != self._lines[y]]
        old = self._strips if not everything else [Strip.blank(width)] * len(lines)
        self._lines, self._theme = lines, theme
        for y in changed:
            old[y] = self._strip(lines[y], width)
        self._strips = old
        if everything:
            self.refresh()
        elif changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def _strip(self, line: Line, width: int) -> Strip:
        segments = [Segment(span.text, style(self._theme, span.role, span.action)) for span in line]
        return Strip(segments).adjust_cell_length(width)

    def render_line(self, y: int) -> Strip:
        if self._ground is None:
            self._ground = self.rich_style
        strip = self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)
        return strip.apply_style(self._ground)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._ground = None

    def on_click(self, event: Click) -> None:
        """Links act by themselves; everything else is the application's to read."""
        if "@click" not in event.style.meta:
            self.post_message(self.Pointed(self, event.x, event.y))

    def on_resize(self) -> None:
        self._lines = []
        self.redraw()

    def on_mount(self) -> None:
        self.watch(self.app, "theme", lambda _: self.redraw(), init=False)
