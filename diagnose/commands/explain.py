"""`stallscope explain`."""

import inspect
import re

import click

from diagnose.commands.answers import json_option, to_json
from diagnose.commands.completion import complete_names
from diagnose.errors import SourceError
from diagnose.hypotheses.base import Hypothesis
from diagnose.hypotheses.registry import HYPOTHESES
from diagnose.nearest import nearest
from diagnose.report.page import Page

_PARAGRAPH = re.compile(r"\n+(?=[A-Z][a-z ]+: )|\n\n")
"""`Symptom: ...`, `Mechanism: ...`: each begins a line."""


@click.command(
    "explain",
    epilog="""\b
Examples:
  stallscope explain
  stallscope explain prefill_interference
  stallscope explain --thresholds
  stallscope explain --thresholds --json""",
)
@click.argument("name", required=False, shell_complete=complete_names(lambda: [h.name for h in HYPOTHESES]))
@click.option(
    "--thresholds", "with_thresholds", is_flag=True, help="List every threshold with its value and its reason."
)
@json_option
def explain_command(name: str | None, with_thresholds: bool, as_json: bool) -> None:
    """Explain hypothesis NAME: symptom, mechanism, what refutes and supports it, what proves nothing, the fix.

    Without NAME, lists the hypotheses. Exit codes: 0, 2 usage or no such hypothesis.
    """
    if with_thresholds:
        if name is not None:
            raise click.UsageError("--thresholds lists all of them; leave the name out")
        _list_thresholds(as_json)
        return
    known = {hypothesis.name: hypothesis for hypothesis in HYPOTHESES}
    if name is not None and name not in known:
        raise SourceError(f"no hypothesis {name!r}{nearest(name, known)}; there are {', '.join(known)}")
    page = Page()
    if as_json:
        asked = HYPOTHESES if name is None else [known[name]]
        click.echo(to_json(hypotheses=[_fields(hypothesis) for hypothesis in asked]))
    elif name is None:
        width = max(map(len, known))
        for hypothesis in HYPOTHESES:
            summary, _, _ = _text(hypothesis).partition("\n")
            page.line(f"{hypothesis.name:<{width}}  {summary}", hanging=width + 2)
        click.echo(str(page))
    else:
        page.line(name)
        for paragraph in _PARAGRAPH.split(_text(known[name])):
            page.line()
            page.line(" ".join(paragraph.split()))
        click.echo(str(page))


def _text(hypothesis: Hypothesis) -> str:
    return inspect.getdoc(type(hypothesis)) or ""


def _fields(hypothesis: Hypothesis) -> dict[str, object]:
    summary, _, text = _text(hypothesis).partition("\n\n")
    return {"name": hypothesis.name, "benign": hypothesis.benign, "summary": summary, "text": text}


def _list_thresholds(as_json: bool) -> None:
    from diagnose.thresholds import thresholds

    if as_json:
        rows = [
            {"name": t.name, "default": t.default, "low": t.low, "high": t.high, "whole": t.whole, "reason": t.reason}
            for t in thresholds()
        ]
        click.echo(to_json(thresholds=rows))
        return
    page = Page()
    for threshold in thresholds():
        page.line(f"{threshold.name} = {threshold.default:g}  ({threshold.range_text})", style="bold")
        page.line(threshold.reason, indent=2)
    click.echo(str(page))
