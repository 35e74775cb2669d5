"""Every key there is, from the bindings themselves: nothing can be bound and not be listed."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


def help_lines(bindings: Sequence[Binding]) -> list[tuple[str, str]]:
    """(keys, what they do), one per action, in the order in which they are declared."""
    found: dict[str, tuple[list[str], str]] = {}
    for binding in bindings:
        text = binding.tooltip or binding.description
        keys, _ = found.setdefault(binding.action, ([], text))
        keys += [key_name(key) for key in binding.key.split(",")]
    return [(", ".join(keys), text) for keys, text in found.values()]


_NAMES = {
    "question_mark": "?", "left_square_bracket": "[", "right_square_bracket": "]", "plus": "+", "minus": "-", "equals_sign": "=",
    "slash": "/", "less_than_sign": "<", "greater_than_sign": ">", "comma": ",", "full_stop": ".",
}  # fmt: skip


def key_name(key: str) -> str:
    return "+".join(_NAMES.get(part, part) for part in key.strip().split("+"))


class HelpScreen(ModalScreen[None]):
    """Closed by the key that opened it, by escape, or by a click."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > VerticalScroll { width: 78; max-width: 96%; height: auto; max-height: 92%; background: $surface;
        border: round $primary; padding: 0 1; scrollbar-size-vertical: 1; }
    HelpScreen Static { width: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q", "dismiss", "Close")]

    def __init__(self, bindings: Sequence[Binding]) -> None:
        super().__init__()
        self._listed = bindings

    def compose(self) -> ComposeResult:
        rows = help_lines(self._listed)
        width = min(22, max(len(keys) for keys, _ in rows))
        text = "\n".join(f"{keys:<{width}}  {what}" for keys, what in rows)
        with VerticalScroll() as box:
            box.border_title = "keys"
            box.border_subtitle = "escape closes"
            yield Static(text, markup=False)
