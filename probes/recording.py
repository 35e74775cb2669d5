"""Recordings: what a target answered, kept raw, so that later tools can replay old evidence.

A file is one or more segments, and two files put together are a recording too. Integers are little-endian:

    segment  MARK, then a frame of type S, then frames of type E
    frame    type (1 byte), length of the payload (u32), crc32 of all before and of the payload (u32), payload
    S        JSON: {"stallscope_recording": 2, "target": ..., "started_unix": ...}
    E        the next piece of the segment's zlib stream, flushed, which holds one entry: a line of JSON
             {"t": unix seconds, "kind": ...} with "event" for events, then the body. With "delta": true the body is the
             difference to the segment's previous body of that kind (probes.line_delta).

Append-only. What a power cut, a SIGKILL or a full disk tore is left out and counted; everything before it is kept, and
so is everything from the next segment on.
"""

import errno
import fcntl
import json
import os
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from probes.line_delta import apply_delta, encode_delta
from probes.wire import WireError

RECORDING_SCHEMA = 2
MARK = b"\x89STALLREC\n"
ENTRIES_PER_SEGMENT = 256
"""Damage costs at most the rest of its segment; a new segment costs one whole page of some 5 KiB."""
SYNC_SECONDS = 5.0
"""What a power cut may cost. A kill costs nothing of what was written."""
MAX_BODY_BYTES = 256 << 20
_FRAME = struct.Struct("<cII")
_TYPE_AND_LENGTH = struct.Struct("<cI")
_ZLIB_LEVEL = 6
_SUCCESSIVE = frozenset({"exposition"})
"""Kinds whose bodies repeat the one before, line by line."""


@dataclass(frozen=True, slots=True)
class Entry:
    unix: float
    kind: str
    """exposition, steps, log, host or event."""
    body: str
    event: str | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    target: str
    started_unix: float
    entries: list[Entry]
    torn: int = 0
    """Bytes of an unfinished end that were left out."""
    damaged: int = 0
    """Bytes before the last segment that were left out."""


def is_recording(data: bytes) -> bool:
    return data.startswith(MARK)


class _Encoder:
    """One segment, frame by frame."""

    def __init__(self, target: str, started_unix: float) -> None:
        header = {"stallscope_recording": RECORDING_SCHEMA, "target": target, "started_unix": started_unix}
        self.start = MARK + _frame(b"S", json.dumps(header, separators=(",", ":")).encode())
        self.num_entries = 0
        self._zlib = zlib.compressobj(_ZLIB_LEVEL)
        self._previous: dict[str, str] = {}

    def entry(self, entry: Entry) -> bytes:
        head: dict[str, Any] = {"t": entry.unix, "kind": entry.kind}
        if entry.event is not None:
            head["event"] = entry.event
        body = entry.body
        if entry.kind in _SUCCESSIVE:
            previous = self._previous.get(entry.kind)
            self._previous[entry.kind] = body
            if previous is not None:
                head["delta"] = True
                body = encode_delta(previous, body)
        text = json.dumps(head, separators=(",", ":")) + "\n" + body
        self.num_entries += 1
        packed = self._zlib.compress(text.encode("utf-8", errors="surrogatepass"))
        return _frame(b"E", packed + self._zlib.flush(zlib.Z_SYNC_FLUSH))


def _frame(kind: bytes, payload: bytes) -> bytes:
    start = _TYPE_AND_LENGTH.pack(kind, len(payload))
    return start + struct.pack("<I", zlib.crc32(payload, zlib.crc32(start))) + payload


class RecordingWriter:
    """Writes entries as they come.

    OSError (disk full, device gone) is the caller's to report; what was written before stays readable, and a later
    `write` that succeeds begins a segment of its own. Not thread-safe.
    """

    def __init__(
        self,
        path: Path,
        target: str,
        started_unix: float,
        *,
        existing: Literal["refuse", "replace", "append"] = "refuse",
    ) -> None:
        """Raises OSError: FileExistsError where a file is in the way, EBUSY where another process records to it."""
        self.path = path
        self.num_bytes = 0
        """Written by this writer."""
        self._target = target
        self._started_unix = started_unix
        self._segment: _Encoder | None = None
        self._synced = time.monotonic()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags | (os.O_EXCL if existing == "refuse" else 0), 0o644)
        try:
            self._lock()
            if existing == "replace":
                os.ftruncate(self._fd, 0)
            if existing != "append":  # who appends may begin later: a full disk must not keep an engine from starting
                self._begin()
        except BaseException:
            os.close(self._fd)
            raise

    def write(self, entry: Entry) -> None:
        segment = self._segment
        if segment is None or segment.num_entries >= ENTRIES_PER_SEGMENT:
            segment = self._begin()
        self._put(segment.entry(entry))
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Makes the disk keep what was written. A pipe has nothing to keep."""
        self._synced = time.monotonic()
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise

    def close(self) -> None:
        """Raises OSError when the disk did not keep what was written; the file is closed all the same."""
        try:
            self.sync()
        finally:
            os.close(self._fd)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EBUSY, "another process is recording to it", str(self.path)) from None

    def _begin(self) -> _Encoder:
        segment = _Encoder(self._target, self._started_unix)
        self._put(segment.start)
        self._segment = segment
        return segment

    def _put(self, data: bytes) -> None:
        # Whatever fails in here, the file may end in half a frame: what comes next needs a segment of its own.
        self._segment, segment = None, self._segment
        view = memoryview(data)
        while view:
            count = os.write(self._fd, view)
            self.num_bytes += count
            view = view[count:]
        self._segment = segment

    def __enter__(self) -> "RecordingWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RecordingReader:
    """Entries of a file's bytes, one after the other; what could not be read is counted when the last one has come.

    Raises WireError when there is no whole header, or one of another schema.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        at = data.find(MARK)
        while (header := self._header(at)[0]) is None:
            if at < 0:
                raise WireError("a recording without a whole header")
            at = data.find(MARK, at + 1)
        self.target, self.started_unix = header
        self.torn = self.damaged = 0

    def entries(self) -> Iterator[Entry]:
        data, at = self._data, 0
        self.torn = self.damaged = 0
        while at < len(data):
            good_end = at
            header, start = self._header(at)
            if header is not None:
                good_end = start
                for entry, end in self._segment(start):
                    yield entry
                    good_end = end
            # A mark whose header is torn is not where the search begins again.
            at = data.find(MARK, max(good_end, at + 1)) if good_end < len(data) else good_end
            if at < 0:
                self.torn = len(data) - good_end
                return
            self.damaged += at - good_end

    def _segment(self, at: int) -> Iterator[tuple[Entry, int]]:
        """Entries with the offset after each, up to the segment's end or the first frame that is not whole."""
        unpack = zlib.decompressobj()
        previous: dict[str, str] = {}
        while (frame := self._frame(at, b"E")) is not None:
            payload, at = frame
            entry = _decode(unpack, payload, previous)
            if entry is None:
                return
            yield entry, at

    def _header(self, at: int) -> tuple[tuple[str, float] | None, int]:
        """Target and start, and where the segment's entries begin; None where no whole header is."""
        if at < 0 or not self._data.startswith(MARK, at) or (frame := self._frame(at + len(MARK), b"S")) is None:
            return None, at
        try:
            value = json.loads(frame[0])
            schema = value["stallscope_recording"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise WireError(f"recording header: {error!r}") from None
        if schema != RECORDING_SCHEMA:
            raise WireError(f"recording has schema {schema!r}, this stallscope reads {RECORDING_SCHEMA}")
        try:
            return (str(value["target"]), float(value["started_unix"])), frame[1]
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"recording header: {error!r}") from None

    def _frame(self, at: int, kind: bytes) -> tuple[bytes, int] | None:
        """Payload and the offset after it; None when there is no whole frame of this type."""
        begin = at + _FRAME.size
        if begin > len(self._data):
            return None
        found, length, checksum = _FRAME.unpack_from(self._data, at)
        end = begin + length
        if found != kind or end > len(self._data):
            return None
        payload = self._data[begin:end]
        if zlib.crc32(payload, zlib.crc32(self._data[at : at + _TYPE_AND_LENGTH.size])) != checksum:
            return None
        return payload, end


def _decode(unpack: "zlib._Decompress", payload: bytes, previous: dict[str, str]) -> Entry | None:
    """None when the frame holds no entry, its checksum notwithstanding."""
    try:
        text = unpack.decompress(payload, MAX_BODY_BYTES).decode("utf-8", errors="surrogatepass")
        if unpack.unconsumed_tail:
            return None
        line, _, body = text.partition("\n")
        head = json.loads(line)
        kind = str(head["kind"])
        if head.get("delta"):
            body = apply_delta(previous[kind], body)
        if kind in _SUCCESSIVE:
            previous[kind] = body
        return Entry(float(head["t"]), kind, body, head.get("event"))
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def read_recording(data: bytes) -> Recording:
    """All of it at once. Raises WireError; a torn end is not an error."""
    reader = RecordingReader(data)
    entries = list(reader.entries())
    return Recording(reader.target, reader.started_unix, entries, reader.torn, reader.damaged)
