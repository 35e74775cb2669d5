"""Where updates come from: one thread a target, live or from a file. They post immutable messages and touch nothing else."""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from dashboard.model.digest import Digest, Update
from dashboard.model.requests import Requests
from dashboard.model.spool import Spool
from dashboard.model.target import Refusal
from diagnose.dialects.registry import recognise
from diagnose.errors import DiagnoseError, SourceError, TargetError
from diagnose.exposition import ExpositionError, ExpositionParser
from diagnose.sources.files import FileEvidence, read_files
from probes.recording import Entry, RecordingWriter
from probes.wire import decode_steps


@dataclass(frozen=True, slots=True)
class Connecting:
    """A first try begins."""

    unix: float
    dialect: str = ""
    """Set once it is known."""
    address: str = ""
    """The target of a recording."""


@dataclass(frozen=True, slots=True)
class WriteProblem:
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A file was read to its end, or could not be read."""

    problem: str = ""


Body = Update | Refusal | Requests | Connecting | WriteProblem | Ended
Post = Callable[[int, Body], None]


@dataclass(slots=True)
class Keeper:
    """Writes a feed's raw answers to the spool and to the recording that was asked for; says once when that fails."""

    number: int
    post: Post
    spool: Spool
    recording: RecordingWriter | None = None

    def keep(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            try:
                self.spool.append(entry)
                if self.recording is not None:
                    self.recording.write(entry)
            except OSError as error:
                self.post(self.number, WriteProblem(f"not recorded any more: {error.strerror or error}"))
                self.recording = None
                return

    def close(self) -> None:
        if self.recording is not None:
            self.recording.__exit__(None, None, None)
            self.recording = None


class LiveFeed(threading.Thread):
    """Scrapes one target: one request at a time, one per interval, backing off while it fails."""

    def __init__(self, number: int, url: str, interval: float, keeper: Keeper) -> None:
        super().__init__(name=f"feed-{number}", daemon=True)
        self.number, self.url, self.interval, self.keeper = number, url, interval, keeper
        self.stopping = threading.Event()
        self.wants_requests = False
        """Whether the request list is looked at: it costs the target an answer."""

    def stop(self) -> None:
        self.stopping.set()

    def run(self) -> None:
        from dashboard.poll import Poll  # brings the HTTP client: in this thread, while the first page is painted

        Poll(self).run()


class FileFeed(threading.Thread):
    """Reads a file once, as fast as it can: time is the playhead's, so that one can seek in all of it."""

    def __init__(self, number: int, path: str, keeper: Keeper) -> None:
        super().__init__(name=f"file-{number}", daemon=True)
        self._number, self._path, self.keeper, self._post = number, path, keeper, keeper.post
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        try:
            evidence = read_evidence(self._path)
            self._post(self._number, Connecting(evidence.entries[0].unix, address=evidence.name))
            self.keeper.keep(evidence.entries)
            for update in updates(self._path, evidence.entries):
                if self._stopping.is_set():
                    return
                self._post(self._number, update)
        except DiagnoseError as error:
            self._post(self._number, Ended(str(error)))
            return
        self._post(self._number, Ended())


def read_evidence(path: str) -> FileEvidence:
    """The timed answers of a recording, or of other files that say when they were taken. Raises SourceError."""
    evidence = read_files([path], None)
    entries = evidence.entries
    if any(entry.unix < 0 for entry in entries) or not any(entry.kind == "exposition" for entry in entries):
        raise SourceError(f"{path}: cannot be replayed: it is no recording, and says nothing of when it was scraped")
    return evidence


@dataclass(slots=True)
class _Scrape:
    entry: Entry
    steps: list[Entry] = field(default_factory=list)


def _scrapes(entries: Iterable[Entry]) -> Iterator[_Scrape]:
    """Pages and failures, each with the step records that followed it."""
    current: _Scrape | None = None
    for entry in entries:
        failed = entry.kind == "event" and entry.event != "no_step_records"
        if entry.kind == "exposition" or failed:
            if current is not None:
                yield current
            current = _Scrape(entry)
        elif entry.kind == "steps" and current is not None:
            current.steps.append(entry)
    if current is not None:
        yield current


def updates(name: str, entries: Iterable[Entry]) -> Iterator[Update | Connecting]:
    """What a live feed would have posted. Raises TargetError when the pages are of no engine this version knows."""
    parser, digest = ExpositionParser(), None
    for scrape in _scrapes(entries):
        entry = scrape.entry
        try:
            page = parser.parse(entry.body) if entry.kind == "exposition" else None
        except ExpositionError as error:
            page, entry = None, Entry(entry.unix, "event", f"not a metrics page: {error}", "bad_answer")
        if digest is None:
            if page is None:
                continue
            digest = Digest(recognise(name, page))
            yield Connecting(entry.unix, digest.engine)
        if page is None:
            yield digest.failed(entry.unix, entry.body, unreachable=entry.event == "unreachable")
            continue
        header, records = None, []
        for steps in scrape.steps:
            try:
                header, more = decode_steps(steps.body)
            except (ValueError, TypeError, RecursionError) as error:  # WireError, and what JSON can hold besides
                raise TargetError(f"{name}: step records: {error}") from None
            records += more
        yield digest.scraped(entry.unix, page, header, records)
