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
    _explained: set[str] = field(default_factory=set)
    """Comments that stand under a command of this section already."""

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
        """A command on a line of its own, never wrapped: it can be copied as it stands.

        A comment alone is wrapped text; so is one that makes its command's line too long, and that is said once in a section.
        """
        if text.startswith("#"):
            self._comment(text.lstrip("# "), indent)
            return
        whole = f"{' ' * indent}$ {printable(text)}"
        command, mark, comment = whole.partition("   # ")
        if not mark or len(whole) <= self.width:
            self.raw(whole, style="dim")
            return
        self.raw(command, style="dim")
        comment = comment.replace("   # ", "; ")
        if comment not in self._explained:
            self._explained.add(comment)
            self._comment(comment, indent + 2)

    def _comment(self, text: str, indent: int) -> None:
        """Every line is one to a shell as well: people copy a command with what stands below it."""
        for part in textwrap.wrap(
            printable(text), self.width - indent - 2, break_long_words=False, break_on_hyphens=False
        ):
            self.raw(f"{' ' * indent}# {part}", style="dim")

    def section(self, title: str) -> None:
        self._explained.clear()
        self.line()
        self.line(title, style="title")

    def __str__(self) -> str:
        return "\n".join(self._lines)
