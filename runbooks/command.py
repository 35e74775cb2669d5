"""`stallscope runbook`: pages for people, and the receiver that answers alerts."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from diagnose.commands.answers import json_option, to_json
from diagnose.commands.completion import complete_names
from diagnose.commands.params import Duration
from runbooks.errors import RunbookError
from runbooks.pages import page_names, read_page


class RunbookGroup(click.Group):
    """Errors that people can cause end in one line and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RunbookError as error:
            click.echo(f"stallscope runbook: {error}", err=True)
            sys.exit(2)


_CONFIG = click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    default="runbooks.toml",
    show_default=True,
    help="Which alert is answered how.",
)


@click.group(
    "runbook",
    cls=RunbookGroup,
    epilog="""\b
Examples:
  stallscope runbook show prefill_interference
  stallscope runbook check --config runbooks.toml
  stallscope runbook serve --config runbooks.toml""",
)
def runbook_group() -> None:
    """Pages for the person who is woken up, and a receiver that answers alerts within bounds."""


@runbook_group.command(
    "list",
    epilog="""\b
Examples:
  stallscope runbook list
  stallscope runbook list --json""",
)
@json_option
def list_command(as_json: bool) -> None:
    """All pages, by name.

    Exit codes: 0, 2 usage.
    """
    pages = [read_page(name) for name in page_names()]
    if as_json:
        click.echo(to_json(pages=[{"name": page.name, "summary": page.summary} for page in pages]))
        return
    for page in pages:
        click.echo(f"{page.name:<26} {page.summary}")


@runbook_group.command(
    "show",
    epilog="""\b
Examples:
  stallscope runbook show prefill_interference
  stallscope runbook show InterTokenLatencySlow""",
)
@click.argument("name", shell_complete=complete_names(page_names))
def show_command(name: str) -> None:
    """The page of a hypothesis or of an alert.

    Exit codes: 0, 2 usage or no such page.
    """
    click.echo(read_page(name).text.rstrip())


@runbook_group.command(
    "alerts",
    short_help="Print Prometheus rules for an engine.",
    epilog="""\b
Examples:
  stallscope runbook alerts vllm
  stallscope runbook alerts stallscope --itl 200ms --ttft 2s --share 0.99""",
)
@click.argument("engine", type=click.Choice(("stallscope", "vllm", "sglang")))
@click.option("--itl", type=Duration(), help="Limit of the gap between tokens  [default: 200ms].")
@click.option("--ttft", type=Duration(), help="Limit of the first token  [default: 2s; vLLM 2.5s].")
@click.option(
    "--share", type=click.FloatRange(0.5, 0.9999), default=0.99, show_default=True, help="Of tokens within it."
)
def alerts_command(engine: str, itl: float | None, ttft: float | None, share: float) -> None:
    """Print Prometheus rules for an ENGINE: recording rules and alerts on symptoms.

    Exit codes: 0, 2 usage or a limit that the engine's buckets cannot tell.
    """
    from runbooks.alerts.rules import Objectives, rules, to_yaml

    click.echo(to_yaml(engine, rules(engine, Objectives(itl, ttft, share))), nl=False)


@runbook_group.command(
    "dashboard",
    short_help="Print a Grafana dashboard of our engine.",
    epilog="""\b
Examples:
  stallscope runbook dashboard > stallscope.json""",
)
def dashboard_command() -> None:
    """Print a Grafana dashboard of our engine, to be imported as JSON.

    Exit codes: 0, 2 usage.
    """
    from runbooks.alerts.grafana import dashboard

    click.echo(dashboard(), nl=False)


@runbook_group.command(
    "example",
    short_help="Print a configuration to start from.",
    epilog="""\b
Examples:
  stallscope runbook example > runbooks.toml""",
)
def example_command() -> None:
    """Print a configuration to start from: one target, one runbook with one act.

    Exit codes: 0, 2 usage.
    """
    from importlib.resources import files

    click.echo(files("runbooks").joinpath("example.toml").read_text(encoding="utf-8"), nl=False)


@runbook_group.command(
    "check",
    short_help="Read the configuration, and say what it allows.",
    epilog="""\b
Examples:
  stallscope runbook check --config runbooks.toml""",
)
@_CONFIG
def check_command(config_file: Path) -> None:
    """Read the configuration as `serve` would, secrets included, and say what it allows.

    Exit codes: 0 it is right, 2 usage or it is not.
    """
    from runbooks.response.config import read_config
    from runbooks.response.look import check_baselines
    from runbooks.response.notify import make_senders
    from runbooks.response.tracing import make_export

    config = read_config(config_file)
    config.secret(config.receiver.token_file)
    for target in config.targets:
        if target.admin_token_file:
            config.secret(target.admin_token_file)
    check_baselines(config)
    make_senders(config.notify)
    if config.receiver.otlp_endpoint:
        make_export(config.receiver.otlp_endpoint, "check").close()
    for runbook in config.runbooks:
        click.echo(f"{runbook.name}: answers {', '.join(runbook.alerts)}; symptom {runbook.symptom}")
        for act in runbook.acts:
            click.echo(
                f"  {act.label} for {', '.join(act.causes)}: {act.policy}, undone after {act.ttl}, rests {act.cooldown}"
                if act.can_be_undone
                else f"  {act.label} for {', '.join(act.causes)}: {act.policy}, cannot be undone, rests {act.cooldown}"
            )
    click.echo(f"{config_file}: targets {len(config.targets)}, runbooks {len(config.runbooks)}: right")


@runbook_group.command(
    "serve",
    short_help="Receive alerts: look, decide, act, verify, undo.",
    epilog="""\b
Examples:
  stallscope runbook serve --config runbooks.toml
  stallscope runbook serve --config runbooks.toml --plan-only""",
)
@_CONFIG
@click.option("--plan-only", is_flag=True, help="Whatever the policies say: look, decide, and do nothing.")
def serve_command(config_file: Path, plan_only: bool) -> None:
    """Receive Alertmanager's webhook at /alerts: look, decide, act within bounds, verify, undo.

    Everything is in the journal before it is done; a second receiver on the same journal takes alerts and waits.
    Exit codes: 0 after SIGTERM or SIGINT, 2 when it cannot start.
    """
    from runbooks.response.config import read_config
    from runbooks.response.serving import serve

    serve(read_config(config_file), lambda text: click.echo(text, err=True), plan_only=plan_only)


def _journal(config_file: Path) -> Any:
    from runbooks.response.config import read_config
    from runbooks.response.journal import Journal

    config = read_config(config_file)
    return Journal(config.path(config.receiver.journal), create=False)


@runbook_group.command(
    "approve",
    epilog="""\b
Examples:
  stallscope runbook approve 17 --config runbooks.toml
  stallscope runbook approve 17 --reject""",
)
@click.argument("incident", type=int)
@click.option("--reject", is_flag=True, help="Say no: nothing is done, and the incident is closed.")
@_CONFIG
def approve_command(incident: int, reject: bool, config_file: Path) -> None:
    """Approve the act that INCIDENT waits with.

    Exit codes: 0, 2 usage or it waits with none.
    """
    import getpass
    import time

    journal = _journal(config_file)
    journal.answer(incident, approved=not reject, who=getpass.getuser(), now=time.time())
    click.echo(f"incident {incident}: {'rejected' if reject else 'approved'}")


@runbook_group.command(
    "history",
    epilog="""\b
Examples:
  stallscope runbook history --limit 5
  stallscope runbook history --json""",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@json_option
@_CONFIG
def history_command(limit: int, as_json: bool, config_file: Path) -> None:
    """Incidents, the newest first.

    Exit codes: 0, 2 usage or a journal that cannot be read.
    """
    found = _journal(config_file).incidents(limit)
    if as_json:
        from runbooks.response.document import head_fields

        click.echo(to_json(incidents=[head_fields(incident) for incident in found]))
        return
    for incident in found:
        opened = datetime.fromtimestamp(incident.opened, UTC).strftime("%Y-%m-%d %H:%M:%S")
        outcome = incident.outcome or "under way"
        click.echo(f"{incident.incident_id:>5}  {opened}  {incident.runbook} on {incident.target}: {outcome}")
    if not found:
        click.echo("no incident yet")


@runbook_group.command(
    "report",
    short_help="The document of an incident.",
    epilog="""\b
Examples:
  stallscope runbook report 17
  stallscope runbook report 17 --json
  stallscope runbook report 17 -o incident-17.html""",
)
@click.argument("incident", type=int)
@click.option(
    "--format",
    "form",
    type=click.Choice(("markdown", "html", "json")),
    help="Form of the document [default: by FILE's name, or markdown].",
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json (schema 1).")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it to FILE.")
@_CONFIG
def report_command(incident: int, form: str | None, as_json: bool, output: Path | None, config_file: Path) -> None:
    """The document of INCIDENT: timeline, evidence, acts, outcome, and what is still unknown.

    Exit codes: 0, 2 usage, no such incident, or a file that cannot be written.
    """
    from diagnose.commands.output import choose_format, write
    from runbooks.response.document import incident_fields, to_html, to_markdown

    form = choose_format(form, as_json, output)
    found = _journal(config_file).incident(incident)
    if form == "json":
        write(to_json(incident=incident_fields(found)), output)
    else:
        write(to_html(found) if form == "html" else to_markdown(found), output)
    if output is not None:
        click.echo(str(output), err=True)
