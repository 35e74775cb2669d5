"""The engine records itself: its page and its step records go to a recording, from a thread of their own.

The same entries that `stallscope record` would have written, but complete: no step is missed between two scrapes as long
as the ring holds it, and nothing goes over HTTP.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from probes.exports import ExportCounters
from probes.recorder import RingRecorder
from probes.recording import Entry, RecordingWriter
from probes.wire import StepsHeader, encode_steps

RING, DISK = "ring", "disk"
"""Why a step record or a page was lost: overwritten before it was read, or the write failed."""


class RecordingExport:
    """Appends to a file; where it fails, it goes on with a segment of its own once the disk takes writes again."""

    def __init__(
        self, writer: RecordingWriter, recorder: RingRecorder, engine_id: str, page: Callable[[], str]
    ) -> None:
        self.counters = ExportCounters("recording", lost=Counter({RING: 0, DISK: 0}))
        self._writer = writer
        self._recorder = recorder
        self._engine_id = engine_id
        self._page = page
        self._next_step = 0

    def export(self) -> None:
        """One page and the steps since the last call. Raises OSError; what it could not write is lost, and counted."""
        found = self._recorder.steps_since(self._next_step)
        self._next_step = found.next_id
        self.counters.lost[RING] += found.lost
        unix_ns = time.time_ns()
        header = StepsHeader(self._engine_id, found.next_id, found.lost, time.perf_counter_ns(), unix_ns)
        entries = [Entry(unix_ns / 1e9, "exposition", self._page())]
        if found.records or found.lost:
            entries.append(Entry(unix_ns / 1e9, "steps", "".join(encode_steps(header, found.records))))
        for position, entry in enumerate(entries):
            try:
                self._writer.write(entry)
            except OSError:
                self.counters.lost[DISK] += len(entries) - position
                raise
            self.counters.items += 1

    def close(self) -> None:
        self._writer.close()


def open_recording(path: Path, target: str) -> RecordingWriter:
    """Goes on with a file that is there: an engine that is restarted keeps its history. Raises OSError."""
    return RecordingWriter(path, target, time.time(), existing="append")
