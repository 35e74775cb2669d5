"""What an engine's log is: tables of lines, each with the words that mark it and the figures to take from it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from diagnose.dialects.base import Usage


class Reads(StrEnum):
    """What a figure of a periodic line is."""

    LEVEL = "level"
    """The state when the line was written: a gauge."""
    RATE = "rate"
    """Per second since the line before: a counter's growth once multiplied by that time."""
    COUNT = "count"
    """So many since the line before."""
    TOTAL = "total"
    """So many since the start."""
    DURATION = "duration"
    """How long something took, as a Figure's second group is the unit of: an observation of a histogram."""


_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Figure:
    signal: str
    pattern: re.Pattern[str]
    """Its first group is the number."""
    reads: Reads = Reads.LEVEL
    factor: float = 1.0
    late: bool = False
    coverage: str = ""
    plus: re.Pattern[str] | None = None
    """Its first group is added, where the line holds it."""

    def read(self, text: str) -> float | None:
        found = self.pattern.search(text)
        if found is None:
            return None
        if self.reads is Reads.DURATION:
            return float(found[1]) * _SECONDS[found[2]]
        more = self.plus.search(text) if self.plus is not None else None
        return float(found[1]) * self.factor + (float(more[1]) * self.factor if more is not None else 0.0)


@dataclass(frozen=True, slots=True)
class PeriodicLine:
    """A line that an engine writes now and then about its load."""

    name: str
    marks: str
    """Words that every such line holds."""
    figures: tuple[Figure, ...]
    every_seconds: float | None = None
    """Usual time between two of them; None when it follows the work and not a clock."""
    instance: re.Pattern[str] | None = None
    """Its first group names the engine or rank: several of them add up."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """A line about one engine step. Groups of `pattern`: `ms` or `s`, and any of `prefill_requests`, `prefill_tokens`,
    `decode_requests`, `scheduled` (requests of both kinds: without padding), `decode_tokens`, `id`."""

    name: str
    marks: str
    pattern: re.Pattern[str]
    coverage: str = ""


@dataclass(frozen=True, slots=True)
class FactLine:
    """A line, mostly of the start, that states settings. Group names are gauges or names of info labels."""

    marks: str
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class EventLine:
    kind: str
    """engine_dead, out_of_memory, connection_dropped, collective_timeout, collective_failed, device_error, no_progress,
    preempted, leak, no_kv_space, transfer_failed, transfer_timeout, transfer_advice, full_reprocess, unservable,
    stopped."""
    marks: str
    """Words of the line; upper and lower case count."""
    pattern: re.Pattern[str] | None = None
    """Where the words alone also occur in harmless lines."""
    total: re.Pattern[str] | None = None
    """Its first group counts such events since the start."""
    count: re.Pattern[str] | None = None
    """Its first group says how many of them the line tells of."""


@dataclass(frozen=True, slots=True)
class LogTable:
    engine: str
    periodic: tuple[PeriodicLine, ...] = ()
    steps: tuple[StepLine, ...] = ()
    facts: tuple[FactLine, ...] = ()
    events: tuple[EventLine, ...] = ()
    usage: Usage | None = None
    silent: str = ""
    """Why a log may hold no line about load, and how to have them."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """As of a dialect, for a log alone."""


def figure(
    signal: str,
    pattern: str,
    reads: Reads = Reads.LEVEL,
    factor: float = 1.0,
    late: bool = False,
    coverage: str = "",
    plus: str = "",
) -> Figure:
    return Figure(signal, re.compile(pattern), reads, factor, late, coverage, re.compile(plus) if plus else None)
