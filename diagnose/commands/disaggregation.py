"""`stallscope disaggregation`."""

import re
import sys
from pathlib import Path
from typing import Any

import click

from diagnose.commands.answers import json_option, to_json
from diagnose.commands.diagnose import judge
from diagnose.commands.progress import reading_progress
from diagnose.disaggregation import Advice, Placement, Stated, advise
from diagnose.errors import ExitCode
from diagnose.model_config import read_model_config
from diagnose.report.page import Page
from diagnose.sources.files import read_files
from probes.arithmetic import ByteRate


class LinkRate(click.ParamType[ByteRate]):
    """`100Gb/s`: links are sold in bits. `12.5GB/s`: the same in bytes. The unit is never guessed."""

    name = "rate"
    _TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(Gb|GB)/s")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ByteRate:
        if isinstance(value, ByteRate):
            return value
        match = self._TEXT.fullmatch(str(value).strip())
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is no rate; write 100Gb/s (bits) or 12.5GB/s (bytes)", param, ctx)
        make = ByteRate.from_gigabits_per_second if match[2] == "Gb" else ByteRate.from_gigabytes_per_second
        return make(float(match[1]))


class Overlap(click.ParamType[int]):
    """`512`: tokens of a chunk. `none`: 0."""

    name = "tokens|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "none" or isinstance(value, int):
            return 0 if value == "none" else int(value)
        if not str(value).isdecimal() or int(value) == 0:
            self.fail(f"{value!r} is neither a number of tokens per chunk nor none", param, ctx)
        return int(value)


class Share(click.ParamType[float]):
    """`20%`."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", str(value).strip())
        if match is None or float(match[1]) > 100:
            self.fail(f"{value!r} is no share; write 20%, or 0% where nothing is saved", param, ctx)
        return float(match[1]) / 100


_TOKENS = click.IntRange(1)
EXAMPLES = """
\b
Examples:
  stallscope disaggregation incident.rec
  stallscope disaggregation incident.rec --placement intra-rack --link 100Gb/s \\
      --overlap 512 --cost-saved 20%
  stallscope disaggregation --prompt-tokens 4096 --output-tokens 200 --model-config config.json
"""


@click.command("disaggregation", epilog=EXAMPLES)
@click.argument("sources", nargs=-1)
@click.option("--prompt-tokens", type=_TOKENS, help="Prompt tokens to compute per request, without cached ones.")
@click.option("--output-tokens", type=_TOKENS, help="Output tokens per request.")
@click.option(
    "--placement",
    type=click.Choice([placement.value for placement in Placement]),
    help="Where the two kinds of instances stand.",
)
@click.option("--link", type=LinkRate(), help="What connects them: 100Gb/s (bits) or 12.5GB/s (bytes).")
@click.option(
    "--overlap",
    "chunk_tokens",
    type=Overlap(),
    help="Tokens of a chunk whose KV is sent while the next is computed, or none.",
)
@click.option("--cost-saved", type=Share(), help="What specialised instances save of the hardware's cost: 20%.")
@click.option(
    "--prefill-rate",
    type=click.FloatRange(0, min_open=True),
    help="Prompt tokens per second that one prefill instance computes.",
)
@click.option(
    "--model-config",
    type=click.Path(path_type=Path),
    help="The model's config.json, for KV bytes per token where the target does not state them.",
)
@json_option
def disaggregation_command(
    sources: tuple[str, ...], model_config: Path | None, placement: str | None, as_json: bool, **stated: Any
) -> None:
    """Say what is known, and what is missing, of whether separate prefill and decode instances would pay.

    SOURCES are recordings or other files of the target, as for `stallscope diagnose`; without them, what is stated. Four inputs
    decide: sequence lengths, placement, overlap, and the cost that is saved. No speed of a link decides alone, so that there is
    no verdict here: only what each input says, what arithmetic bounds from below, and what stays shared and untested.

    Exit codes: 0 the four inputs are known, 2 usage or a source that cannot be read, 3 an input is missing.
    """
    labels = read_model_config(model_config) if model_config is not None else {}
    case = None
    if sources:
        evidence = read_files(sources, None, None, lambda name: reading_progress(f"reading {name}", quiet=False))
        observation = evidence.observation()
        case = judge(observation, None, (), is_live=False, target=observation.target).case
    per_token = labels.get("kv_bytes_per_token")
    known = Stated(
        placement=Placement(placement) if placement else None,
        bytes_per_token=int(per_token) if per_token else None,
        **stated,
    )
    advice = advise(known, case)
    click.echo(_as_json(advice) if as_json else _text(advice))
    sys.exit(int(ExitCode.INSUFFICIENT if advice.missing else ExitCode.NOTHING_WRONG))


def _as_json(advice: Advice) -> str:
    return to_json(
        headline=advice.headline,
        inputs=[{"name": found.name, "known": found.known or None, "ask": found.ask} for found in advice.inputs],
        missing=advice.missing,
        observed=advice.observed,
        arithmetic=advice.arithmetic,
        shared=[{"name": it.name, "measured": it.measured or None, "measure": it.measure} for it in advice.shared],
    )


def _text(advice: Advice) -> str:
    page = Page()
    page.line("Separate prefill and decode instances", style="dim")
    page.line(advice.headline, style="bold")
    page.section("The four inputs")
    for found in advice.inputs:
        mark, text = ("x", found.known) if found.known else (" ", f"missing: {found.ask}")
        page.line(f"[{mark}] {found.name}: {text}", indent=2, hanging=4)
    for title, lines in (("Seen on this target", advice.observed), ("By arithmetic", advice.arithmetic)):
        if lines:
            page.section(title)
            for line in lines:
                page.line(line, indent=2, hanging=2)
    page.section("Still shared by separate instances")
    for item in advice.shared:
        page.line(f"{item}{'' if item.measured else f'; to measure: {item.measure}'}", indent=2, hanging=2)
    return str(page)
