"""`stallscope experiment`."""

import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from diagnose.commands.params import Duration, Slo
from diagnose.errors import DiagnoseError
from diagnose.hypotheses.registry import HYPOTHESES
from probes.extras import not_installed
from runbooks.admin import VERBS
from runbooks.errors import ExperimentError
from runbooks.experiments.metrics import METRICS


@click.command(
    "experiment",
    epilog="""\b
Examples:
  stallscope experiment http://127.0.0.1:8000 --knob max_batched_tokens=512,96 \\
      --admin-token-file token --hypothesis prefill_interference --apply \\
      --load rate=0.2,prompt=24,output=200 --load rate=0.12,prompt=260,output=2
  stallscope experiment --arm-a http://a:8000 --arm-b http://b:8000 --load rate=2
  stallscope experiment --launch-a 'vllm serve M --port {port} --max-num-batched-tokens 2048' \\
      --launch-b 'vllm serve M --port {port} --max-num-batched-tokens 512' --load rate=2""",
)
@click.argument("target", required=False)
@click.option("--knob", help="KNOB=VALUE_A,VALUE_B of the stallscope engine at TARGET: " + ", ".join(VERBS) + ".")
@click.option("--admin-token-file", type=click.Path(dir_okay=False, path_type=Path), help="For --knob.")
@click.option("--apply", is_flag=True, help="With --knob: really change it (and put it back). Without: print the plan.")
@click.option("--arm-a", help="URL of a running server; with --arm-b instead of TARGET.")
@click.option("--arm-b", help="URL of the other server; the same one for an A/A comparison.")
@click.option("--launch-a", help="Command that serves on {port}; with --launch-b instead of TARGET.")
@click.option("--launch-b", help="Command that serves the other arm on {port}.")
@click.option("--keep-running", is_flag=True, help="Keep both launched servers up, instead of one at a time.")
@click.option(
    "--load",
    "loads",
    multiple=True,
    help="rate=0.5,arrivals=poisson,prompt=128,output=64,prefix=0,groups=1 (repeatable).",
)
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Arrivals from a file: Mooncake, Azure or BurstGPT form."
)
@click.option("--block", type=Duration(), default="40s", show_default=True, help="Length of one block of one arm.")
@click.option(
    "--washout", type=Duration(), default="10s", show_default=True, help="First part of a block, not measured."
)
@click.option(
    "--drain", type=Duration(), default="20s", show_default=True, help="How long streams may outlast a block."
)
@click.option("--pairs", type=click.IntRange(1, 200), default=6, show_default=True, help="Pairs of blocks.")
@click.option(
    "--max-pairs", type=click.IntRange(2, 400), help="A second look here if the first, after --pairs, did not decide."
)
@click.option(
    "--metric", type=click.Choice(list(METRICS)), default="itl_p99", show_default=True, help="What should move."
)
@click.option(
    "--hypothesis", type=click.Choice([h.name for h in HYPOTHESES]), help="What a moved metric would confirm."
)
@click.option(
    "--matters",
    type=click.FloatRange(0.001, 1),
    default=0.1,
    show_default=True,
    help="Least effect of interest, as a share.",
)
@click.option(
    "--noise", type=Duration(), help="Noise floor of the metric from an A/A comparison: nothing below is an effect."
)
@click.option("--slo", "objectives", type=Slo(), default=(), help="For goodput: itl_p99=200ms,ttft_p95=2s.")
@click.option("--allow-confounded", is_flag=True, help="Compare arms that differ in more than one thing, and say so.")
@click.option("--model", help="The model to ask for [default: the first that the server lists].")
@click.option(
    "--key-file", type=click.Path(dir_okay=False, path_type=Path), help="File with the API key, sent as a bearer token."
)
@click.option(
    "--policy", type=click.Path(path_type=Path), help="TOML file whose [thresholds] override what counts as matched."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the order of blocks, and of the load.")
@click.option(
    "--diagnosis",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Diagnosis (JSON) to update in place with the verdict.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "json", "markdown", "html")),
    help="[default: by FILE's name, or text]",
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the report to FILE.")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
def experiment_command(**options: Any) -> NoReturn:
    """Compare two arms that differ in one thing, under the same open-loop load, in paired blocks of random order.

    Exit codes: 1 confirmed, 0 refuted or a noise floor, 3 nothing shown or not comparable, 2 usage or an arm that cannot be
    set up, 4 an arm crashed, 130 interrupted; the last two after a report of the completed pairs.
    """
    # What was changed is put back on the way out, as on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from runbooks.experiments.settings import Settings
    except ModuleNotFoundError as error:
        missing = not_installed(f"{error.name}, which the load needs,", "lab")
        click.echo(f"stallscope experiment: {missing}", err=True)
        sys.exit(2)
    try:
        sys.exit(Settings(**options).run())
    except (ExperimentError, DiagnoseError) as error:
        for line in (str(error), *getattr(error, "__notes__", ())):
            click.echo(f"stallscope experiment: {line}", err=True)
        sys.exit(2)
