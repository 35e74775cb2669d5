"""Verdicts are about hypotheses, never about a metric."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    REFUTED = "refuted"
    """A necessary condition was measured and does not hold."""
    SUPPORTED = "supported"
    """The discriminating evidence holds and nothing measured speaks against it."""
    CONFIRMED = "confirmed"
    """A controlled comparison moved the symptom; nothing else yields this."""
    UNDETERMINED = "undetermined"
    """The discriminating measurement is missing, too small or contradictory."""
    NOT_APPLICABLE = "not_applicable"
    """The condition cannot occur on this target."""


class Stance(StrEnum):
    FOR = "for"
    AGAINST = "against"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured fact and which way it speaks."""

    text: str
    """A sentence with the value in it."""
    stance: Stance
    value: float | None = None
    unit: str = ""
    compared_with: str = ""
    source: str = ""
    """The metric, endpoint or log line it came from."""
    window: str = "incident"
    samples: int | None = None
    coverage: str = ""
    """What exactly the source counts, where that is not obvious."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A measurement that would decide, why, and the exact way to get it on this target."""

    measurement: str
    decides: str
    command: str


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    evidence: tuple[Evidence, ...] = ()
    missing: tuple[Missing, ...] = ()
    share_of_excess: float | None = None
    """Share of the symptom's excess that this cause accounts for in the latency account."""


@dataclass(slots=True)
class Argument:
    """Collects evidence while a rule reasons."""

    coverage: Mapping[str, str] = field(default_factory=dict)
    """Source -> what exactly it counts: added to the evidence that rests on it."""
    evidence: list[Evidence] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    def say(
        self,
        stance: Stance,
        text: str,
        *,
        value: float | None = None,
        unit: str = "",
        compared_with: str = "",
        source: str = "",
        window: str = "incident",
        samples: int | None = None,
    ) -> None:
        covers = self.coverage.get(source, "")
        self.evidence.append(Evidence(text, stance, value, unit, compared_with, source, window, samples, covers))

    def lacks(self, measurement: str, decides: str, command: str) -> None:
        self.missing.append(Missing(measurement, decides, command))

    def conclude(self, verdict: Verdict, share_of_excess: float | None = None) -> Judgement:
        """A refuted hypothesis lacks nothing: one condition fails, and no measurement of another one changes that."""
        missing = () if verdict is Verdict.REFUTED else tuple(self.missing)
        return Judgement(verdict, tuple(self.evidence), missing, share_of_excess)
