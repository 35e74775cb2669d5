"""`stallscope diagnose`."""

import json
import sys
from collections.abc import Sequence

import click

from diagnose.commands.params import Duration, Slo, is_url
from diagnose.commands.progress import watch_progress
from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.dialects.registry import recognise
from diagnose.errors import SourceError
from diagnose.observation import Observation, observe
from diagnose.signals import Signals
from diagnose.slo import Objective
from diagnose.sources.files import read_files
from diagnose.windows import build_signals


@click.command("diagnose")
@click.argument("sources", nargs=-1, required=True)
@click.option("--window", type=Duration(), default="20s", show_default=True, help="How long to watch a live target.")
@click.option(
    "--interval",
    type=Duration(),
    help="Time between scrapes of a live target [default: 1s]; for exposition files without a time, the time between them.",
)
@click.option("--baseline", multiple=True, help="A recording or other files of a good time. Repeatable.")
@click.option("--slo", "objectives", type=Slo(), default=(), help="Absolute objectives: itl_p99=200ms,ttft_p95=2s.")
@click.option("--json", "as_json", is_flag=True, help="The diagnosis as JSON (schema 1) on stdout.")
@click.option("--quiet", "-q", is_flag=True, help="Only the answer, in one line; no progress.")
@click.option("--verbose", "-v", is_flag=True, help="All evidence, with sources and sample counts.")
def diagnose_command(
    sources: tuple[str, ...],
    window: float,
    interval: float | None,
    baseline: tuple[str, ...],
    objectives: tuple[Objective, ...],
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Say why the tokens of SOURCES are late, with evidence, and what to do next.

    SOURCES are one live target (http://host:port), or files of one target: a recording made by `stallscope record`, the answer
    of /debug/steps, or two or more scrapes of /metrics in time order (`-` is standard input).

    \b
    stallscope diagnose http://127.0.0.1:8000 --window 20s
    stallscope diagnose incident.rec --baseline good.rec --slo itl_p99=200ms
    stallscope diagnose scrape1.prom scrape2.prom --interval 30s

    Exit codes: 0 nothing wrong, 1 a cause is supported, 2 usage or target unreadable, 3 insufficient evidence,
    4 hard failure.
    """
    live = [source for source in sources if is_url(source)]
    if live and len(sources) > 1:
        raise SourceError(
            "one live target at a time, and no files beside it; give files of a good time with --baseline"
        )
    if live:
        observation = _watch(live[0], window, interval or 1.0, quiet=quiet)
        target = observation.target
    else:
        observation = _read(sources, interval)
        target = observation.target
    diagnosis = judge(
        observation, _read(baseline, interval) if baseline else None, objectives, is_live=bool(live), target=target
    )
    show(diagnosis, as_json=as_json, quiet=quiet, verbose=verbose)
    sys.exit(int(diagnosis.exit_code))


def _watch(url: str, window: float, interval: float, *, quiet: bool) -> Observation:
    # Not at the top: a diagnosis of files should not pay for an HTTP client, half of the command's time.
    from diagnose.sources.clock import SystemClock
    from diagnose.sources.http import Endpoint
    from diagnose.sources.live import Watch

    endpoint = Endpoint(url)
    with watch_progress(f"watching {endpoint.url}", window, quiet=quiet) as on_progress:
        entries = Watch(endpoint, SystemClock(), on_progress=on_progress).run(window, interval)
    return observe(endpoint.url, entries)


def _read(names: Sequence[str], interval: float | None) -> Observation:
    if any(is_url(name) for name in names):
        raise SourceError(
            "a baseline is made of files: record the target with `stallscope record TARGET --for 60s -o FILE`"
        )
    evidence = read_files(names, interval)
    observation = observe(evidence.name, evidence.entries)
    observation.warnings = [*evidence.warnings, *observation.warnings]
    return observation


def judge(
    incident: Observation,
    baseline: Observation | None,
    objectives: Sequence[Objective],
    *,
    is_live: bool,
    target: str,
) -> Diagnosis:
    """From observations to a diagnosis, through the dialect that the pages speak."""
    warnings = [*incident.warnings, *(f"baseline: {text}" for text in (baseline.warnings if baseline else ()))]
    return diagnose(
        target,
        _signals(incident),
        None if baseline is None else _signals(baseline),
        is_live=is_live,
        events=incident.events,
        objectives=objectives,
        warnings=warnings,
    )


def _signals(observation: Observation) -> Signals:
    if not observation.scrapes:
        from diagnose.dialects.stallscope import STALLSCOPE  # step records alone can only come from our engine

        return build_signals(observation, STALLSCOPE)
    return build_signals(observation, recognise(observation.target, observation.scrapes[0].page))


def show(diagnosis: Diagnosis, *, as_json: bool, quiet: bool, verbose: bool) -> None:
    if as_json:
        from diagnose.report.json_report import to_json

        click.echo(json.dumps(to_json(diagnosis), indent=2))
        return
    from diagnose.report.page import Page
    from diagnose.report.terminal import headline, render

    click.echo(headline(diagnosis) if quiet or diagnosis.idle else render(diagnosis, Page(), verbose=verbose))
