"""A plain page: wrapped, indented lines in a few styles, without colour where none is wanted."""

import os
import shutil
import textwrap
from dataclasses import dataclass, field

import click

from diagnose.units import printable

MIN_WIDTH, MAX_WIDTH = 60, 110

STYLES: dict[str, dict[str, object]] = {
    "": {},
    "dim": {"dim": True},
    "bold": {"bold": True},
    "title": {"bold": True, "underline": True},
    "good": {"fg": "green"},
    "bad": {"fg": "red", "bold": True},
    "warn": {"fg": "yellow"},
    "open": {"fg": "cyan"},
}


def terminal_width() -> int:
    return max(MIN_WIDTH, min(MAX_WIDTH, shutil.get_terminal_size((80, 24)).columns))


@dataclass(slots=True)
class Page:
    """Collects lines; `str(page)` is the text with ANSI styles (click removes them when output is piped)."""

    width: int = field(default_factory=terminal_width)
    styled: bool = field(default_factory=lambda: "NO_COLOR" not in os.environ)
    _lines: list[str] = field(default_factory=list)

    def line(self, text: str = "", *, indent: int = 0, hanging: int = 0, style: str = "") -> None:
        """One paragraph, wrapped; lines after the first are indented by `hanging` more."""
        wrapped = textwrap.wrap(
            printable(text),
            self.width,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + hanging),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for part in wrapped or [""]:
            self.raw(part, style=style)

    def raw(self, text: str, *, style: str = "") -> None:
        """A line as it is, without wrapping."""
        self._lines.append(click.style(text, **STYLES[style]) if style and self.styled and text else text)  # type: ignore[arg-type]

    def command(self, text: str, *, indent: int) -> None:
        """A command on a line of its own, never wrapped: it can be copied as it stands. A comment alone is wrapped text."""
        if text.startswith("#"):
            self.line(text, indent=indent, hanging=2, style="dim")
        else:
            self.raw(f"{' ' * indent}$ {printable(text)}", style="dim")

    def section(self, title: str) -> None:
        self.line()
        self.line(title, style="title")

    def __str__(self) -> str:
        return "\n".join(self._lines)
