"""`stallscope diagnose`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click

from diagnose.assembly import assemble
from diagnose.commands.completion import complete_files
from diagnose.commands.output import FORMATS, check_writable, choose_format, deliver
from diagnose.commands.params import DeviceName, Duration, Moment, Pid, ReportedLatency, Slo, is_url
from diagnose.commands.progress import announce, reading_progress
from diagnose.commands.prometheus import (
    DEFAULT_WINDOW_SECONDS,
    PrometheusOptions,
    ask_prometheus,
    prometheus_options,
    take_options,
)
from diagnose.continuity import limit_to_trusted
from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.errors import SourceError
from diagnose.hardware import Devices
from diagnose.observation import Cut, Observation, When
from diagnose.policy import DEFAULT_POLICY, Policy
from diagnose.profiles import use_profiles
from diagnose.signals import Signals
from diagnose.slo import Objective, Reported
from diagnose.sources.files import FileEvidence, read_files
from diagnose.sources.stated import parse_settings
from diagnose.supplement import Supplement

INTERRUPTED = 130
LIVE_WINDOW_SECONDS = 20.0
NO_SUPPLEMENT = Supplement()


@click.command(
    "diagnose",
    epilog="""\b
Examples:
  stallscope diagnose http://127.0.0.1:8000 --window 20s --log engine.log
  kubectl logs deploy/vllm | stallscope diagnose -
  stallscope diagnose incident.rec --baseline good.rec --slo itl_p99=200ms
  stallscope diagnose incident.rec --baseline good.rec -o incident.html
  stallscope diagnose incident.rec --since 2m --until 150s
  stallscope diagnose scrape1.prom scrape2.prom --interval 30s
  stallscope diagnose http://127.0.0.1:8000 --pid 4242
  stallscope diagnose rank0.trace.json.gz rank1.trace.json.gz
  stallscope diagnose --prometheus http://prometheus:9090 --match 'job="llm"' --at 2026-11-30T04:11 --baseline-at 24h""",
)
@click.argument("sources", nargs=-1, shell_complete=complete_files)
@click.option(
    "--window",
    "asked_window",
    type=Duration(),
    help="How long to watch a live target [default: 20s], or how far back a Prometheus is asked [default: 10m].",
)
@click.option(
    "--interval",
    type=Duration(),
    help="Time between scrapes of a live target [default: 1s]; for exposition files without a time, the time between them.",
)
@click.option(
    "--since",
    type=Moment(),
    help="Of a recording or a log: begin so long after its start (2m), or at a time (2026-11-30T04:11).",
)
@click.option("--until", type=Moment(), help="Of a recording or a log: end so long after its start, or at a time.")
@click.option(
    "--pid", type=Pid(), help="Of the server on this machine: look at its threads too (py-spy: stallscope[host])."
)
@prometheus_options
@click.option(
    "--baseline", type=click.Path(), multiple=True, help="A recording or other files of a good time. Repeatable."
)
@click.option(
    "--log",
    "logs",
    type=click.Path(),
    multiple=True,
    help="An engine's log beside a live target; as a source, too. Repeatable.",
)
@click.option(
    "--setting", "stated", multiple=True, help="What the target does not say itself, as max_sequences=256. Repeatable."
)
@click.option("--slo", "objectives", type=Slo(), default=(), help="Absolute objectives: itl_p99=200ms,ttft_p95=2s.")
@click.option(
    "--reported",
    type=ReportedLatency(),
    default=(),
    help="What clients saw in this window: itl_p99=400ms. Compared with the engine's own clock.",
)
@click.option(
    "--device",
    type=DeviceName(),
    help="What one replica runs on, where the target does not say: 'NVIDIA H100 80GB HBM3', '4x A100'.",
)
@click.option(
    "--model-config",
    type=click.Path(path_type=Path),
    help="The model's config.json, for bytes and FLOPs per step where the target does not state its geometry.",
)
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(path_type=Path),
    help="TOML file whose [thresholds] override the method's; `stallscope explain --thresholds` lists them.",
)
@click.option(
    "--format", "form", type=click.Choice(FORMATS), help="Form of the report [default: by FILE's name, or text]."
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json (schema 1).")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the report to FILE, not to stdout."
)
@click.option("--quiet", "-q", is_flag=True, help="Of a text report only the answer, in one line; no progress.")
@click.option("--verbose", "-v", is_flag=True, help="In a text report all evidence, with sources and sample counts.")
def diagnose_command(
    sources: tuple[str, ...],
    asked_window: float | None,
    interval: float | None,
    since: When | None,
    until: When | None,
    pid: int | None,
    baseline: tuple[str, ...],
    logs: tuple[str, ...],
    stated: tuple[str, ...],
    objectives: tuple[Objective, ...],
    reported: tuple[Reported, ...],
    device: Devices | None,
    model_config: Path | None,
    policy_file: Path | None,
    form: str | None,
    as_json: bool,
    output: Path | None,
    quiet: bool,
    verbose: bool,
    **prometheus: Any,
) -> NoReturn:
    """Say why the tokens of SOURCES are late, with evidence, and what to do next.

    SOURCES are any mix of what you have of one target: its URL (http://host:port), those of its replicas and of an exporter
    beside it, its log, a recording made by `stallscope record`, step records, a torch profiler's traces (one per rank), two or
    more scrapes of /metrics in time order. Files are recognised by what they hold, gzip or not; `-` is standard input.

    Exit codes: 0 nothing wrong, 1 a cause is supported, 2 usage or target unreadable, 3 insufficient evidence,
    4 hard failure; 130 interrupted while watching, after a report of what was seen until then.
    """
    form = choose_format(form, as_json, output)
    check_writable(output)
    policy, supplement, fleet = _policy(policy_file), _supplement(device, model_config), take_options(prometheus)
    asked = _Asked(sources, logs, stated, baseline, asked_window, interval, _cut(since, until), pid, fleet)
    seen = _look(asked, quiet=quiet)
    diagnosis = judge(
        seen.observation,
        seen.good,
        objectives,
        reported=reported,
        is_live=seen.is_live,
        target=seen.observation.target,
        arguments=seen.arguments,
        supplement=supplement,
        policy=policy,
    )
    deliver(diagnosis, form, output, quiet=quiet, verbose=verbose)
    sys.exit(INTERRUPTED if seen.interrupted else int(diagnosis.exit_code))


@dataclass(frozen=True, slots=True)
class _Asked:
    """Where to look."""

    sources: tuple[str, ...]
    logs: tuple[str, ...]
    stated: tuple[str, ...]
    baseline: tuple[str, ...]
    window: float | None
    interval: float | None
    within: Cut | None
    pid: int | None
    fleet: PrometheusOptions

    @property
    def live(self) -> list[str]:
        return [source for source in self.sources if is_url(source)]

    @property
    def files(self) -> list[str]:
        return [*(source for source in self.sources if not is_url(source)), *self.logs]

    def check(self) -> None:
        """Raises UsageError or SourceError for sources that do not go together."""
        behind_prometheus = self.fleet.url is not None
        if behind_prometheus and (self.live or self.pid is not None):
            raise click.UsageError("--prometheus and a live target are two windows: diagnose one, then the other")
        if self.live and self.within is not None and not self.files:
            raise click.UsageError(
                "--since and --until choose a part of a recording or a log; of a live target, --window is watched"
            )
        if not self.files and not self.live and self.pid is None and not behind_prometheus:
            raise click.UsageError(
                "name what to diagnose: http://HOST:PORT, files, --prometheus URL --match SELECTOR, or --pid PID"
            )
        if self.pid is not None and self.files and not self.live:
            raise SourceError("--pid looks at a running server: give its URL, or no source at all")
        if behind_prometheus and self.fleet.baseline_at is not None and self.baseline:
            raise click.UsageError("--baseline and --baseline-at: one of them")


class _Seen(NamedTuple):
    observation: Observation
    good: Observation | None
    is_live: bool
    interrupted: bool = False
    arguments: str | None = None
    """How a command reaches a target that is no URL and no file."""


def _look(asked: _Asked, *, quiet: bool) -> _Seen:
    settings = parse_settings(asked.stated)
    asked.check()
    seen = _look_at_sources(asked, quiet=quiet)
    if settings is not None:
        seen.observation.add_source(settings)
    return seen


def _look_at_sources(asked: _Asked, *, quiet: bool) -> _Seen:
    live, files, fleet = asked.live, asked.files, asked.fleet
    # Read first: a wrong file should not cost a watch.
    good = _read(asked.baseline, asked.interval, None, quiet=quiet).observation() if asked.baseline else None
    beside = _read_beside(files, asked.within, quiet=quiet) if live or fleet.url is not None else None
    if fleet.url is not None:
        announce(f"asking {fleet.url}", quiet=quiet)
        observation, of_good_time, arguments = ask_prometheus(fleet, asked.window or DEFAULT_WINDOW_SECONDS)
        if beside is not None:
            beside.add_to(observation)
        return _Seen(observation, of_good_time or good, is_live=False, arguments=arguments)
    window = asked.window or LIVE_WINDOW_SECONDS
    if live:
        from diagnose.commands.watching import watch_targets

        observation, interrupted = watch_targets(live, window, asked.interval or 1.0, asked.pid, quiet=quiet)
        if beside is not None:
            beside.add_to(observation)
        urls = " ".join([peer.target for peer in observation.replicas]) or None
        return _Seen(observation, good, is_live=True, interrupted=interrupted, arguments=urls)
    if asked.pid is not None:
        from diagnose.commands.watching import watch_process

        return _Seen(watch_process(asked.pid, window, quiet=quiet), good, is_live=not asked.sources)
    observation = _read(files, asked.interval, asked.within, quiet=quiet).observation()
    return _Seen(observation, good, is_live=not asked.sources)


def _policy(path: Path | None) -> Policy:
    if path is None:
        return DEFAULT_POLICY
    from diagnose.thresholds import read_policy

    return read_policy(path)


def _cut(since: When | None, until: When | None) -> Cut | None:
    if since is None and until is None:
        return None
    if since is not None and until is not None and since.is_unix is until.is_unix and since.seconds >= until.seconds:
        raise click.UsageError("--since must be before --until")
    return Cut(since, until)


def _supplement(device: Devices | None, model_config: Path | None) -> Supplement:
    if model_config is None:
        return Supplement(device)
    from diagnose.model_config import read_model_config

    return Supplement(device, read_model_config(model_config))


def _read(names: Sequence[str], interval: float | None, within: Cut | None, *, quiet: bool) -> FileEvidence:
    if url := next(filter(is_url, names), None):
        raise SourceError(
            f"a baseline is made of files: record one with `stallscope record {url} --for 60s -o good.rec`, then give good.rec"
        )
    return read_files(names, interval, within, lambda name: reading_progress(f"reading {name}", quiet=quiet))


def _read_beside(names: Sequence[str], within: Cut | None, *, quiet: bool) -> FileEvidence | None:
    """Files beside a live target: a log, a server's state, a trace. Pages of another time would be another window."""
    if not names:
        return None
    evidence = _read(names, None, within, quiet=quiet)
    if evidence.entries:
        raise SourceError(
            f"{evidence.name}: metrics or step records of another time beside a live target; "
            "give files of a good time with --baseline, or diagnose them alone"
        )
    return evidence


def judge(
    incident: Observation,
    baseline: Observation | None,
    objectives: Sequence[Objective],
    *,
    reported: Sequence[Reported] = (),
    is_live: bool,
    target: str,
    arguments: str | None = None,
    supplement: Supplement = NO_SUPPLEMENT,
    policy: Policy = DEFAULT_POLICY,
) -> Diagnosis:
    """From observations to a diagnosis, through the dialect that the pages speak. `arguments`: see `Case`."""
    now, warnings = _signals(incident, supplement, policy)
    before, of_baseline = (None, []) if baseline is None else _signals(baseline, supplement, policy)
    return diagnose(
        target,
        now,
        before,
        is_live=is_live,
        arguments=arguments,
        events=incident.events,
        objectives=objectives,
        reported=reported,
        warnings=[*warnings, *(f"baseline: {text}" for text in of_baseline)],
        policy=policy,
    )


def _signals(observation: Observation, supplement: Supplement, policy: Policy) -> tuple[Signals, list[str]]:
    """And what limits them."""
    signals, contradictions = assemble(observation, policy)
    contradictions = [*contradictions, *supplement.add_to(signals)]
    limits = [*limit_to_trusted(observation, signals, policy), *use_profiles(observation, signals, policy)]
    return signals, [*observation.warnings, *contradictions, *limits]
