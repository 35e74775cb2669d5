"""An engine's log, read as a stream: what its periodic and step lines say, the settings it states, its events in order."""

import re
import time
from collections import Counter as Tally
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeVar

from diagnose.dialects.log import EventLine, FactLine, LogTable, PeriodicLine, StepLine
from diagnose.dialects.logs import ENGINE_LOGS, LOG_TABLES
from diagnose.observation import Cut, Event
from diagnose.sources.log_lines import Line, LineClock, starts_record, unwrapped
from diagnose.sources.steps import CountedStep
from diagnose.units import printable

_Marked = TypeVar("_Marked", PeriodicLine, StepLine, FactLine, EventLine)
_MAX_KEPT = 200_000
"""Periodic and step lines each; of a longer log the latest are kept, and the report says how many were not."""
_MAX_EVENTS = 500
UNTIMED = -1.0
"""Time of an event before the first stamp of its log."""
_MAX_CONTINUATIONS = 64
_MAX_CUTS = 8
"""Parts of one line without a figure in a row: a narrow terminal leaves some."""
_EVENT_TEXT_CHARS = 280
FACTS_AS_GAUGES = frozenset({"max_batched_tokens", "max_sequences", "pool_tokens", "pool_blocks", "block_size"})


class LoadSample(NamedTuple):
    unix: float | None
    instance: str
    """Which of several engines wrote it: pod and rank, as far as the log names them."""
    line: PeriodicLine
    values: tuple[float | None, ...]
    """In the order of the line's figures."""


class LoggedStep(NamedTuple):
    unix: float | None
    line: StepLine
    counted: CountedStep


@dataclass(slots=True)
class EngineLog:
    name: str
    engine: LogTable | None = None
    """None until a line only one engine writes was seen."""
    num_lines: int = 0
    num_read: int = 0
    """Lines that said something."""
    samples: deque[LoadSample] = field(default_factory=lambda: deque(maxlen=_MAX_KEPT))
    steps: deque[LoggedStep] = field(default_factory=lambda: deque(maxlen=_MAX_KEPT))
    num_samples: int = 0
    num_steps: int = 0
    facts: dict[str, str] = field(default_factory=dict)
    """The latest statement of each."""
    first_events: list[Event] = field(default_factory=list)
    last_events: deque[Event] = field(default_factory=lambda: deque(maxlen=_MAX_EVENTS))
    """What came first is evidence, and so is what came last; how many there were of a kind is in `tally`."""
    tally: Tally[str] = field(default_factory=Tally)
    first_unix: float | None = None
    last_unix: float | None = None

    @property
    def events(self) -> list[Event]:
        """In time order."""
        return [*self.first_events, *self.last_events]


def looks_like_log(head: str) -> bool:
    """Whether the start of a text holds a line that a table knows, or mostly lines that begin as log lines do."""
    lines = list(islice(unwrapped(iter(head.split("\n"))), 400))
    if any(_MARKED.search(line.text) for line in lines):
        return True
    texts = [line.text for line in lines if line.text]
    return len(texts) >= 3 and sum(map(starts_record, texts)) * 2 > len(texts)


def read_log(name: str, lines: Iterable[str], newest_unix: float | None = None, within: Cut | None = None) -> EngineLog:
    """`newest_unix`: when the log was last written, for stamps without a year. Lines outside of `within` say only settings."""
    log = EngineLog(name)
    clock = LineClock(newest_unix if newest_unix is not None else time.time())
    now: float | None = None
    first: float | None = None
    for record in _records(unwrapped(iter(lines)), log):
        if not _MARKED.search(record.text):
            # Stamps are parsed only where they are needed: most lines of a log say nothing here.
            continue
        now = record.unix if record.unix is not None else clock.unix(record.text) or now
        first = now if first is None else first
        inside = within is None or now is None or _holds(within, first if first is not None else now, now)
        if _take(log, record, now, inside=inside):
            log.num_read += 1
            log.first_unix = now if log.first_unix is None else log.first_unix
            log.last_unix = now if now is not None else log.last_unix
    return log


def _holds(cut: Cut, start_unix: float, unix: float) -> bool:
    span = cut.span(start_unix)
    return span.start <= unix <= span.end


def _records(lines: Iterator[Line], log: EngineLog) -> Iterator[Line]:
    """Each line, and where a terminal has cut one, the whole of it."""
    head = Line(None, "")
    rest: list[str] = []
    for line in lines:
        log.num_lines += 1
        same = line.origin == head.origin
        if same and not starts_record(line.text) and head.text and len(rest) < _MAX_CONTINUATIONS:
            rest.append(line.text)
            continue
        yield from _whole(head, rest) if rest else (head,)
        head, rest = line, []
    yield from _whole(head, rest)


def _whole(head: Line, rest: list[str]) -> Iterator[Line]:
    """A cut line once, glued; the lines behind it by themselves, as those of a traceback are."""
    glued = text = head.text
    says, used = _figures(text), 0
    for index, part in enumerate(rest):
        # A terminal cuts in the middle of a word, or copying took the space away: what says more was there.
        glued = max((glued + part, f"{glued} {part}"), key=_figures)
        own = _figures(part)
        if (more := _figures(glued)) > says + own:
            text, says, used = glued, more, index + 1
        elif own or index - used >= _MAX_CUTS:
            break
    if text:
        yield head._replace(text=text)
    yield from (head._replace(text=part) for part in rest[used:] if part)


def _figures(text: str) -> int:
    """How many figures and settings the tables find in a text."""
    patterns = [
        pattern
        for _, table in _tables_for(text)
        for pattern in (
            *(figure.pattern for line in table.periodic for figure in line.figures),
            *(line.pattern for line in table.steps),
            *(line.pattern for line in table.facts),
        )
    ]
    return sum(pattern.search(text) is not None for pattern in patterns)


def _all_marks() -> Iterator[str]:
    for table in LOG_TABLES:
        yield from (line.marks for line in table.periodic)
        yield from (line.marks for line in table.steps)
        yield from (line.marks for line in table.facts)
        yield from (line.marks for line in table.events)


_MARKED = re.compile("|".join(map(re.escape, sorted(set(_all_marks()), key=len, reverse=True))))
"""One search per line tells whether any table wants it; of marks that begin alike the longest is found."""


def _tables_for(text: str) -> tuple[tuple[LogTable, LogTable], ...]:
    """The tables that want a text, each with what of it does."""
    return _parts_with(frozenset(_MARKED.findall(text)))


@lru_cache(maxsize=512)
def _parts_with(found: frozenset[str]) -> tuple[tuple[LogTable, LogTable], ...]:
    """Few combinations of marks occur in a log. A mark within another one that was found was found, too."""

    def wanted(lines: tuple[_Marked, ...]) -> tuple[_Marked, ...]:
        return tuple(line for line in lines if any(line.marks in mark for mark in found))

    parts = [
        (
            table,
            LogTable(
                table.engine, wanted(table.periodic), wanted(table.steps), wanted(table.facts), wanted(table.events)
            ),
        )
        for table in LOG_TABLES
    ]
    return tuple((table, part) for table, part in parts if part.periodic or part.steps or part.facts or part.events)


def _take(log: EngineLog, record: Line, now: float | None, *, inside: bool) -> bool:
    """Whether the line said anything."""
    found, text = False, record.text
    for table, part in _tables_for(text):
        said = _take_facts(log, part, text)
        if inside:
            said |= _take_load(log, part, record, now) | _take_step(log, part, text, now)
            said |= _take_event(log, part, text, now)
        if said and table in ENGINE_LOGS and log.engine is None:
            log.engine = table
        found |= said
    return found


def _take_load(log: EngineLog, table: LogTable, record: Line, now: float | None) -> bool:
    for line in table.periodic:
        values = tuple(figure.read(record.text) for figure in line.figures)
        if any(value is not None for value in values):
            rank = line.instance.search(record.text) if line.instance is not None else None
            instance = f"{record.origin} engine {rank[1]}".lstrip() if rank is not None else record.origin
            log.samples.append(LoadSample(now, instance, line, values))
            log.num_samples += 1
            return True
    return False


def _take_step(log: EngineLog, table: LogTable, text: str, now: float | None) -> bool:
    for line in table.steps:
        found = line.pattern.search(text)
        if found is not None:
            log.steps.append(LoggedStep(now, line, _counted(found)))
            log.num_steps += 1
            return True
    return False


def _counted(found: re.Match[str]) -> CountedStep:
    groups = found.groupdict()
    tokens = groups.get("decode_tokens")
    prefill, decode = int(groups.get("prefill_requests") or 0), int(groups.get("decode_requests") or 0)
    if groups.get("scheduled"):
        decode = min(decode, max(0, int(groups["scheduled"]) - prefill))
    return CountedStep(
        seconds=float(groups["ms"]) / 1e3 if groups.get("ms") else float(groups.get("s") or 0.0),
        prefill_requests=prefill,
        prefill_tokens=int(groups.get("prefill_tokens") or 0),
        decode_requests=decode,
        decode_tokens=int(tokens) if tokens else None,
    )


def _take_facts(log: EngineLog, table: LogTable, text: str) -> bool:
    said = False
    for fact in table.facts:
        found = fact.pattern.search(text)
        if found is not None:
            log.facts |= {name: value for name, value in found.groupdict().items() if value is not None}
            said = True
    return said


def _take_event(log: EngineLog, table: LogTable, text: str, now: float | None) -> bool:
    event = next((event for event in table.events if _matches(event, text)), None)
    if event is None:
        return False
    total = event.total.search(text) if event.total is not None else None
    count = event.count.search(text) if event.count is not None else None
    more = int(count[1]) if count is not None else 1
    log.tally[event.kind] = max(log.tally[event.kind] + more, int(total[1]) if total is not None else 0)
    kept = log.first_events if len(log.first_events) < _MAX_EVENTS else log.last_events
    kept.append(Event(now if now is not None else UNTIMED, event.kind, _excerpt(text, event.marks)))
    return True


def _matches(event: EventLine, text: str) -> bool:
    return event.pattern is None or event.pattern.search(text) is not None


def _excerpt(text: str, marks: str) -> str:
    """The line from a little before its marks on."""
    at = max(0, text.index(marks) - 60)
    return printable(text[at : at + _EVENT_TEXT_CHARS].strip())
