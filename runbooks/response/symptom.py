"""What an alert complains about, read from a diagnosis, so that it can be compared before and after an act."""

from dataclasses import dataclass
from math import inf

import msgspec

from diagnose.diagnosis import Diagnosis
from diagnose.errors import SourceError
from diagnose.slo import Objective, parse_slo
from diagnose.units import percent, seconds
from runbooks.errors import ConfigError

RATES = ("preemptions", "ghost_hits", "failures")


class Reading(msgspec.Struct, frozen=True):
    """Seconds of a latency, or events per second. A value known to a bucket only lies in (low, high]."""

    name: str
    low: float
    high: float | None
    """None: beyond the last bucket."""
    samples: int

    @property
    def upper(self) -> float:
        return inf if self.high is None else self.high

    def __str__(self) -> str:
        if self.name in RATES:
            return f"{self.name} {self.low:.3g}/s"
        if self.low == self.high:
            return f"{self.name} {seconds(self.low)}"
        return f"{self.name} in ({seconds(self.low)}, {'inf' if self.high is None else seconds(self.high)}]"


@dataclass(frozen=True, slots=True)
class Symptom:
    name: str
    objective: Objective | None
    """Of a latency: its metric and quantile; the limit means nothing here."""

    def read(self, diagnosis: Diagnosis) -> Reading | None:
        """None when the window says nothing of it."""
        window = diagnosis.case.incident
        if self.objective is None:
            rate = window.signals.rate(self.name)
            return None if rate is None else Reading(self.name, rate, rate, window.signals.num_scrapes)
        found = window.latency(self.objective.metric, self.objective.quantile)
        if found is None:
            return None
        bounds, samples, _ = found
        return Reading(self.name, bounds.low, None if bounds.high == inf else bounds.high, samples)


def parse_symptom(text: str) -> Symptom:
    """Raises ConfigError."""
    if text in RATES:
        return Symptom(text, None)
    try:
        objectives = parse_slo(f"{text}=1s")
    except SourceError:
        objectives = ()
    if len(objectives) != 1:
        raise ConfigError(
            f"symptom {text!r}: write itl_p99, ttft_p95, e2e_p99, queue_p95, or one of {', '.join(RATES)}"
        )
    return Symptom(text, objectives[0])


def has_fallen(before: Reading, after: Reading, share: float) -> tuple[bool, str]:
    """Whether it fell by at least `share` beyond what buckets leave open, and the sentence that says so."""
    limit = before.low * (1 - share)
    fell = after.upper <= limit if before.low > 0 else after.upper < before.upper
    change = "" if before.low <= 0 or after.high is None else f" ({percent(after.high / before.low - 1)})"
    return fell, f"{before} before, {after} after{change}; help is a fall by {percent(share)}"
