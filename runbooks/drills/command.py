"""`stallscope drill`."""

import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from diagnose.commands.answers import json_option, to_json
from diagnose.commands.completion import complete_names
from diagnose.commands.output import check_writable, deliver
from diagnose.commands.progress import announce
from diagnose.hypotheses.registry import HYPOTHESES
from diagnose.nearest import nearest
from diagnose.units import seconds
from probes.extras import not_installed
from runbooks.errors import DrillError, ExperimentError

if TYPE_CHECKING:
    from runbooks.drills.catalog import Drill
    from runbooks.drills.run import Outcome

_BLIND_SECONDS = 60.0


def _drill_names() -> list[str]:
    from runbooks.drills.catalog import DRILLS

    return list(DRILLS)


@click.command(
    "drill",
    epilog="""\b
Examples:
  stallscope drill --list
  stallscope drill prefill_interference
  stallscope drill prefill_interference --json
  stallscope drill cache_thrashing --seed 3 -o thrash.rec
  stallscope drill --blind --seed 7
  stallscope drill prefill_interference --target http://127.0.0.1:8000""",
)
@click.argument("name", required=False, shell_complete=complete_names(_drill_names))
@click.option("--list", "lists", is_flag=True, help="The drills, what each does and which signal decides.")
@click.option("--seed", type=int, default=1, show_default=True, help="Varies arrivals and rates; picks a blind drill.")
@click.option("--model", type=click.Choice(["tiny", "smollm2"]), help="By default the one on which the drill shows.")
@click.option(
    "--target", metavar="URL", help="A running server to drive instead, where load alone induces the condition."
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Engine threads.")
@click.option("--blind", is_flag=True, help="Hide what is wrong, let you look, ask, then reveal.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Record the incident to FILE.rec, and the quiet window beside it to FILE-baseline.rec.",
)
@json_option
def drill_command(
    name: str | None,
    lists: bool,
    seed: int,
    model: str | None,
    target: str | None,
    threads: int,
    blind: bool,
    output: Path | None,
    as_json: bool,
) -> NoReturn:
    """Start the engine, induce a known condition for real, and print the diagnosis beside the truth.

    Takes about half a minute on the tiny model, and leaves nothing running. Exit codes: 0 the diagnosis is right, 1 it is not,
    2 usage or the drill could not run, 3 the symptom did not show (the drill does not count), 130 interrupted.
    """
    from runbooks.drills.catalog import DRILLS

    if lists:
        _list(as_json)
        sys.exit(0)
    if blind and as_json:
        raise click.UsageError("--blind asks a person: leave --json out")
    if name is None and blind:
        name = random.Random(seed).choice(
            [d.name for d in DRILLS.values() if target is None or d.needs_own_engine is None]
        )
    if name is None:
        raise click.UsageError("name a drill, or --blind for one that you do not know; --list shows them")
    if name not in DRILLS:
        raise click.UsageError(f"no drill {name!r}{nearest(name, DRILLS)}; one of {', '.join(DRILLS)}")
    check_writable(output)
    for path in () if output is None else (output, _baseline_of(output)):
        if path.exists():  # before a minute of work, and never over an older recording
            raise click.UsageError(f"{path} is there already; give -o another name")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the engine is stopped on the way out, as on Ctrl-C
    try:
        sys.exit(_run(name, seed, _How(model, threads, target), blind, output, as_json))
    except (DrillError, ExperimentError) as error:
        click.echo(f"stallscope drill: {error}", err=True)
        sys.exit(2)


def _list(as_json: bool) -> None:
    from runbooks.drills.catalog import DRILLS
    from runbooks.drills.fields import drill_fields

    if as_json:
        click.echo(to_json(drills=[drill_fields(drill) for drill in DRILLS.values()]))
        return
    for drill in DRILLS.values():
        click.echo(f"{drill.name}\n    {drill.summary}\n    expected: {drill.expected}; decided by {drill.deciding}")


class _How(NamedTuple):
    """On which server."""

    model: str | None
    threads: int
    target: str | None


def _run(name: str, seed: int, how: _How, blind: bool, output: Path | None, as_json: bool) -> int:
    try:
        from runbooks.drills.run import DrillRun
    except ModuleNotFoundError as error:
        raise DrillError(not_installed(f"{error.name}, which the load needs,", "lab")) from None
    from runbooks.drills.catalog import DRILLS

    drill = DRILLS[name]
    if not blind:
        click.echo(f"Drill {drill.name}: {drill.summary}.", err=as_json)

    def tell(phase: str, url: str, pid: int | None) -> None:
        click.echo(f"{phase} window on {url}{'' if pid is None else f' (pid {pid})'} ...", err=as_json)
        if blind and phase == "incident":
            click.echo(f"look at it for {_BLIND_SECONDS:.0f} s: stallscope diagnose {url} --window 20s")

    length = _BLIND_SECONDS if blind else None
    announce("starting the engine" if how.target is None else f"measuring the pace of {how.target}")
    quiet = not sys.stderr.isatty()  # where `tell` has told it
    run = DrillRun(drill, how.model or drill.model, seed, how.threads, length, tell, quiet, how.target)
    outcome = run.run()
    if output is not None:
        _record(outcome.incident.write, output)
        _record(outcome.quiet.write, _baseline_of(output))
    if blind:
        _ask(drill)
    if as_json:
        from runbooks.drills.fields import outcome_fields

        click.echo(to_json(**outcome_fields(outcome)))
    else:
        _tell(outcome)
    if not outcome.moved:
        return 3
    return 0 if outcome.is_right else 1


def _tell(outcome: "Outcome") -> None:
    """The diagnosis, and the truth beside it."""
    drill = outcome.drill
    click.echo()
    deliver(outcome.diagnosis, "text", quiet=False, verbose=False)
    before, after = outcome.quiet.levels, outcome.incident.levels
    click.echo("\nTruth")
    click.echo(f"  induced      {drill.name}: {drill.summary}")
    click.echo(f"  decided by   {drill.deciding}")
    if outcome.account_check is not None:
        click.echo(f"  account      {outcome.account_check.text()}")
    click.echo(f"  clients saw  {before.text(seconds)}  ->  {after.text(seconds)}")
    if not outcome.moved:
        click.echo("  the symptom did not show in what clients saw: this run does not count; expected is nothing")
    click.echo(f"  expected     {drill.expected if outcome.moved else 'nothing wrong'}")
    silent = "not right, and not wrong either" if outcome.named is None else "WRONG"
    click.echo(f"  named        {outcome.named or 'no cause'}: {'right' if outcome.is_right else silent}")


def _ask(drill: "Drill") -> None:
    """What the person thinks, and what it was."""
    click.echo(f"It may be one of: {', '.join(hypothesis.name for hypothesis in HYPOTHESES)}; or nothing.")
    guess = click.prompt("What is wrong?", default="do not know")
    right = guess.strip().lower() in (drill.primary or ("nothing", "none"))
    click.echo(
        f"You said: {guess}: {'right' if right else 'not so'}. It was {drill.name}: {drill.summary}.\n"
        f"The signal that decides: {drill.deciding}."
    )


def _baseline_of(output: Path) -> Path:
    return output.with_name(f"{output.stem}-baseline{output.suffix}")


def _record(write: Callable[[Path], None], path: Path) -> None:
    try:
        write(path)
    except OSError as error:
        raise DrillError(f"{path}: cannot be written: {error.strerror or error}") from None
    click.echo(f"{path}: {path.stat().st_size / 1024:.0f} KiB", err=True)
