"""Watches a live server: one scrape per interval, never overlapping, and its step records where it serves them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import floor

from diagnose.dialects.base import Dialect
from diagnose.dialects.registry import recognise, spoken
from diagnose.dialects.view import PageView
from diagnose.errors import ErrorAnswer, TargetError
from diagnose.exposition import Exposition, ExpositionError, ExpositionParser
from diagnose.sources.clock import Clock
from diagnose.sources.http import Endpoint
from probes.recording import Entry
from probes.wire import StepsHeader, decode_steps

GONE_AFTER_FAILURES = 3
"""Consecutive failed scrapes after which a target that had answered is called gone."""
_AFTER_ALL_STEPS = 2**62
_NO_METRICS = ("HTTP 404", "HTTP 501")
_HINT = (
    "; SGLang serves metrics with --enable-metrics, llama.cpp with --metrics, transformers serve has none: then give the "
    "server's log as a file"
)


def first_page(endpoint: Endpoint) -> tuple[str, tuple[Dialect, ...]]:
    """The target's metrics page and the dialects it speaks, at least one. Raises TargetError when it cannot be watched."""
    body, page = _read_page(endpoint)
    return body, recognise(endpoint.url, page)


def any_page(endpoint: Endpoint) -> tuple[str, tuple[Dialect, ...]]:
    """As `first_page`, but for a page of an engine that this version does not know too: it has no dialect yet."""
    body, page = _read_page(endpoint)
    return body, spoken(PageView(page))


def _read_page(endpoint: Endpoint) -> tuple[str, Exposition]:
    try:
        body = endpoint.get("/metrics")
    except ErrorAnswer as error:
        raise ErrorAnswer(f"{error}{_HINT if any(code in str(error) for code in _NO_METRICS) else ''}") from None
    if body.lstrip()[:1] in ("[", "{"):
        raise TargetError(
            f"{endpoint.url}/metrics: answers JSON; a TensorRT-LLM server has its metrics at {endpoint.url}/prometheus/metrics, "
            "and this read has taken its iteration records"
        )
    try:
        return body, ExpositionParser().parse(body)
    except ExpositionError as error:
        raise TargetError(f"{endpoint.url}/metrics: not a metrics page: {error}") from None


@dataclass(slots=True)
class Watch:
    """One window on one target. `on_entry` sees each entry as it comes (a recording is written that way)."""

    endpoint: Endpoint
    clock: Clock
    on_entry: Callable[[Entry], None] = lambda _: None
    on_progress: Callable[[float], None] = lambda _: None
    """Called with the seconds watched so far."""
    first: Callable[[Endpoint], tuple[str, tuple[Dialect, ...]]] = first_page
    """Reads the first page and says what may be watched."""
    keeps: bool = True
    """False where `on_entry` is all that is wanted: hours of pages need not be held."""
    _entries: list[Entry] = field(default_factory=list)
    _parser: ExpositionParser = field(default_factory=ExpositionParser)
    _next_step: int | None = None
    """Where the next read of step records begins; None when the target serves none."""
    _engine_id: str = ""
    _dialects: tuple[Dialect, ...] = ()
    _steps_path: str | None = None

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
        body, self._dialects = self.first(self.endpoint)
        self._keep(Entry(self.clock.unix(), "exposition", body))
        self._read_states([path for dialect in self._dialects for path in dialect.state_paths])
        self._first_steps()
        start = self.clock.monotonic()
        due, failures = start + interval, 0
        while failures < GONE_AFTER_FAILURES:
            now = self.clock.monotonic()
            if now - start >= seconds and not failures:
                return self._entries
            # Drift-free, and a scrape that took longer than an interval is not made up for by a burst.
            end = due if failures else start + seconds
            self.clock.sleep(max(0.0, min(due, end) - now))
            due += interval * max(1, floor((self.clock.monotonic() - due) / interval) + 1)
            self.on_progress(min(seconds, self.clock.monotonic() - start))
            problem = self._scrape()
            # A target that answers, with an error or with another page, is in trouble and not gone.
            failures = failures + 1 if problem is not None and problem.event == "unreachable" else 0
            if now - start >= seconds and not failures:
                return self._entries
        last_words = (
            f"the target answered at the start of the window and is gone now: {problem.body if problem else ''}"
        )
        self._keep(Entry(self.clock.unix(), "event", last_words, "gone"))
        return self._entries

    def _keep(self, entry: Entry) -> None:
        if self.keeps:
            self._entries.append(entry)
        self.on_entry(entry)

    def _scrape(self) -> Entry | None:
        """One page, and the step records since the last read. The event of what went wrong with the page, if anything did."""
        try:
            body = self.endpoint.get("/metrics")
        except ErrorAnswer as error:
            return self._event(str(error), "error_answer")
        except TargetError as error:
            return self._event(str(error), "unreachable")
        if (problem := self._unreadable(body)) is not None:
            return self._event(problem, "bad_answer")
        self._keep(Entry(self.clock.unix(), "exposition", body))
        self._read_states([path for dialect in self._dialects for path in dialect.load_paths])
        self._more_steps()
        return None

    def _read_states(self, paths: Sequence[str]) -> None:
        """What a server says of itself in JSON is an extra: many servers do not serve it, and that is no event."""
        for path in paths:
            try:
                self._keep(Entry(self.clock.unix(), "state", self.endpoint.get(path), path))
            except TargetError:
                continue

    def _event(self, text: str, kind: str) -> Entry:
        entry = Entry(self.clock.unix(), "event", text, kind)
        self._keep(entry)
        return entry

    def _unreadable(self, body: str) -> str | None:
        try:
            page = self._parser.parse(body)
        except ExpositionError as error:
            return f"{self.endpoint.url}/metrics: not a metrics page any more: {error}"
        named = [dialect for dialect in self._dialects if dialect.prefixes]
        view = PageView(page)
        if named and not any(dialect.speaks(view) for dialect in named):
            return f"{self.endpoint.url}/metrics: holds no {named[0].name} metrics any more"
        return None

    def _first_steps(self) -> None:
        """Finds the first step of the window."""
        self._steps_path = next(
            (dialect.debug_steps_path for dialect in self._dialects if dialect.debug_steps_path), None
        )
        if self._steps_path is None:
            return
        try:
            header = self._read_steps(self._steps_path, _AFTER_ALL_STEPS)[1]
        except TargetError as error:
            self._keep(Entry(self.clock.unix(), "event", str(error), "no_step_records"))
            return
        self._next_step, self._engine_id = header.next_id, header.engine_id

    def _more_steps(self) -> None:
        """A failure here is a lack, not an outage: the page has just been read. The next read catches up."""
        if self._next_step is None or self._steps_path is None:
            return
        try:
            body, header = self._read_steps(self._steps_path, self._next_step)
            if header.engine_id != self._engine_id:
                # A restarted engine counts from zero again, and may have passed the old count by now.
                body, header = self._read_steps(self._steps_path, 0)
        except TargetError as error:
            self._keep(Entry(self.clock.unix(), "event", str(error), "no_step_records"))
            return
        self._keep(Entry(self.clock.unix(), "steps", body))
        self._next_step, self._engine_id = header.next_id, header.engine_id

    def _read_steps(self, path: str, since: int) -> tuple[str, StepsHeader]:
        body = self.endpoint.get(f"{path}?since={since}")
        try:
            return body, decode_steps(body)[0]
        except (ValueError, TypeError, RecursionError) as error:  # WireError, and what JSON can hold besides
            raise TargetError(f"{self.endpoint.url}{path}: not step records: {error}") from None
