"""Where a report goes and in which form. A renderer is imported only when its form is wanted."""

import sys
from pathlib import Path

import click

from diagnose.diagnosis import Diagnosis
from diagnose.errors import SourceError

FORMATS = ("text", "json", "markdown", "html")
_SUFFIXES = {".json": "json", ".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html"}


def choose_format(form: str | None, as_json: bool, output: Path | None) -> str:
    """Raises UsageError when two forms are asked for."""
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form} ask for two forms; give one of them")
    if as_json:
        return "json"
    return form or (_SUFFIXES.get(output.suffix.lower(), "text") if output is not None else "text")


def check_writable(output: Path | None) -> None:
    """Before a target is watched for minutes. Raises SourceError."""
    if output is not None and not output.absolute().parent.is_dir():
        raise SourceError(f"{output}: cannot be written: there is no folder {output.absolute().parent}")


def deliver(diagnosis: Diagnosis, form: str, output: Path | None = None, *, quiet: bool, verbose: bool) -> None:
    """To stdout, or to the file with one line about it on stderr. A file that cannot be written loses nothing: stdout gets it."""
    write(render(diagnosis, form, quiet=quiet, verbose=verbose, styled=None if output is None else False), output)
    if output is not None and not quiet:
        click.echo(f"{output}: {form}, {output.stat().st_size / 1024:.0f} KiB", err=True)


def write(text: str, output: Path | None) -> None:
    """Raises SourceError for a file that cannot be written, after the text went to stdout."""
    if output is None:
        click.echo(text)
        return
    try:
        output.write_text(text + "\n" if not text.endswith("\n") else text, encoding="utf-8")
    except OSError as error:
        click.echo(text)
        sys.stdout.flush()
        raise SourceError(f"{output}: cannot be written: {error.strerror or error}; the report is on stdout") from None


def render(
    diagnosis: Diagnosis, form: str, *, quiet: bool = False, verbose: bool = False, styled: bool | None = None
) -> str:
    """`styled` False leaves the styles of a terminal out; None asks the environment."""
    if form == "json":
        import json

        from diagnose.report.json_report import to_json

        return json.dumps(to_json(diagnosis), indent=2, allow_nan=False)
    if form == "markdown":
        from diagnose.report import markdown

        return markdown.render(diagnosis)
    if form == "html":
        from diagnose.report import html

        return html.render(diagnosis)
    from diagnose.report.outline import headline
    from diagnose.report.page import Page
    from diagnose.report.terminal import render as render_page

    if quiet or diagnosis.idle:
        return headline(diagnosis)
    return render_page(diagnosis, Page() if styled is None else Page(styled=styled), verbose=verbose)
