"""`stallscope explain`."""

import inspect

import click

from diagnose.commands.completion import complete_names
from diagnose.errors import SourceError
from diagnose.hypotheses.registry import HYPOTHESES
from diagnose.nearest import nearest


@click.command(
    "explain",
    epilog="""\b
Examples:
  stallscope explain
  stallscope explain prefill_interference
  stallscope explain --thresholds""",
)
@click.argument("name", required=False, shell_complete=complete_names(lambda: [h.name for h in HYPOTHESES]))
@click.option(
    "--thresholds", "with_thresholds", is_flag=True, help="List every threshold with its value and its reason."
)
def explain_command(name: str | None, with_thresholds: bool) -> None:
    """Explain hypothesis NAME: symptom, mechanism, what refutes and supports it, what proves nothing, the fix.

    Without NAME, lists the hypotheses. Exit codes: 0, 2 usage or no such hypothesis.
    """
    if with_thresholds:
        if name is not None:
            raise click.UsageError("--thresholds lists all of them; leave the name out")
        _list_thresholds()
        return
    known = {hypothesis.name: hypothesis for hypothesis in HYPOTHESES}
    if name is None:
        width = max(map(len, known))
        for hypothesis in HYPOTHESES:
            summary = (inspect.getdoc(type(hypothesis)) or "").partition("\n")[0]
            click.echo(f"{hypothesis.name:<{width}}  {summary}")
        return
    if name not in known:
        raise SourceError(f"no hypothesis {name!r}{nearest(name, known)}; there are {', '.join(known)}")
    click.echo(f"{name}\n\n{inspect.getdoc(type(known[name]))}")


def _list_thresholds() -> None:
    from diagnose.report.page import Page
    from diagnose.thresholds import thresholds

    page = Page()
    for threshold in thresholds():
        page.line(f"{threshold.name} = {threshold.default:g}  ({threshold.range_text})", style="bold")
        page.line(threshold.reason, indent=2)
    click.echo(str(page))
