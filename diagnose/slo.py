"""Absolute objectives: `itl_p99=200ms,ttft_p95=2s`. A breach is a fact, not a hypothesis."""

import re
from dataclasses import dataclass

from diagnose.errors import SourceError
from diagnose.units import parse_duration

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


def parse_slo(text: str) -> tuple[Objective, ...]:
    """Raises SourceError that names the term and what is accepted."""
    objectives: list[Objective] = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        name, _, limit = term.partition("=")
        match = _TERM.match(name.strip())
        if match is None or not 0 < float(match[2]) < 100:
            raise SourceError(
                f"--slo {term!r}: write METRIC_pNN=LIMIT with METRIC one of {', '.join(SLO_METRICS)}: itl_p99=200ms"
            )
        try:
            seconds = parse_duration(limit)
        except ValueError as error:
            raise SourceError(f"--slo {term!r}: {error}") from None
        objectives.append(Objective(term, SLO_METRICS[match[1]], float(match[2]) / 100, seconds))
    if not objectives:
        raise SourceError("--slo is empty: write for example itl_p99=200ms,ttft_p95=2s")
    return tuple(objectives)
