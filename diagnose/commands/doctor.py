"""`stallscope doctor`."""

import sys
from typing import NoReturn

import click

from diagnose.commands.answers import json_option, to_json
from diagnose.commands.params import is_url
from diagnose.commands.progress import announce
from diagnose.doctor import (
    Check,
    State,
    configuration,
    engine_parts,
    environment,
    machine,
    optional_parts,
    targets,
)
from diagnose.sources.hints import meant_url

_TITLES = {
    "environment": "This environment",
    "extras": "Optional parts",
    "engine": "The engine",
    "machine": "This machine",
    "files": "Found and used by default",
    "targets": "Targets",
}
_BROKEN = 1
_COLUMN = 11
_STYLES = {State.OK: "good", State.MISSING: "dim", State.BROKEN: "bad"}


@click.command(
    "doctor",
    epilog="""\b
Examples:
  stallscope doctor
  stallscope doctor http://127.0.0.1:8000
  stallscope doctor --json""",
)
@click.argument("urls", nargs=-1, metavar="[URL]...")
@json_option
def doctor_command(urls: tuple[str, ...], as_json: bool) -> NoReturn:
    """Say what of stallscope is installed here, what it can reach, and what it lacks with the command to get it.

    Each URL is a server that you want to diagnose: it is asked for its metrics once.

    Exit codes: 0 nothing is broken (optional parts may be missing), 1 something that is here or was named does not work,
    2 usage.
    """
    for url in urls:
        if not is_url(url):
            raise click.UsageError(f"{url!r} is no URL: write {meant_url(url) or 'http://HOST:PORT'}")
    announce("looking at this machine and at what is named")
    checks = [
        *environment(),
        *optional_parts(),
        *engine_parts(),
        *machine(),
        *configuration(),
        *targets(urls),
    ]
    click.echo(_as_json(checks) if as_json else _as_text(checks))
    sys.exit(_BROKEN if any(check.state is State.BROKEN for check in checks) else 0)


def _as_json(checks: list[Check]) -> str:
    rows = [
        {
            "section": check.section,
            "subject": check.subject,
            "state": check.state.value,
            "text": check.text,
            "command": check.command,
        }
        for check in checks
    ]
    broken = [check.subject for check in checks if check.state is State.BROKEN]
    return to_json(broken=broken, checks=rows)


def _as_text(checks: list[Check]) -> str:
    from diagnose.report.page import Page

    page = Page()
    for section, title in _TITLES.items():
        rows = [check for check in checks if check.section == section]
        if not rows:
            continue
        page.section(title)
        for check in rows:
            said = check.text if check.state is State.OK else f"{check.state.value}: {check.text}"
            if len(check.subject) <= _COLUMN:
                page.line(
                    f"{check.subject:<{_COLUMN}} {said}", indent=2, hanging=_COLUMN + 1, style=_STYLES[check.state]
                )
            else:
                page.line(check.subject, indent=2)
                page.line(said, indent=_COLUMN + 3, style=_STYLES[check.state])
            if check.command is not None:
                page.command(check.command, indent=_COLUMN + 3)
    broken = [check.subject for check in checks if check.state is State.BROKEN]
    page.line()
    page.line(f"broken: {', '.join(broken)}" if broken else "nothing is broken")
    return str(page).lstrip("\n")
