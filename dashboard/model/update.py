"""What crosses from a feed's thread to the interface's: levels, and what a scrape changed. Loads nothing that reads pages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dashboard.model.history import Point
from probes.records import StepRecord


class Cumulative(NamedTuple):
    """A histogram as it stands: cumulative counts by bound, the last bound infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class Levels:
    """One page."""

    unix: float
    counters: Mapping[str, float]
    gauges: Mapping[str, float]
    histograms: Mapping[str, Cumulative]
    waiting_reasons: Mapping[str, float]
    """Waiting requests by reason, where the engine says so."""
    lock_sites: Mapping[str, tuple[float, float]]
    """Lock takings and seconds waited by site, since the start."""
    failures: Mapping[str, float]
    info: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Update:
    """What one scrape changed. Immutable: it crosses from a feed's thread to the interface's."""

    point: Point
    levels: Levels | None = None
    steps: tuple[StepRecord, ...] = ()
    steps_offset_ns: int | None = None
    """Wall time of a step's stamp = stamp + this."""
    restarted: bool = False
    problem: str = ""
    unreachable: bool = False
    """Whether the problem is that nothing answered at all."""
    missing: tuple[str, ...] = ()
    """Signals that the target does not give, in words."""
