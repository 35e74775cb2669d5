"""Everything read from one target in one window, parsed: scrapes in time order, step records, events, and what else says
something of it (a log, a server's state)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import NamedTuple, Protocol

from diagnose.dialects.registry import spoken
from diagnose.dialects.view import PageView
from diagnose.errors import SourceError
from diagnose.exposition import Exposition, ExpositionError, ExpositionParser
from diagnose.kernel_profile import KernelProfile
from diagnose.signals import Signals
from diagnose.units import printable
from probes.host_profile import HostProfile, HostProfileError, decode_host
from probes.recording import Entry
from probes.records import StepRecord
from probes.wire import StepsHeader, decode_steps


@dataclass(frozen=True, slots=True)
class Scrape:
    unix: float | None
    """None when nothing says when it was taken: then only ratios of counters are used."""
    page: Exposition
    is_engine: bool = True
    """False for a page of what stands beside an engine."""

    @property
    def view(self) -> PageView:
        return PageView(self.page)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the target while it was watched.

    Of a watch: unreachable, error_answer, bad_answer, no_step_records, gone. Of a log: see `diagnose.dialects.log`.
    """

    unix: float
    kind: str
    detail: str


GONE_AFTER_FAILURES = 3
"""Scrapes in a row that nothing answered, after which a target that had answered is called gone."""
STACK_EVENT = "stack"
"""What a thread of the server does, in words."""
SPIN_EVENT = "spin"
"""A thread that turns in a loop while it waits: a core at 100 % that is no work."""


class ClockReading(NamedTuple):
    """The scraper's wall clock and the engine's monotonic one at the time of one answer."""

    unix: float
    monotonic_ns: int


class Span(NamedTuple):
    """Unix seconds, from the first to the last moment of a window."""

    start: float
    end: float


class When(NamedTuple):
    """A moment that a person names: a time of day, or so long after the start of what is read."""

    seconds: float
    is_unix: bool

    def unix(self, start_unix: float) -> float:
        return self.seconds if self.is_unix else start_unix + self.seconds


class Cut(NamedTuple):
    """The part of a recording or a log that is wanted."""

    since: When | None
    until: When | None

    def span(self, start_unix: float) -> Span:
        """`start_unix`: when what is read begins."""
        return Span(
            -inf if self.since is None else self.since.unix(start_unix),
            inf if self.until is None else self.until.unix(start_unix),
        )


class OtherSource(Protocol):
    """A source beside metrics pages and step records."""

    @property
    def origin(self) -> str:
        """What it is and where it came from, for the report."""

    def events(self, span: Span | None) -> Iterable[Event]:
        """What happened in that window or shortly before it; all that it tells of when there is none."""

    def signals(self, span: Span | None) -> Signals:
        """What it says of that window; of all its time when there is none."""


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
    others: list[OtherSource] = field(default_factory=list)
    extras: list[Entry] = field(default_factory=list)
    """Beside pages and steps: JSON answers of the target (`event` is the path that gave each), and lines of its log."""
    recognised: list[str] = field(default_factory=list)
    """What each source was taken for, in one line."""

    host: HostProfile | None = None
    """Of the target's threads, where it runs on this machine and was looked at."""
    profiles: list[KernelProfile] = field(default_factory=list)
    """Traces, one per process that was profiled; whether they are complete is not judged yet."""
    replicas: list["Observation"] = field(default_factory=list)
    """Of a service: what was seen of each of its replicas. Its own scrapes are then none."""

    @property
    def leading(self) -> list[Scrape]:
        """The scrapes that make the window: the engine's, where pages of others are beside them."""
        own = [scrape for scrape in self.scrapes if scrape.is_engine]
        return own or self.scrapes

    @property
    def length_seconds(self) -> float | None:
        """First to last scrape; None when a scrape has no time, time ran backwards, or there are fewer than two."""
        return self.replicas[0].length_seconds if self.replicas else length_of(self.leading)

    @property
    def span(self) -> Span | None:
        """None where the length is unknown."""
        if self.replicas:
            return self.replicas[0].span
        times = [scrape.unix for scrape in self.leading if scrape.unix is not None]
        return Span(times[0], times[-1]) if self.length_seconds is not None else None

    def add_source(self, source: OtherSource) -> None:
        self.others.append(source)
        self.recognised.append(source.origin)
        self.events += source.events(self.span)


def length_of(scrapes: Iterable[Scrape]) -> float | None:
    known = [scrape.unix for scrape in scrapes]
    times = [unix for unix in known if unix is not None]
    if len(times) < 2 or len(times) != len(known) or any(b < a for a, b in pairwise(times)):
        return None
    return times[-1] - times[0]


def observe(target: str, entries: Iterable[Entry], parser: ExpositionParser | None = None) -> Observation:
    """Parses entries in the order in which they came: a clock may have been set in between.

    A `parser` that has seen the target's pages before saves it from reading every label anew.

    Raises SourceError when an answer is not what its kind says.
    """
    observation = Observation(target)
    parser = parser or ExpositionParser()
    for entry in entries:
        if entry.kind == "exposition":
            _add_page(observation, parser, entry)
        elif entry.kind == "steps":
            _add_steps(observation, entry)
        elif entry.kind in ("state", "log"):
            observation.extras.append(entry)
        elif entry.kind == "host":
            _add_host(observation, entry)
        elif entry.kind == "event":
            observation.events.append(Event(entry.unix, entry.event or "unknown", entry.body))
        else:
            observation.warnings.append(
                f"entries of kind {entry.kind!r} are newer than this stallscope and were left out"
            )
    broken = [scrape.page for scrape in observation.scrapes if scrape.page.skipped]
    if broken:
        lines = sum(page.skipped for page in broken)
        observation.warnings.append(
            f"{lines} line(s) of {len(broken)} metrics page(s) could not be read and were left out, the first: "
            f"{printable(broken[0].first_problem)}"
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
    own = any(dialect.is_engine for dialect in spoken(PageView(page)))
    observation.scrapes.append(Scrape(entry.unix if 0 <= entry.unix < inf else None, page, own))


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
