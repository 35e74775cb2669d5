"""`stallscope dashboard`. Textual is imported when the screen is needed: `--help` and `--once` do without it."""

import gc
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from diagnose.commands.completion import complete_files
from diagnose.commands.params import Duration, Slo, is_url
from diagnose.errors import SourceError
from diagnose.slo import Objective
from diagnose.sources.hints import after_no_file

if TYPE_CHECKING:
    from diagnose.policy import Policy

PAGES = ("overview", "steps", "memory", "host", "requests", "protocol", "fleet", "techniques")
THEMES = ("stallscope-dark", "stallscope-light", "stallscope-safe", "stallscope-mono")
DEFAULT_PORT = 8750


class Size(click.ParamType[tuple[int, int]]):
    """`120x40` -> columns and lines."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:  # fmt: skip
        if isinstance(value, tuple):
            return value
        width, _, height = str(value).partition("x")
        if not (width.isdecimal() and height.isdecimal() and 40 <= int(width) <= 400 and 12 <= int(height) <= 200):
            self.fail(f"{value!r} is not a size; write 80x24, at least 40x12 and at most 400x200", param, ctx)
        return int(width), int(height)


@click.command(
    "dashboard",
    epilog="""\b
Examples:
  stallscope dashboard http://127.0.0.1:8000
  stallscope dashboard http://10.0.0.1:8000 http://10.0.0.2:8000     # a fleet, worst first
  stallscope dashboard incident.rec --baseline good.rec              # replay, seek, mark windows
  stallscope dashboard http://127.0.0.1:8000 --once | less           # one frame of text""",
)
@click.argument("targets", nargs=-1, required=True, shell_complete=complete_files)
@click.option(
    "--interval", type=Duration(), help="Time between scrapes of a target [default: 1s; above 20 targets n/20 s]."
)
@click.option("--baseline", type=click.Path(), default="", help="A recording of a good time to judge against.")
@click.option("--slo", "objectives", type=Slo(), default=(), help="Absolute objectives: itl_p99=200ms,ttft_p95=2s.")
@click.option("--policy", "policy_file", type=click.Path(path_type=Path), help="TOML file with [thresholds].")
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Record the live target as well.")
@click.option("--readonly", is_flag=True, help="Write no files, and offer no command that changes a target.")
@click.option("--span", type=Duration(), default="5m", show_default=True, help="Time that the plots span.")
@click.option("--page", type=click.Choice(PAGES), help="First page [default: overview; fleet with several targets].")
@click.option(
    "--theme", type=click.Choice(THEMES), default=THEMES[0], show_default=True, help="Colours; safe: for all eyes."
)
@click.option("--export-to", type=click.Path(file_okay=False, path_type=Path), help="Where exports go [default: here].")
@click.option("--once", is_flag=True, help="Print one frame as plain text and end; for pipes.")
@click.option(
    "--window", type=Duration(), default="10s", show_default=True, help="With --once: how long to watch first."
)
@click.option("--size", type=Size(), help="With --once: columns x lines [default: the terminal's, or 80x24].")
@click.option("--web", is_flag=True, help="Serve it to a browser on 127.0.0.1 (needs stallscope[web]).")
@click.option("--port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, show_default=True, help="With --web.")
def dashboard_command(
    targets: tuple[str, ...],
    interval: float | None,
    baseline: str,
    objectives: tuple[Objective, ...],
    policy_file: Path | None,
    record: Path | None,
    readonly: bool,
    span: float,
    page: str | None,
    theme: str,
    export_to: Path | None,
    once: bool,
    window: float,
    size: tuple[int, int] | None,
    web: bool,
    port: int,
) -> None:
    """Watch TARGETS (http://host:port, or recordings) in the terminal: latency, steps, memory, and why tokens are late.

    Press ? for the keys. Exit codes: 0; 2 usage or a file that cannot be read; with --once those of `diagnose`.
    """
    check(targets, record, baseline, readonly=readonly)
    if web:
        from dashboard.web import serve

        serve(web_command(sys.argv[1:]), port)
        return
    from dashboard.judge import Rules
    from dashboard.model.view import Page
    from dashboard.options import Options
    from dashboard.session import Session

    rules = Rules(objectives) if policy_file is None else Rules(objectives, _policy(policy_file))
    try:
        session = Session(
            targets,
            Options(
                interval or default_interval(len(targets)), baseline, rules, record, readonly, span, all_steps=once
            ),
        )
    except OSError as error:
        raise SourceError(f"{record}: cannot be written: {error.strerror or error}") from None
    if page is not None:
        session.view.page = Page(page)
    if once:
        from dashboard.once import print_once

        sys.exit(print_once(session, size or _terminal_size(), window))
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise SourceError("the dashboard needs a terminal; in a pipe use --once")
    gc.disable()  # until the first paint: next to nothing that start-up makes is garbage
    from dashboard.app import DashboardApp

    DashboardApp(session, theme, export_to, _collect_again).run()


def _collect_again() -> None:
    gc.enable()
    gc.freeze()  # what is loaded by now stays: no collection needs to walk it


def _policy(path: Path) -> "Policy":
    from diagnose.thresholds import read_policy

    return read_policy(path)


def check(targets: tuple[str, ...], record: Path | None, baseline: str, *, readonly: bool) -> None:
    """Raises SourceError for what could only fail later, on a screen that hides it."""
    for target in targets:
        if is_url(target) and not valid_url(target):
            raise SourceError(f"{target!r} is not a target: write http://HOST:PORT")
        if not is_url(target) and not Path(target).is_file():
            raise SourceError(f"{target}: is neither a URL nor a file{after_no_file(target)}")
    if len(set(targets)) < len(targets):
        raise SourceError("a target is named twice")
    if baseline and not Path(baseline).is_file():
        raise SourceError(f"{baseline}: is no file; record one with `stallscope record TARGET --for 60s -o FILE`")
    if record is not None:
        if readonly:
            raise SourceError("--record writes a file, and --readonly forbids it; give one of them")
        if len(targets) != 1 or not is_url(targets[0]):
            raise SourceError("--record takes one live target; start a dashboard per target to record several")


def default_interval(num_targets: int) -> float:
    """Seconds. Twenty scrapes a second are what one core takes with ease, step records included."""
    return max(1.0, num_targets / 20)


def valid_url(target: str) -> bool:
    try:
        parts = urlsplit(target)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False


def _terminal_size() -> tuple[int, int]:
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return 80, 24
    columns, lines = shutil.get_terminal_size((80, 24))
    return max(40, columns), max(12, lines - 1)


def web_command(arguments: list[str]) -> str:
    """The same command without --web and --port, for the process that each browser tab gets."""
    kept, skip = [], False
    for argument in arguments:
        if skip or argument == "--web" or argument.startswith("--port"):
            skip = argument == "--port"
            continue
        kept.append(argument)
    return shlex.join([sys.executable, "-P", "-m", "diagnose.cli", *kept])
