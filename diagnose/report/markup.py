"""HTML and SVG by construction: whatever is not markup already is escaped, so that no label can become a tag."""

from html import escape

from diagnose.units import printable


class Markup(str):
    """Text that is markup: it passes through where plain text would be escaped."""

    __slots__ = ()


def text(value: str) -> Markup:
    return Markup(escape(printable(value), quote=False))


def join(parts: "list[Markup] | tuple[Markup, ...]", between: str = "") -> Markup:
    return Markup(between.join(parts))


def element(name: str, *content: str, **attributes: object) -> Markup:
    """`<name key="value">content</name>`. `class_` is class, other underscores in keys are hyphens; None is left out."""
    opened = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(printable(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(part if isinstance(part, Markup) else text(part) for part in content)
    return Markup(f"<{name}{opened}>{inner}</{name}>")
