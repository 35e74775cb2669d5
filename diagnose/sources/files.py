"""Files as sources, recognised by content: recordings, step records, traces, exposition text. `-` is standard input."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.errors import SourceError
from diagnose.exposition import ExpositionError, ExpositionParser
from diagnose.kernel_profile import KernelProfile
from diagnose.sources.trace_head import HEAD_BYTES, is_trace
from diagnose.units import printable
from probes.recording import Entry, is_recording, read_recording
from probes.wire import WireError, is_steps_header

_SCRAPED_AT = re.compile(r"^#\s*scraped_at_unix\s+(\d+(?:\.\d+)?)\s*$", re.MULTILINE)
_HOST_PORT = re.compile(r"^[\w.-]+:\d+(/.*)?$")
UNKNOWN_TIME = -1.0


@dataclass(slots=True)
class FileEvidence:
    name: str
    entries: list[Entry] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    profiles: list[KernelProfile] = field(default_factory=list)


Reading = Callable[[str], AbstractContextManager[Callable[[float], None]]]
"""Given a file's name, what to tell the share of it that was read."""


def read_files(
    names: Sequence[str],
    interval: float | None,
    reading: Reading = lambda _: nullcontext(lambda _: None),
) -> FileEvidence:
    """Entries of all files; expositions without a time follow each other by `interval` seconds if none of them has one.

    Raises SourceError that names the file and what is wrong with it.
    """
    evidence = FileEvidence(names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}")
    pages: list[tuple[str, float | None]] = []
    parts: list[list[Entry]] = []
    steps: list[Entry] = []
    for name in names:
        if name != "-" and is_trace(_head(name)):
            with reading(name) as on_progress:
                from diagnose.sources.trace import read_trace  # few diagnoses read one

                evidence.profiles.append(read_trace(Path(name), on_progress))
            continue
        data = _read(name)
        if is_recording(data):
            parts.append(_recording(evidence, name, data))
            continue
        text = _text(name, data)
        if is_steps_header(_first_json(text)):
            steps.append(Entry(UNKNOWN_TIME, "steps", text))
        else:
            pages.append((text, _exposition_time(name, text)))
    parts += [[entry] for entry in _page_entries(evidence, pages, interval)]
    evidence.entries = steps + [entry for part in _in_time_order(evidence, parts) for entry in part]
    return evidence


def _in_time_order(evidence: FileEvidence, parts: list[list[Entry]]) -> list[list[Entry]]:
    """Files come as they were named, and their times know better. Within a recording, order is what happened."""
    if any(part[0].unix < 0 for part in parts):
        return parts
    ordered = sorted(parts, key=lambda part: part[0].unix)
    if ordered != parts:
        evidence.warnings.append("files were not in time order and have been sorted by their time")
    return ordered


def _page_entries(
    evidence: FileEvidence, pages: list[tuple[str, float | None]], interval: float | None
) -> Iterator[Entry]:
    untimed = [unix for _, unix in pages if unix is None]
    if untimed and len(untimed) < len(pages):
        evidence.warnings.append(f"{len(untimed)} of {len(pages)} scrapes say nothing of when they were taken")
    count_up = interval is not None and len(untimed) == len(pages)
    for index, (text, unix) in enumerate(pages):
        if count_up and interval is not None:
            unix = index * interval
        yield Entry(UNKNOWN_TIME if unix is None else unix, "exposition", text)


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        hint = "; a live target is written http://HOST:PORT" if _HOST_PORT.match(name) else ""
        raise SourceError(f"{name}: cannot be read: {error.strerror or error}{hint}") from None
    except MemoryError:
        raise SourceError(f"{name}: is larger than the memory that is left") from None


def _text(name: str, data: bytes) -> str:
    """With line ends as text files have them here."""
    try:
        text = data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise SourceError(f"{name}: is not text") from None
    if not text.strip():
        raise SourceError(f"{name}: is empty")
    return text


def _head(name: str) -> bytes:
    """Empty where the file cannot be read: reading it whole says why."""
    try:
        with Path(name).open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""


def _first_json(text: str) -> object:
    line = text.partition("\n")[0]
    if not line.startswith("{"):
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _recording(evidence: FileEvidence, name: str, data: bytes) -> list[Entry]:
    try:
        recording = read_recording(data)
    except WireError as error:
        raise SourceError(f"{name}: {error}") from None
    except MemoryError:
        raise SourceError(f"{name}: its content is larger than the memory that is left") from None
    if recording.torn:
        evidence.warnings.append(
            f"{name}: its end was cut off in a write ({recording.torn} bytes left out), the rest is used"
        )
    if recording.damaged:
        evidence.warnings.append(
            f"{name}: {recording.damaged} bytes within it cannot be read and were left out, the rest is used"
        )
    if not recording.entries:
        raise SourceError(f"{name}: the recording holds no answer of {recording.target}")
    evidence.name = recording.target
    return recording.entries


def _exposition_time(name: str, text: str) -> float | None:
    """When the page was scraped: from its comment, else from sample timestamps. Raises SourceError when it is no page."""
    try:
        page = ExpositionParser().parse(text)
    except ExpositionError as error:
        raise SourceError(
            f"{name}: neither a recording, step records, a trace nor exposition text ({printable(str(error))})"
        ) from None
    comment = _SCRAPED_AT.search(text)
    return float(comment[1]) if comment is not None else page.sample_unix
