"""`stallscope explain`."""

import inspect

import click

from diagnose.errors import SourceError
from diagnose.hypotheses.registry import HYPOTHESES


@click.command("explain")
@click.argument("name", required=False)
def explain_command(name: str | None) -> None:
    """Explain hypothesis NAME: symptom, mechanism, what refutes and supports it, what proves nothing, the fix.

    Without NAME, lists the hypotheses.
    """
    known = {hypothesis.name: hypothesis for hypothesis in HYPOTHESES}
    if name is None:
        width = max(map(len, known))
        for hypothesis in HYPOTHESES:
            summary = (inspect.getdoc(type(hypothesis)) or "").partition("\n")[0]
            click.echo(f"{hypothesis.name:<{width}}  {summary}")
        return
    if name not in known:
        raise SourceError(f"no hypothesis {name!r}; there are {', '.join(known)}")
    click.echo(f"{name}\n\n{inspect.getdoc(type(known[name]))}")
