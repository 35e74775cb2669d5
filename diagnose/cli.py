"""The one command, `stallscope`. Subcommands load only when they are used: `--help` imports neither torch nor textual."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# name -> (module:function, one line for --help)
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("engine.server.command:serve", "Serve a model with the instrumented engine (OpenAI API)."),
    "diagnose": ("diagnose.commands.diagnose:diagnose_command", "Say why tokens are late, and what to do next."),
    "dashboard": (
        "dashboard.command:dashboard_command",
        "Watch targets in the terminal: latency, steps, memory, verdicts.",
    ),
    "record": ("diagnose.commands.record:record_command", "Record a live target for later (a baseline, an incident)."),
    "sources": ("diagnose.commands.sources:sources_command", "What each engine can answer, and how to get the rest."),
    "replay": ("diagnose.commands.replay:replay_command", "Serve a recording as if it were its target."),
    "explain": ("diagnose.commands.explain:explain_command", "Explain a hypothesis: mechanism, evidence, fix."),
    "disaggregation": (
        "diagnose.commands.disaggregation:disaggregation_command",
        "What is known of whether separate prefill and decode instances would pay.",
    ),
    "experiment": ("runbooks.experiments.command:experiment_command", "Compare two arms: what confirms a cause."),
    "drill": ("runbooks.drills.command:drill_command", "Induce a known condition, and hold the diagnosis against it."),
    "runbook": (
        "runbooks.command:runbook_group",
        "Pages for people, and a receiver that answers alerts within bounds.",
    ),
    "demo": ("runbooks.drills.demo:demo_command", "Induce a stall on a live engine and diagnose it."),
    "doctor": ("diagnose.commands.doctor:doctor_command", "What is installed here, and what this machine lacks."),
    "completion": (
        "diagnose.commands.completion:completion_command",
        "Print a script that completes words for a shell.",
    ),
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            from diagnose.commands.params import is_url
            from diagnose.nearest import nearest

            is_target = is_url(cmd_name) or Path(cmd_name).is_file()
            meant = f"; write: stallscope diagnose {cmd_name}" if is_target else nearest(cmd_name, COMMANDS)
            ctx.fail(f"no command {cmd_name!r}{meant}")
        module_name, _, function = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module_name), function)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """From the table: click would load every command for its one line of help."""
        from click.shell_completion import CompletionItem

        own = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return [*own, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from probes.extras import extras, own_version

        version = own_version()
        if version is None:
            click.echo("stallscope, not installed (run from its source)")
        else:
            present = [extra.name for extra in extras() if extra.is_complete]
            click.echo(f"stallscope {version}, extras: {', '.join(present) or 'none'}")
        context.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  stallscope diagnose http://127.0.0.1:8000
  stallscope record http://127.0.0.1:8000 -o good.rec
  stallscope diagnose http://127.0.0.1:8000 --baseline good.rec
  stallscope doctor http://127.0.0.1:8000

Exit codes of diagnose: 0 nothing wrong, 1 a cause is supported, 2 cannot look, 3 insufficient evidence, 4 hard failure.""",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="The version and the extras that are here.",
)
def stallscope() -> None:
    """Why are the tokens late, what are we sure of, what do we measure or do next?"""


ROOMS = ("engine", "probes", "diagnose", "dashboard", "runbooks")


def check_rooms() -> None:
    """Exits when a room resolves to a foreign distribution: PyPI has some of these names, and one of them would shadow ours."""
    home = Path(__file__).resolve().parent.parent
    for room in ROOMS:
        spec = importlib.util.find_spec(room)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None or origin.parent.parent != home:
            click.echo(
                f"stallscope: package {room!r} comes from {origin}, not from {home}: "
                "another distribution has taken its place; install stallscope in an environment of its own",
                err=True,
            )
            sys.exit(2)


def main() -> None:
    """Entry point. Errors that people can cause end in one line and an exit code."""
    from diagnose.errors import DiagnoseError

    check_rooms()
    try:
        # What a command returns is nothing, but for the exit code that `--help` and ctx.exit() end with.
        code = stallscope.main(prog_name="stallscope", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except DiagnoseError as error:
        click.echo(f"stallscope: {error}", err=True)
        sys.exit(int(error.exit_code))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)


if __name__ == "__main__":
    main()
