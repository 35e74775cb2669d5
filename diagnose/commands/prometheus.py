"""`--prometheus` and the options that go with it."""

import os
import shlex
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click

from diagnose.commands.params import PastTime
from diagnose.errors import SourceError
from diagnose.observation import Observation
from diagnose.secret_files import read_secret

DEFAULT_WINDOW_SECONDS = 600.0
TOKEN_VARIABLE = "STALLSCOPE_PROMETHEUS_TOKEN"  # noqa: S105 - the name of a variable
BASIC_AUTH_VARIABLE = "STALLSCOPE_PROMETHEUS_BASIC_AUTH"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

_Command = TypeVar("_Command", bound=Callable[..., Any])


class PrometheusOptions(NamedTuple):
    """What the command line says of a Prometheus; `url` is None when it is not asked."""

    url: str | None
    match: str | None
    at: float | None
    """Unix seconds; None: now."""
    baseline_at: float | None
    ca_file: Path | None
    token_file: Path | None
    basic_auth_file: Path | None


_NAMES = ("prometheus", "match", "at", "baseline_at", "ca_file", "bearer_token_file", "basic_auth_file")


def prometheus_options(command: _Command) -> _Command:
    """Adds the options; `take_options` reads them from what the command is given."""
    path = click.Path(exists=False, path_type=Path)
    for option in reversed(
        [
            click.option(
                "--prometheus", metavar="URL", help="Ask a Prometheus (VictoriaMetrics, Thanos, Mimir) for --match."
            ),
            click.option("--match", metavar="SELECTOR", help="Label matchers of the replicas: 'job=\"llm\"'."),
            click.option(
                "--at",
                type=PastTime(),
                help="End of the window asked for: 2026-11-30T04:11, or 2h ago as 2h [default: now].",
            ),
            click.option("--baseline-at", type=PastTime(), help="End of a good window of the same length and --match."),
            click.option(
                "--ca-file", type=path, help="Certificates that vouch for the Prometheus [default: the system's]."
            ),
            click.option(
                "--bearer-token-file", type=path, help=f"Token for the Prometheus [default: ${TOKEN_VARIABLE}, if set]."
            ),
            click.option(
                "--basic-auth-file",
                type=path,
                help=f"USER:PASSWORD for the Prometheus [default: ${BASIC_AUTH_VARIABLE}, if set].",
            ),
        ]
    ):
        command = option(command)
    return command


def take_options(given: dict[str, Any]) -> PrometheusOptions:
    """Raises UsageError when options are given that only a Prometheus needs, and none is."""
    options = PrometheusOptions(*(given[name] for name in _NAMES))
    if options.url is None:
        wrong = [name for name, value in zip(_NAMES, options, strict=True) if value is not None]
        if wrong:
            raise click.UsageError(f"--{wrong[0].replace('_', '-')} belongs to --prometheus URL")
    elif options.match is None:
        raise click.UsageError("--prometheus needs --match, the replicas to look at: --match 'job=\"llm\"'")
    return options


class Asked(NamedTuple):
    incident: Observation
    baseline: Observation | None
    arguments: str
    """What names this source on a command line."""


def ask_prometheus(options: PrometheusOptions, window: float) -> Asked:
    """Raises TargetError, SourceError or NotEnough when a window cannot be read."""
    # Not at the top: a diagnosis of files should not pay for an HTTP client.
    from diagnose.sources.http import Access, Endpoint
    from diagnose.sources.prometheus import read_prometheus
    from diagnose.sources.prometheus_api import QUERY_TIMEOUT_SECONDS, PrometheusApi
    from diagnose.sources.promql import parse_selector

    assert options.url is not None and options.match is not None, "asked for"
    selector = parse_selector(options.match)
    address = urlsplit(options.url)
    if address.username or address.password:
        raise SourceError("--prometheus: a URL with a password is shown in lists of processes: use --basic-auth-file")
    headers = _credentials(options)
    if options.ca_file is not None and not options.ca_file.is_file():
        raise SourceError(f"--ca-file {options.ca_file}: no such file")
    access = Access(headers, options.ca_file)
    # The server gives up first, and says why.
    api = PrometheusApi(Endpoint(options.url, QUERY_TIMEOUT_SECONDS + 5.0, access))
    end = time.time() if options.at is None else options.at
    incident = read_prometheus(api, selector, end, window).observation()
    if headers and address.scheme == "http" and address.hostname not in _LOOPBACK:
        incident.warnings.append("credentials went over http, where whoever is on the way can read them: use https")
    baseline = None
    if options.baseline_at is not None:
        baseline = read_prometheus(api, selector, options.baseline_at, window).observation()
    return Asked(
        incident, baseline, f"--prometheus {shlex.quote(api.endpoint.url)} --match {shlex.quote(str(selector))}"
    )


def _credentials(options: PrometheusOptions) -> dict[str, str]:
    """Files first, the environment else."""
    if options.token_file is not None and options.basic_auth_file is not None:
        raise click.UsageError("--bearer-token-file and --basic-auth-file: one of them")
    if options.token_file is not None:
        return _bearer(read_secret(options.token_file))
    if options.basic_auth_file is not None:
        return _basic("--basic-auth-file", read_secret(options.basic_auth_file))
    if token := os.environ.get(TOKEN_VARIABLE):
        return _bearer(token.strip())
    if pair := os.environ.get(BASIC_AUTH_VARIABLE):
        return _basic(BASIC_AUTH_VARIABLE, pair.strip())
    return {}


def _bearer(token: str) -> dict[str, str]:
    if not token.isascii() or not token.isprintable():
        raise SourceError("the bearer token holds characters that no HTTP header may have")
    return {"Authorization": f"Bearer {token}"}


def _basic(where: str, pair: str) -> dict[str, str]:
    if ":" not in pair:
        raise SourceError(f"{where}: holds no USER:PASSWORD")
    return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
