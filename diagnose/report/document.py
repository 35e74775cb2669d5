"""The shell of every HTML document: one file that needs nothing else and may load nothing."""

from importlib.resources import files

from diagnose.report.markup import Markup, element

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What the browser may load for a page: its own style, and nothing from anywhere."""


def document(title: str, *content: Markup) -> str:
    """`content` in the style of the reports, readable in light, dark and on paper."""
    style = files("diagnose.report").joinpath("style.css").read_text(encoding="utf-8")
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"{title} · stallscope"),
        element("style", Markup(style)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', *content), lang='en')}\n"
