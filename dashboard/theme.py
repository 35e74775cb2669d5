"""What each role looks like: Textual themes for the frame, and tables from role to style. Reads without colour too: marks, glyphs
and weight carry the meaning, colour repeats it.
"""

from collections.abc import Mapping
from functools import cache

from rich.style import Style
from textual.theme import Theme

_DARK = {
    "": "#c8d0d9", "dim": "#7d8894", "rule": "#3b4550", "title": "bold #e6edf3", "brand": "bold #0f1419 on #6cb6ff",
    "number": "#c8d0d9", "axis": "#66717d", "band": "#3f6f5a", "command": "bold #79c0ff", "key": "bold #79c0ff",
    "tab": "#9aa5b1 on #1c232b", "tab_on": "bold #0f1419 on #6cb6ff", "head": "bold #9aa5b1",
    "selected": "bold #0f1419 on #a5d6ff",
    "good": "#5ecf8a", "warn": "#e8b44c", "bad": "#ff7b72", "wait": "#e8b44c",
    "good_strong": "bold #5ecf8a", "warn_strong": "bold #e8b44c", "bad_strong": "bold #ff8e86",
    "p99": "#ff9d6b", "p50": "#6cb6ff", "running": "#5ecf8a",
    "decode": "#6cb6ff", "prefill": "#ff9d6b", "mixed": "#f2cc60", "recompute": "#ff7b72", "cached": "#7d8894",
    "active": "#ff9d6b", "reclaimable": "#6cb6ff", "free": "#5ecf8a", "reserved": "#b392f0",
    "host": "#b392f0", "lock": "#ff7b72", "gap": "#e8b44c", "offcpu": "#8a93a0", "other": "#8a93a0",
    "baseline": "bold #5ecf8a", "incident": "bold #ff7b72", "cursor": "bold #e6edf3",
    "attention_mixed": "#f0a0c0",
    "gemm": "#6cb6ff", "attention_prefill": "#ff9d6b", "attention_decode": "#5ecf8a", "kv_write": "#f2cc60",
    "norm_rope_act": "#b392f0", "sampling": "#56d4dd", "comm": "#ff7b72", "copy": "#d2a8ff",
}  # fmt: skip
_LIGHT = _DARK | {
    "": "#24292f", "dim": "#6e7781", "rule": "#c4ccd4", "title": "bold #0b1016", "brand": "bold #ffffff on #0969da",
    "number": "#24292f", "axis": "#6e7781", "band": "#8fbfa4", "command": "bold #0550ae", "key": "bold #0550ae",
    "tab": "#57606a on #e6eaef", "tab_on": "bold #ffffff on #0969da", "head": "bold #57606a",
    "selected": "bold #ffffff on #0969da",
    "good": "#1a7f37", "warn": "#9a6700", "bad": "#cf222e", "wait": "#9a6700",
    "good_strong": "bold #1a7f37", "warn_strong": "bold #9a6700", "bad_strong": "bold #cf222e",
    "p99": "#bc4c00", "p50": "#0969da", "running": "#1a7f37",
    "decode": "#0969da", "prefill": "#bc4c00", "mixed": "#9a6700", "recompute": "#cf222e", "cached": "#6e7781",
    "active": "#bc4c00", "reclaimable": "#0969da", "free": "#1a7f37", "reserved": "#8250df",
    "host": "#8250df", "lock": "#cf222e", "gap": "#9a6700", "offcpu": "#57606a", "other": "#57606a",
    "baseline": "bold #1a7f37", "incident": "bold #cf222e", "cursor": "bold #0b1016",
    "attention_mixed": "#bf3989",
    "gemm": "#0969da", "attention_prefill": "#bc4c00", "attention_decode": "#1a7f37", "kv_write": "#9a6700",
    "norm_rope_act": "#8250df", "sampling": "#1b7c83", "comm": "#cf222e", "copy": "#a475f9",
}  # fmt: skip
# Okabe and Ito's palette: told apart with every common colour vision; good is blue and bad is orange, never green and red.
_BLUE, _SKY, _GREEN, _YELLOW, _ORANGE, _VERMILION, _PURPLE = (
    "#3d9be0", "#56b4e9", "#009e73", "#f0e442", "#e69f00", "#d55e00", "#cc79a7",
)  # fmt: skip
_SAFE = _DARK | {
    "good": _SKY, "warn": _YELLOW, "bad": _ORANGE, "wait": _YELLOW,
    "good_strong": f"bold {_SKY}", "warn_strong": f"bold {_YELLOW}", "bad_strong": f"bold underline {_ORANGE}",
    "p99": _ORANGE, "p50": _SKY, "running": _SKY, "decode": _SKY, "prefill": _ORANGE, "mixed": _YELLOW,
    "recompute": _PURPLE, "active": _ORANGE, "reclaimable": _SKY, "free": _GREEN, "reserved": _PURPLE,
    "host": _PURPLE, "lock": _VERMILION, "gap": _YELLOW, "baseline": f"bold {_SKY}", "incident": f"bold {_ORANGE}",
    "attention_mixed": _YELLOW,
    "gemm": _BLUE, "attention_prefill": _ORANGE, "attention_decode": _GREEN, "kv_write": _YELLOW,
    "norm_rope_act": _PURPLE, "sampling": _SKY, "comm": _VERMILION, "copy": "#bbbbbb",
}  # fmt: skip
# Weight, underline and reverse only: for NO_COLOR and for terminals without colours.
_MONO = {
    "title": "bold", "brand": "bold reverse", "tab_on": "bold reverse", "head": "bold underline", "selected": "reverse",
    "command": "bold underline", "key": "bold", "good_strong": "bold", "warn_strong": "bold", "bad_strong": "bold reverse",
    "bad": "bold", "p99": "bold", "incident": "bold reverse", "baseline": "underline", "dim": "dim", "rule": "dim",
    "axis": "dim", "band": "dim", "cursor": "bold",
}  # fmt: skip

MONO = "stallscope-mono"
ROLES: Mapping[str, Mapping[str, str]] = {
    "stallscope-dark": _DARK,
    "stallscope-light": _LIGHT,
    "stallscope-safe": _SAFE,
    MONO: _MONO,
}
"""Theme name -> role -> style. The safe one is for every colour vision."""


def themes() -> list[Theme]:
    dark = ("#0f1419", "#151b22", "#1c232b", "#c8d0d9")
    return [
        _theme("stallscope-dark", "#6cb6ff", "#ff9d6b", dark, keys="#79c0ff"),
        _theme("stallscope-light", "#0969da", "#bc4c00", ("#fbfcfd", "#f1f4f7", "#e6eaef", "#24292f"), keys="#0550ae"),
        _theme("stallscope-safe", _SKY, _ORANGE, dark, keys=_SKY),
        _theme(MONO, "#c8c8c8", "#ffffff", ("#000000", "#000000", "#1a1a1a", "#d8d8d8"), keys="#ffffff"),
    ]


def _theme(name: str, primary: str, accent: str, ground: tuple[str, str, str, str], *, keys: str) -> Theme:
    background, surface, panel, foreground = ground
    return Theme(
        name,
        primary=primary,
        accent=accent,
        background=background,
        surface=surface,
        panel=panel,
        foreground=foreground,
        dark=name != "stallscope-light",
        variables={"footer-key-foreground": keys, "footer-background": panel},
    )


@cache
def style(theme: str, role: str, action: str = "") -> Style:
    """Unknown roles look like plain text, `one|other` is one's colour on the other's. Foreign themes get the dark table."""
    table = ROLES.get(theme, _DARK)
    upper, _, ground = role.partition("|")
    found = Style.parse(table.get(upper, table.get("", "")) or "none")
    if ground:
        found = Style(color=found.color, bgcolor=Style.parse(table.get(ground, "") or "none").color)
    return found + Style.from_meta({"@click": f"app.{action}"}) if action else found
