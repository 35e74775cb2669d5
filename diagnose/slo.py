"""Latencies that people state, `itl_p99=200ms,ttft_p95=2s`: as objectives (a breach is a fact) and as what clients report."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnose.errors import SourceError
from diagnose.units import parse_duration

if TYPE_CHECKING:  # every command that takes an objective would load them before it says a word
    from diagnose.policy import Policy
    from diagnose.signals import Signals

SLO_METRICS = {
    "itl": "inter_token_latency",
    "ttft": "time_to_first_token",
    "e2e": "e2e_latency",
    "queue": "queue_time",
}
_TERM = re.compile(r"^(itl|ttft|e2e|queue)_p(\d{1,2}(?:\.\d+)?)$")


@dataclass(frozen=True, slots=True)
class Objective:
    text: str
    metric: str
    """Canonical histogram signal."""
    quantile: float
    limit_seconds: float


@dataclass(frozen=True, slots=True)
class Reported:
    """A latency by the clients' clock: what somebody outside of the engine says of this window."""

    text: str
    metric: str
    """Canonical histogram signal."""
    quantile: float
    seconds: float


def reported_by_clients(signals: "Signals", policy: "Policy") -> tuple[Reported, ...]:
    """Of a load generator's result beside the engine. Its inter-token latency is one per message: left out when those carry
    several tokens."""
    per_message, per_token = signals.last("client_itl_mean"), signals.last("client_tpot_mean")
    packed = per_message is not None and per_token is not None and per_message > policy.shift_ratio * per_token
    found: list[Reported] = []
    for name in ("ttft", "itl", "e2e"):
        for percent in (50, 99):
            value = signals.last(f"client_{name}_p{percent}")
            if value is not None and not (name == "itl" and packed):
                found.append(
                    Reported(f"{name}_p{percent}={value * 1e3:.4g}ms", SLO_METRICS[name], percent / 100, value)
                )
    return tuple(found)


def parse_slo(text: str) -> tuple[Objective, ...]:
    """Raises SourceError that names the term and what is accepted."""
    return tuple(Objective(*term) for term in _parse_terms("--slo", text))


def parse_reported(text: str) -> tuple[Reported, ...]:
    """Raises SourceError that names the term and what is accepted."""
    return tuple(Reported(*term) for term in _parse_terms("--reported", text))


def _parse_terms(option: str, text: str) -> list[tuple[str, str, float, float]]:
    """Text, metric, quantile and seconds of each term."""
    terms: list[tuple[str, str, float, float]] = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        name, _, limit = term.partition("=")
        match = _TERM.match(name.strip())
        if match is None or not 0 < float(match[2]) < 100:
            raise SourceError(
                f"{option} {term!r}: write METRIC_pNN=TIME with METRIC one of {', '.join(SLO_METRICS)}: itl_p99=200ms"
            )
        try:
            seconds = parse_duration(limit)
        except ValueError as error:
            raise SourceError(f"{option} {term!r}: {error}") from None
        terms.append((term, SLO_METRICS[match[1]], float(match[2]) / 100, seconds))
    if not terms:
        raise SourceError(f"{option} is empty: write for example itl_p99=200ms,ttft_p95=2s")
    return terms
