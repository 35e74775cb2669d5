"""The events of a Chrome trace (what torch's profiler writes), one after the other: any size, plain or gzip.

The array of events is cut into batches between two events, and each batch is decoded by msgspec into the few fields that
are read. A batch that msgspec refuses (NaN, broken UTF-8, a field of another type) is decoded event by event by `json`.
"""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from diagnose.errors import SourceError
from diagnose.sources.trace_head import EVENTS_ARRAY, GZIP
from diagnose.units import printable

_CHUNK_BYTES = 1 << 20
_MAX_EVENT_BYTES = 16 << 20
"""Longer than any event: what is not one by then is not JSON."""
_BETWEEN = re.compile(rb'\}\s*,\s*\{\s*"')
_GAP = re.compile(r"[\s,]*")


class Args(msgspec.Struct, gc=False):
    correlation: int = -1
    device: int = -1
    stream: int = -1
    grid: tuple[int, ...] = ()


class TraceEvent(msgspec.Struct, gc=False):
    """Times in microseconds on the trace's own clock."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Args | None = None


_BATCH = msgspec.json.Decoder(list[TraceEvent])
_SCAN = json.JSONDecoder().raw_decode


class TraceFile:
    """Iterate once; `header`, `is_cut_off` and `num_unreadable` are final after that."""

    def __init__(self, path: Path, on_progress: Callable[[float], None]) -> None:
        """on_progress: called with the share of the file that was read."""
        self._path = path
        self._on_progress = on_progress
        self._size = 0
        self._read_bytes: Callable[[], int] = int
        self.header: dict[str, Any] = {}
        """What the file says beside its events: deviceProperties, distributedInfo, ..."""
        self.is_cut_off = False
        """The file ends before its array of events does."""
        self.num_unreadable = 0
        """Events whose fields are not of their types."""

    def __iter__(self) -> Iterator[TraceEvent]:
        """Raises SourceError when the file cannot be read or is not JSON."""
        try:
            self._size = max(1, self._path.stat().st_size)
            with self._path.open("rb") as raw:
                self._read_bytes = raw.tell
                zipped = raw.read(2) == GZIP
                raw.seek(0)
                if zipped:
                    with gzip.open(raw) as stream:
                        yield from self._events(_Source(stream))
                else:
                    yield from self._events(_Source(raw))
        except OSError as error:
            raise SourceError(f"{self._path}: cannot be read: {error.strerror or error}") from None

    def _events(self, source: "_Source") -> Iterator[TraceEvent]:
        buffer = self._begin(source)
        ended = False
        while not ended:
            more = source.read()
            self._on_progress(self._read_bytes() / self._size)
            buffer += more
            cut = _last_cut(buffer) if more else len(buffer)
            if cut == 0 and len(buffer) < _MAX_EVENT_BYTES:
                continue
            batch, rest = buffer[:cut], buffer[cut:]
            try:
                yield from _BATCH.decode(b"[" + batch.strip(b" \t\r\n,") + b"]")
                buffer = rest
            except (msgspec.DecodeError, ValueError):
                events, left, ended = self._one_by_one(batch.decode("utf-8", "replace"))
                yield from events
                buffer = left.encode() + rest
            if len(buffer) > 2 * _MAX_EVENT_BYTES:
                raise SourceError(f"{self._path}: not a trace: near byte {source.position:,} there is no JSON event")
            if not more:
                break
        self.is_cut_off = not ended
        if ended:
            self._end(buffer + source.read())

    def _begin(self, source: "_Source") -> bytes:
        """Reads up to the array of events; what follows its bracket."""
        buffer = source.read()
        if buffer.lstrip().startswith(b"["):
            return buffer.lstrip()[1:]
        while (found := EVENTS_ARRAY.search(buffer)) is None:
            more = source.read()
            if not more or len(buffer) > _MAX_EVENT_BYTES:
                raise SourceError(f"{self._path}: not a trace: it holds no array traceEvents")
            buffer += more
        self._describe(buffer[: found.start()].rstrip(b" \t\r\n,") + b"}")
        return buffer[found.end() :]

    def _end(self, rest: bytes) -> None:
        self._describe(b"{" + rest.lstrip(b" \t\r\n,"))

    def _describe(self, text: bytes) -> None:
        """Takes in fields beside the events. They only describe: without them the events are as good."""
        try:
            self.header |= json.loads(text.decode("utf-8", "replace"))
        except (ValueError, RecursionError, TypeError):
            return

    def _one_by_one(self, text: str) -> tuple[list[TraceEvent], str, bool]:
        """Events, the text after the last whole one, and whether the array ended there."""
        events: list[TraceEvent] = []
        at = 0
        while True:
            at = _skip(text, at)
            if text.startswith("]", at):
                return events, text[at + 1 :], True
            try:
                value, at = _SCAN(text, at)
            except (ValueError, RecursionError):
                return events, text[at:], False
            try:
                events.append(msgspec.convert(value, TraceEvent, strict=False))
            except msgspec.ValidationError:
                self.num_unreadable += 1


class _Source:
    """Chunks of a stream; a gzip that breaks off ends like a file that does."""

    def __init__(self, stream: BufferedReader | gzip.GzipFile) -> None:
        self._stream = stream
        self.position = 0

    def read(self) -> bytes:
        """Piece by piece: one large read of a gzip that breaks off would lose what it had unpacked before."""
        chunks: list[bytes] = []
        size = 0
        while size < _CHUNK_BYTES:
            try:
                chunk = self._stream.read1(_CHUNK_BYTES - size)
            except (EOFError, zlib.error, gzip.BadGzipFile):
                break
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
        self.position += size
        return b"".join(chunks)


def _skip(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    assert found is not None
    return found.end()


def _last_cut(buffer: bytes) -> int:
    """Where the last event that is followed by another ends; 0 when there is none."""
    window = 4096
    while True:
        start = max(0, len(buffer) - window)
        last = None
        for found in _BETWEEN.finditer(buffer, start):
            last = found
        if last is not None:
            return last.start() + 1
        if start == 0:
            return 0
        window *= 8


def rank_of(header: dict[str, Any]) -> int | None:
    info = header.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if isinstance(rank, int) else None


def base_of(header: dict[str, Any]) -> int | None:
    """What to add to the events' times for wall time, ns."""
    base = header.get("baseTimeNanoseconds")
    return base if isinstance(base, int) else None


def device_of(header: dict[str, Any]) -> str:
    """The first device's name; empty when the file names none."""
    devices = header.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    name = first.get("name") if isinstance(first, dict) else None
    return printable(name)[:80] if isinstance(name, str) else ""
