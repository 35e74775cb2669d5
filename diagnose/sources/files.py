"""Files as sources, recognised by content: recordings, step records, exposition text. `-` is standard input."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.errors import SourceError
from probes.recording import Entry, is_recording_header, read_recording
from probes.wire import WireError, is_steps_header

_SCRAPED_AT = re.compile(r"^#\s*scraped_at_unix\s+(\d+(?:\.\d+)?)\s*$", re.MULTILINE)
_SAMPLE_TIME = re.compile(r"^[A-Za-z_:][^\n#]*[}\s]\S+\s(\d{12,14})\s*$", re.MULTILINE)
UNKNOWN_TIME = -1.0


@dataclass(slots=True)
class FileEvidence:
    name: str
    entries: list[Entry] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_files(names: Sequence[str], interval: float | None) -> FileEvidence:
    """Entries of all files, in time order; expositions without a time follow each other by `interval` seconds.

    Raises SourceError that names the file and what is wrong with it.
    """
    evidence = FileEvidence(names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}")
    untimed = 0
    for name in names:
        text = _read_text(name)
        first = _first_json(text)
        if is_recording_header(first):
            _add_recording(evidence, name, text)
        elif is_steps_header(first):
            evidence.entries.append(Entry(UNKNOWN_TIME, "steps", text))
        elif _looks_like_exposition(text):
            unix = _exposition_time(text)
            if unix is None and interval is not None:
                unix = interval * untimed
            untimed += 1
            evidence.entries.append(Entry(UNKNOWN_TIME if unix is None else unix, "exposition", text))
        else:
            raise SourceError(
                f"{name}: neither a recording, step records nor exposition text; it begins with {text[:60]!r}"
            )
    return evidence


def _read_text(name: str) -> str:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8", errors="strict")
    except UnicodeDecodeError:
        raise SourceError(f"{name}: is not text") from None
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror or error}") from None
    if not text.strip():
        raise SourceError(f"{name}: is empty")
    return text


def _first_json(text: str) -> object:
    line = text.partition("\n")[0]
    if not line.startswith("{"):
        return None
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def _add_recording(evidence: FileEvidence, name: str, text: str) -> None:
    try:
        recording = read_recording(text)
    except WireError as error:
        raise SourceError(f"{name}: {error}") from None
    if recording.torn:
        evidence.warnings.append(
            f"{name}: the last line was cut off ({recording.torn} bytes left out), the rest is used"
        )
    if not recording.entries:
        raise SourceError(f"{name}: the recording holds no answer of {recording.target}")
    evidence.name = recording.target
    evidence.entries += recording.entries


def _looks_like_exposition(text: str) -> bool:
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            return re.match(r"^[A-Za-z_:][A-Za-z0-9_:]*(\{.*\})?\s+\S+", stripped) is not None
    return "# TYPE" in text


def _exposition_time(text: str) -> float | None:
    """Unix seconds from the scrape comment, else from sample timestamps (milliseconds)."""
    comment = _SCRAPED_AT.search(text)
    if comment is not None:
        return float(comment[1])
    sample = _SAMPLE_TIME.search(text)
    return int(sample[1]) / 1000 if sample is not None else None
