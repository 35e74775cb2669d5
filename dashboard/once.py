"""One frame as plain text."""

import time
from collections.abc import Callable

import click

from dashboard.draw.spans import plain
from dashboard.model.view import Page
from dashboard.panels.pages import draw_frame
from dashboard.session import Session
from diagnose.commands.progress import announce
from diagnose.errors import ExitCode

_FILE_SECONDS = 120.0
_JUDGE_SECONDS = 10.0
"""How long a diagnosis may take beyond the window."""


def print_once(session: Session, size: tuple[int, int], window: float) -> int:
    """Watches for `window` seconds, or reads the files, then prints. Returns the exit code of the diagnosis shown."""
    announce(f"watching for {window:g} s" if any(not one.is_file for one in session.view.targets) else "reading")
    session.start()
    try:
        code = _watch(session, window)
    finally:
        session.close()
    for line in draw_frame(session.view, *size):
        click.echo(plain(line).rstrip())
    return code


def _watch(session: Session, window: float) -> int:
    """Waits for what there is to see, then for a diagnosis of all of it."""
    targets = session.view.targets
    seconds = window if not all(target.is_file for target in targets) else _FILE_SECONDS
    _tick_until(session, seconds, lambda: all(target.is_file for target in targets) and all(session.loaded))
    _tick_until(session, _JUDGE_SECONDS, lambda: not any(target.diagnosing for target in targets))
    for number in range(len(targets)):
        session.diagnose(number)
    _tick_until(session, _JUDGE_SECONDS, lambda: not any(target.diagnosing for target in targets))
    return exit_code(session)


def _tick_until(session: Session, seconds: float, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    session.tick()
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)
        session.tick()


def exit_code(session: Session) -> int:
    """Of the target that is shown; of a fleet the worst one's."""
    view = session.view
    shown = view.targets if view.page is Page.FLEET else [view.target]
    return max(_code(target.summary.exit_code if target.summary else None) for target in shown)


def _code(code: int | None) -> int:
    return int(ExitCode.CANNOT_LOOK) if code is None else code
