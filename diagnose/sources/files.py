"""Files as sources, each recognised by content and read by its kind's reader. `-` is standard input."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime

from diagnose.errors import SourceError
from diagnose.kernel_profile import KernelProfile
from diagnose.observation import Cut, Observation, OtherSource, observe
from diagnose.sources.content import Content
from diagnose.sources.hints import after_no_file
from diagnose.sources.pages import TimedPage
from diagnose.sources.readers import UNKNOWN_TIME, Reading, choose_reader
from diagnose.sources.replay import part_of
from diagnose.units import seconds
from probes.recording import Entry

_LONG_BYTES = 8 << 20
"""A file of this size takes seconds to read, whatever it is."""


@dataclass(slots=True)
class FileEvidence:
    name: str
    entries: list[Entry] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    recognised: list[str] = field(default_factory=list)
    others: list[OtherSource] = field(default_factory=list)
    profiles: list[KernelProfile] = field(default_factory=list)

    def observation(self) -> Observation:
        """Raises SourceError when an answer is not what its kind says."""
        observation = observe(self.name, self.entries)
        self.add_to(observation)
        return observation

    def add_to(self, observation: Observation) -> None:
        """Beside what a live target or other files said: all but the entries."""
        observation.warnings = [*self.warnings, *observation.warnings]
        observation.recognised += self.recognised
        observation.profiles += self.profiles
        for source in self.others:
            observation.add_source(source)


Progress = Callable[[str], AbstractContextManager[Callable[[float], None]]]
"""Given a file's name, what to tell the share of it that was read."""


def read_files(
    names: Sequence[str],
    interval: float | None,
    within: Cut | None = None,
    progress: Progress = lambda _: nullcontext(lambda _: None),
) -> FileEvidence:
    """Entries of all files; expositions without a time follow each other by `interval` seconds if none of them has one.

    Of recordings and logs only the part `within` is read. Raises SourceError that names the file and what is wrong with it.
    """
    evidence = FileEvidence(names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}")
    readings = [_read(name, within, progress) for name in names]
    for reading in readings:
        evidence.warnings += reading.warnings
        evidence.recognised += [reading.recognised] if reading.recognised else []
        evidence.others += reading.others
        evidence.profiles += reading.profiles
        evidence.name = reading.target or evidence.name
    pages = [page for reading in readings for page in reading.pages]
    parts = [reading.entries for reading in readings if reading.entries]
    parts += [[entry] for entry in _page_entries(evidence, pages, interval)]
    evidence.warnings += _ahead(entry for part in parts for entry in part)
    steps = [Entry(UNKNOWN_TIME, "steps", reading.steps) for reading in readings if reading.steps is not None]
    evidence.entries = steps + [entry for part in _in_time_order(evidence, parts) for entry in part]
    if within is not None and any(entry.kind == "exposition" for entry in evidence.entries):
        evidence.entries = part_of(evidence.name, evidence.entries, within)
    return evidence


def _read(name: str, within: Cut | None, progress: Progress) -> Reading:
    with Content(name, within, after_no_file(name)) as content:
        if not content.head.strip():
            raise SourceError(f"{name}: is empty")
        reader = choose_reader(content)
        if not reader.is_long and content.num_bytes < _LONG_BYTES:
            return reader.read(content)
        with progress(name) as content.on_progress:
            return reader.read(content)


def _ahead(entries: Iterable[Entry]) -> list[str]:
    """A time that has not come yet: the clock that gave it was wrong, or this machine's is."""
    newest = max((entry.unix for entry in entries), default=UNKNOWN_TIME)
    ahead = newest - time.time()
    if ahead <= _CLOCKS_APART_SECONDS:
        return []
    when = datetime.fromtimestamp(newest).isoformat(" ", "seconds") if newest < _END_OF_TIME else f"{newest:g}"
    return [f"the newest scrape is of {when}, {seconds(ahead)} ahead of this machine's clock: one of the two is wrong"]


_CLOCKS_APART_SECONDS = 300.0
_END_OF_TIME = 253_402_300_000.0
"""Year 9999: what a calendar can show."""


def _in_time_order(evidence: FileEvidence, parts: list[list[Entry]]) -> list[list[Entry]]:
    """Files come as they were named, and their times know better. Within a recording, order is what happened."""
    if any(part[0].unix < 0 for part in parts):
        return parts
    ordered = sorted(parts, key=lambda part: part[0].unix)
    if ordered != parts:
        evidence.warnings.append("files were not in time order and have been sorted by their time")
    return ordered


def _page_entries(evidence: FileEvidence, pages: list[TimedPage], interval: float | None) -> Iterator[Entry]:
    untimed = [unix for _, unix in pages if unix is None]
    if untimed and len(untimed) < len(pages):
        evidence.warnings.append(f"{len(untimed)} of {len(pages)} scrapes say nothing of when they were taken")
    count_up = interval is not None and len(untimed) == len(pages)
    for index, (text, unix) in enumerate(pages):
        if count_up and interval is not None:
            unix = index * interval
        yield Entry(UNKNOWN_TIME if unix is None else unix, "exposition", text)
