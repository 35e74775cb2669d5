"""Raw answers of one target on disk, so that any window of the session can be diagnosed exactly, in flat memory.

Files without a name: they vanish with the process. Oldest files go first when the limit is reached.
"""

import json
import tempfile
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field
from threading import Lock
from typing import IO

from probes.recording import Entry

SEGMENT_BYTES = 8 << 20
MAX_BYTES = 256 << 20


@dataclass(slots=True)
class _Segment:
    file: IO[bytes]
    times: "array[float]" = field(default_factory=lambda: array("d"))
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    size: int = 0


class Spool:
    """Written by a feed, read by diagnoses: both under a lock that is held for one entry's read or write."""

    def __init__(self, max_bytes: int = MAX_BYTES, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._max_bytes, self._segment_bytes = max_bytes, segment_bytes
        self._segments: deque[_Segment] = deque()
        self._lock = Lock()
        self._closed = False

    def append(self, entry: Entry) -> None:
        """Raises OSError when the disk is full; what came before stays."""
        line = json.dumps([entry.unix, entry.kind, entry.body, entry.event]).encode()
        data = zlib.compress(line, 1)
        with self._lock:
            if self._closed:
                return  # a feed whose request hung notices late that the session is over
            if not self._segments or self._segments[-1].size + len(data) > self._segment_bytes:
                file = tempfile.TemporaryFile(prefix="stallscope-spool-")  # noqa: SIM115 - lives as long as its segment
                self._segments.append(_Segment(file))
                while sum(segment.size for segment in self._segments) > self._max_bytes and len(self._segments) > 1:
                    self._segments.popleft().file.close()
            segment = self._segments[-1]
            segment.file.seek(segment.size)
            segment.file.write(data)
            segment.times.append(entry.unix)
            segment.offsets.append(segment.size)
            segment.size += len(data)

    def between(self, start: float, end: float) -> list[Entry]:
        """Entries with start <= unix <= end, in the order in which they came."""
        found: list[Entry] = []
        with self._lock:
            segments = list(self._segments)
        for segment in segments:
            low, high = bisect_left(segment.times, start), bisect_right(segment.times, end)
            read = (self._read(segment, place) for place in range(low, high))
            found += [entry for entry in read if entry is not None]
        return found

    def _read(self, segment: _Segment, place: int) -> Entry | None:
        with self._lock:
            if segment.file.closed:
                return None  # thrown away meanwhile
            start = segment.offsets[place]
            end = segment.offsets[place + 1] if place + 1 < len(segment.offsets) else segment.size
            segment.file.seek(start)
            data = segment.file.read(end - start)
        unix, kind, body, event = json.loads(zlib.decompress(data))
        return Entry(unix, kind, body, event)

    def close(self) -> None:
        """Frees the disk. What is appended later is dropped, what is read later is not there."""
        with self._lock:
            self._closed = True
            for segment in self._segments:
                segment.file.close()
            self._segments.clear()
