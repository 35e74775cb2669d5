"""Everything read from one target in one window, parsed: scrapes in time order, step records, events."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import NamedTuple

from diagnose.errors import SourceError
from diagnose.exposition import Exposition, ExpositionError, ExpositionParser
from diagnose.kernel_profile import KernelProfile
from probes.host_profile import HostProfile, HostProfileError, decode_host
from probes.recording import Entry
from probes.records import StepRecord
from probes.wire import StepsHeader, decode_steps


@dataclass(frozen=True, slots=True)
class Scrape:
    unix: float | None
    """None when nothing says when it was taken: then only ratios of counters are used."""
    page: Exposition


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the target while it was watched: unreachable, bad_answer, no_step_records, gone."""

    unix: float
    kind: str
    detail: str


class ClockReading(NamedTuple):
    """The scraper's wall clock and the engine's monotonic one at the time of one answer."""

    unix: float
    monotonic_ns: int


@dataclass(slots=True)
class Observation:
    target: str
    scrapes: list[Scrape] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    steps_lost: int = 0
    steps_header: StepsHeader | None = None
    """The newest one: its two clocks place step stamps on the wall clock."""
    clocks: list[ClockReading] = field(default_factory=list)
    """Of the newest engine; empty where it states no clocks."""
    events: list[Event] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    host: HostProfile | None = None
    """Of the target's threads, where it runs on this machine and was looked at."""
    profiles: list[KernelProfile] = field(default_factory=list)
    """Traces, one per process that was profiled; whether they are complete is not judged yet."""

    @property
    def length_seconds(self) -> float | None:
        """First to last scrape; None when a scrape has no time, time ran backwards, or there are fewer than two."""
        times = [scrape.unix for scrape in self.scrapes if scrape.unix is not None]
        if len(times) < 2 or len(times) != len(self.scrapes) or any(b < a for a, b in pairwise(times)):
            return None
        return times[-1] - times[0]


def observe(target: str, entries: Iterable[Entry]) -> Observation:
    """Parses entries in the order in which they came: a clock may have been set in between.

    Raises SourceError when an answer is not what its kind says.
    """
    observation = Observation(target)
    parser = ExpositionParser()
    for entry in entries:
        if entry.kind == "exposition":
            _add_page(observation, parser, entry)
        elif entry.kind == "steps":
            _add_steps(observation, entry)
        elif entry.kind == "host":
            _add_host(observation, entry)
        elif entry.kind == "event":
            observation.events.append(Event(entry.unix, entry.event or "unknown", entry.body))
        elif entry.kind == "log":
            continue  # kept for a reader of logs; the pages say without it what they say
        else:
            observation.warnings.append(
                f"entries of kind {entry.kind!r} are newer than this stallscope and were left out"
            )
    return observation


def _add_page(observation: Observation, parser: ExpositionParser, entry: Entry) -> None:
    try:
        page = parser.parse(entry.body)
    except ExpositionError as error:
        if not observation.scrapes:
            raise SourceError(f"{observation.target}: not a readable metrics page: {error}") from None
        observation.events.append(Event(entry.unix, "bad_answer", f"not a readable metrics page: {error}"))
        return
    observation.scrapes.append(Scrape(entry.unix if 0 <= entry.unix < inf else None, page))


def _add_host(observation: Observation, entry: Entry) -> None:
    try:
        observation.host = decode_host(entry.body)
    except HostProfileError as error:
        raise SourceError(f"{observation.target}: {error}") from None
    observation.warnings += [f"host probe: {limit}" for limit in observation.host.limits]


def _add_steps(observation: Observation, entry: Entry) -> None:
    try:
        header, records = decode_steps(entry.body)
    except (ValueError, TypeError, RecursionError) as error:  # WireError, and what JSON can hold besides
        raise SourceError(f"{observation.target}: step records: {error}") from None
    known = observation.steps_header
    if known is not None and known.engine_id != header.engine_id:
        # Step ids and monotonic stamps of two engines do not join: only the newest engine's records are kept.
        observation.warnings.append(
            f"the engine restarted in the window; the {len(observation.steps)} step records before the restart are left out"
        )
        observation.steps = []
        observation.steps_lost = 0
        observation.clocks = []
    if header.unix_ns > 0 and 0 <= entry.unix < inf:
        observation.clocks.append(ClockReading(entry.unix, header.monotonic_ns))
    newest = observation.steps[-1].step_id if observation.steps else -1
    observation.steps += [record for record in records if record.step_id > newest]
    observation.steps_lost += header.lost
    observation.steps_header = header
