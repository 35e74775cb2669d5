"""Recordings: what a target answered, kept raw, one JSON line per answer, so that later tools can replay old evidence.

    {"stallscope_recording":1,"target":"http://host:8000","started_unix":...}
    {"t":<unix s>,"kind":"exposition","body":"..."}        the text of /metrics
    {"t":...,"kind":"steps","body":"..."}                  the answer of /debug/steps
    {"t":...,"kind":"host","body":"..."}                   what the host probe measured of its threads
    {"t":...,"kind":"event","event":"unreachable","body":"why"}

Append-only; a line is written whole and flushed. A torn tail (power cut, SIGKILL, full disk) is cut off and reported;
everything before it is kept.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from probes.wire import WireError

RECORDING_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Entry:
    unix: float
    kind: str
    """exposition, steps, host or event."""
    body: str
    event: str | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    target: str
    started_unix: float
    entries: list[Entry]
    torn: int
    """Bytes of an unfinished last line that were left out."""


def is_recording_header(value: object) -> bool:
    return isinstance(value, dict) and "stallscope_recording" in value


class RecordingWriter:
    """Writes entries as they come. OSError (disk full) is the caller's to report; what was flushed before stays readable."""

    def __init__(self, path: Path, target: str, started_unix: float) -> None:
        self.path = path
        self._file: IO[str] = path.open("w", encoding="utf-8")
        self._line({"stallscope_recording": RECORDING_SCHEMA, "target": target, "started_unix": started_unix})

    def write(self, entry: Entry) -> None:
        line: dict[str, Any] = {"t": entry.unix, "kind": entry.kind, "body": entry.body}
        if entry.event is not None:
            line["event"] = entry.event
        self._line(line)

    def _line(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value, separators=(",", ":")) + "\n")
        self._file.flush()

    def __enter__(self) -> "RecordingWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_recording(text: str) -> Recording:
    """Raises WireError with the line number; a torn last line is not an error."""
    lines = text.split("\n")
    tail = lines.pop()
    header: Recording | None = None
    entries: list[Entry] = []
    for number, value in _objects(lines):
        if header is None:
            header = _header(value)
            continue
        try:
            entries.append(Entry(float(value["t"]), str(value["kind"]), str(value["body"]), value.get("event")))
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"recording line {number}: not an entry ({error!r})") from None
    if header is None:
        raise WireError("a recording without its header line")
    return Recording(header.target, header.started_unix, entries, len(tail.encode()))


def _objects(lines: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise WireError(f"recording line {number}: {error}") from None
        if not isinstance(value, dict):
            raise WireError(f"recording line {number}: should be an object")
        yield number, value


def _header(value: dict[str, Any]) -> Recording:
    schema = value.get("stallscope_recording")
    if schema != RECORDING_SCHEMA:
        raise WireError(f"recording has schema {schema!r}, this stallscope reads {RECORDING_SCHEMA}")
    try:
        return Recording(str(value["target"]), float(value["started_unix"]), [], 0)
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"recording header: {error!r}") from None
