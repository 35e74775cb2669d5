"""Watches a live server: one scrape per interval, never overlapping, and its step records where it serves them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import NamedTuple

from diagnose.dialects.base import Dialect
from diagnose.dialects.registry import recognise, spoken
from diagnose.dialects.view import PageView
from diagnose.errors import ErrorAnswer, NotMetrics, TargetError
from diagnose.exposition import Exposition, ExpositionError, ExpositionParser
from diagnose.observation import GONE_AFTER_FAILURES
from diagnose.sources import hints
from diagnose.sources.clock import Clock
from diagnose.sources.http import Endpoint
from probes.recording import Entry
from probes.records import StepRecord
from probes.wire import StepsHeader, decode_steps

_AFTER_ALL_STEPS = 2**62


def first_page(endpoint: Endpoint) -> tuple[str, tuple[Dialect, ...]]:
    """The target's metrics page and the dialects it speaks, at least one.

    Raises TargetError when there is no answer, and NotMetrics when it is not one that can be watched.
    """
    body, page = _read_page(endpoint)
    try:
        return body, recognise(endpoint.url, page)
    except TargetError as error:
        raise NotMetrics(f"{error}{hints.after_other_metrics(endpoint.url, page.samples)}") from None


def any_page(endpoint: Endpoint) -> tuple[str, tuple[Dialect, ...]]:
    """As `first_page`, but for a page of an engine that this version does not know too: it has no dialect yet."""
    body, page = _read_page(endpoint)
    return body, spoken(PageView(page))


def _read_page(endpoint: Endpoint) -> tuple[str, Exposition]:
    try:
        body = endpoint.get("/metrics")
    except TargetError as error:
        raise type(error)(f"{error}{hints.after_refusal(endpoint.url, str(error))}") from None
    if body.lstrip()[:1] in ("[", "{"):
        raise NotMetrics(
            f"{endpoint.url}/metrics: answers JSON; a TensorRT-LLM server has its metrics at {endpoint.url}/prometheus/metrics, "
            "and this read has taken its iteration records"
        )
    try:
        return body, ExpositionParser().parse(body)
    except ExpositionError as error:
        raise NotMetrics(f"{endpoint.url}/metrics: not a metrics page: {error}{hints.after_web_page(body)}") from None


FirstPage = Callable[[Endpoint], tuple[str, tuple[Dialect, ...]]]


class Steps(NamedTuple):
    """One answer of the step records' endpoint."""

    body: str
    header: StepsHeader
    records: list[StepRecord]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one scrape brought home, raw and parsed."""

    entries: tuple[Entry, ...]
    page: Exposition | None = None
    """None when the page could not be read; `problem` says why."""
    steps: Steps | None = None
    problem: Entry | None = None


@dataclass(slots=True)
class Scraper:
    """Reads one target scrape by scrape and follows its step records across restarts. Not thread-safe."""

    endpoint: Endpoint
    clock: Clock
    first: FirstPage = first_page
    """Reads the first page and says what may be watched."""
    dialects: tuple[Dialect, ...] = ()
    """Known from the first page on; empty for a page that `first` let pass without one."""
    parser: ExpositionParser = field(default_factory=ExpositionParser)
    _next_step: int | None = None
    """Where the next read of step records begins; None when the target serves none."""
    _passed_over: bool = False
    """Step records were left unread: what comes next begins anew, at the newest."""
    _engine_id: str = ""

    def start(self) -> Reading:
        """The first page, and where step records begin. Raises TargetError when the target cannot be watched."""
        body, self.dialects = self.first(self.endpoint)
        entries = [Entry(self.clock.unix(), "exposition", body)]
        entries += self._states([path for dialect in self.dialects for path in dialect.state_paths])
        if (lack := self._first_steps()) is not None:
            entries.append(lack)
        return Reading(tuple(entries), self.parser.parse(body))

    def read(self, *, with_steps: bool = True) -> Reading:
        """One page, and the step records since the last read. `start` comes first.

        Records made while they were not wanted are left out: the first read with them again only finds where they begin.
        """
        try:
            body = self.endpoint.get("/metrics")
        except ErrorAnswer as error:
            return self._failed(str(error), "error_answer")
        except TargetError as error:
            return self._failed(str(error), "unreachable")
        try:
            page = self.parser.parse(body)
        except ExpositionError as error:
            return self._failed(f"{self.endpoint.url}/metrics: not a metrics page any more: {error}", "bad_answer")
        named = [dialect for dialect in self.dialects if dialect.prefixes]
        view = PageView(page)
        if named and not any(dialect.speaks(view) for dialect in named):
            return self._failed(f"{self.endpoint.url}/metrics: holds no {named[0].name} metrics any more", "bad_answer")
        entries = [Entry(self.clock.unix(), "exposition", body)]
        entries += self._states([path for dialect in self.dialects for path in dialect.load_paths])
        steps = self._more_steps() if with_steps else None
        self._passed_over = not with_steps
        if isinstance(steps, Entry):
            return Reading((*entries, steps), page)
        if steps is None:
            return Reading(tuple(entries), page)
        return Reading((*entries, Entry(self.clock.unix(), "steps", steps.body)), page, steps)

    def _states(self, paths: Sequence[str]) -> Iterator[Entry]:
        """What a server says of itself in JSON is an extra: many servers do not serve it, and that is no event."""
        for path in paths:
            try:
                yield Entry(self.clock.unix(), "state", self.endpoint.get(path), path)
            except TargetError:
                continue

    def _failed(self, text: str, kind: str) -> Reading:
        problem = Entry(self.clock.unix(), "event", text, kind)
        return Reading((problem,), problem=problem)

    @property
    def _steps_path(self) -> str | None:
        return next((dialect.debug_steps_path for dialect in self.dialects if dialect.debug_steps_path), None)

    def _first_steps(self) -> Entry | None:
        """Finds the first step of the window; an event when that fails."""
        if (path := self._steps_path) is None:
            return None
        try:
            header = self._read_steps(path, _AFTER_ALL_STEPS).header
        except TargetError as error:
            return Entry(self.clock.unix(), "event", str(error), "no_step_records")
        self._next_step, self._engine_id = header.next_id, header.engine_id
        return None

    def _more_steps(self) -> Steps | Entry | None:
        """A failure here is a lack, not an outage: the page has just been read. The next read catches up."""
        path = self._steps_path
        if self._next_step is None or path is None:
            return None
        if self._passed_over:
            return self._first_steps()
        try:
            steps = self._read_steps(path, self._next_step)
            if steps.header.engine_id != self._engine_id:
                # A restarted engine counts from zero again, and may have passed the old count by now.
                steps = self._read_steps(path, 0)
        except TargetError as error:
            return Entry(self.clock.unix(), "event", str(error), "no_step_records")
        self._next_step, self._engine_id = steps.header.next_id, steps.header.engine_id
        return steps

    def _read_steps(self, path: str, since: int) -> Steps:
        body = self.endpoint.get(f"{path}?since={since}")
        try:
            return Steps(body, *decode_steps(body))
        except (ValueError, TypeError, RecursionError) as error:  # WireError, and what JSON can hold besides
            raise TargetError(f"{self.endpoint.url}{path}: not step records: {error}") from None


@dataclass(slots=True)
class Watch:
    """One window on one target. `on_entry` sees each entry as it comes (a recording is written that way)."""

    endpoint: Endpoint
    clock: Clock
    on_entry: Callable[[Entry], None] = lambda _: None
    on_progress: Callable[[float], None] = lambda _: None
    """Called with the seconds watched so far."""
    first: FirstPage = first_page
    """Reads the first page and says what may be watched."""
    keeps: bool = True
    """False where `on_entry` is all that is wanted: hours of pages need not be held."""
    _entries: list[Entry] = field(default_factory=list)

    @property
    def entries(self) -> list[Entry]:
        """What was seen until now: all that is left of a watch that was interrupted."""
        return self._entries

    @property
    def num_pages(self) -> int:
        return sum(entry.kind == "exposition" for entry in self._entries)

    def run(self, seconds: float, interval: float) -> list[Entry]:
        """Entries in time order. Raises TargetError when the target cannot be read at the start.

        A failure later on is evidence and becomes an event; the watch ends early when the target is gone, and goes on past
        the window's end while it is open whether it is.
        """
        scraper = Scraper(self.endpoint, self.clock, self.first)
        self._keep(scraper.start())
        start = self.clock.monotonic()
        due, failures = start + interval, 0
        problem: Entry | None = None
        while failures < GONE_AFTER_FAILURES:
            now = self.clock.monotonic()
            if now - start >= seconds and not failures:
                return self._entries
            # Drift-free, and a scrape that took longer than an interval is not made up for by a burst.
            end = due if failures else start + seconds
            self.clock.sleep(max(0.0, min(due, end) - now))
            due += interval * max(1, floor((self.clock.monotonic() - due) / interval) + 1)
            self.on_progress(min(seconds, self.clock.monotonic() - start))
            reading = scraper.read()
            self._keep(reading)
            problem = reading.problem
            # A target that answers, with an error or with another page, is in trouble and not gone.
            failures = failures + 1 if problem is not None and problem.event == "unreachable" else 0
            if now - start >= seconds and not failures:
                return self._entries
        last_words = (
            f"the target answered at the start of the window and is gone now: {problem.body if problem else ''}"
        )
        self._keep(Reading((Entry(self.clock.unix(), "event", last_words, "gone"),)))
        return self._entries

    def _keep(self, reading: Reading) -> None:
        for entry in reading.entries:
            if self.keeps:
                self._entries.append(entry)
            self.on_entry(entry)
