"""What clients saw of a window, and whether it is worse than in the quiet one: a drill without a symptom does not count."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum


class Symptom(StrEnum):
    """The service level that a condition moves."""

    ITL = "itl"
    TTFT = "ttft"
    EITHER = "either"
    UNANSWERED = "unanswered"
    """Requests get no first token."""
    FAILED = "failed"
    """Requests end with an error."""
    CERTAIN = "certain"
    """A fact that needs no level: a dead target, held blocks, a client's own report."""
    NONE = "none"
    """Nothing is wrong."""


@dataclass(slots=True)
class Levels:
    """By the clients' clocks, in seconds."""

    gaps: list[float] = field(default_factory=list)
    ttfts: list[float] = field(default_factory=list)
    """Of requests without a first token, how long they had waited at the end."""
    unanswered: int = 0
    failed: int = 0
    """Requests that ended with an error: an HTTP status, or a stream without its end."""

    def text(self, show: Callable[[float], str]) -> str:
        """In one line, with `show` for a time."""
        if not self.ttfts and not self.gaps and not self.failed:
            return "no request"
        waiting = f", {self.unanswered} without a first token" if self.unanswered else ""
        itl = f"ITL mean {show(mean(self.gaps))}, p95 {show(quantile(self.gaps, 0.95))}"
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{itl}, TTFT p95 {show(quantile(self.ttfts, 0.95))}{waiting}{failed}"

    def worse_than(self, quiet: "Levels", symptom: Symptom) -> bool:
        """ITL: the mean by 15 % or p95 by half. TTFT: p95 by half and 30 ms."""
        itl = mean(self.gaps) >= 1.15 * mean(quiet.gaps) > 0 or (
            quantile(self.gaps, 0.95) >= 1.5 * quantile(quiet.gaps, 0.95) > 0
        )
        late, usual = quantile(self.ttfts, 0.95), quantile(quiet.ttfts, 0.95)
        ttft = late >= 1.5 * usual and late >= usual + 0.03
        return {
            Symptom.ITL: itl,
            Symptom.TTFT: ttft,
            Symptom.EITHER: itl or ttft,
            Symptom.UNANSWERED: self.unanswered > 0,
            Symptom.FAILED: self.failed > quiet.failed,
            Symptom.CERTAIN: True,
            Symptom.NONE: True,
        }[symptom]


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def quantile(values: list[float], q: float) -> float:
    """Nearest rank; 0 of nothing."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else 0.0
