"""What leaves the process by itself: a thread per exporter reads the recorder's rings and counters, and no other thread waits.

What an exporter reads too late, or cannot deliver, is lost to it alone and counted. Its failures never reach the engine.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

log = logging.getLogger("stallscope.exports")

MAX_BACKOFF = 8
"""Intervals between two attempts, at most, while they fail: what fails costs the engine's process time too."""


@dataclass(slots=True)
class ExportCounters:
    """Cumulative since start, for the exposition. Written by the exporter's thread."""

    exporter: str
    items: int = 0
    """Delivered: entries of a recording, spans, metric points."""
    lost: Counter[str] = field(default_factory=Counter)
    """Items that will never be delivered, by reason. An exporter begins with all of its reasons, at 0."""
    failures: int = 0
    """Attempts that failed; what they meant to deliver may have been delivered later."""


class Exporter(Protocol):
    counters: ExportCounters

    def export(self) -> None:
        """Delivers what is new, and counts it. Raises when it could not."""
        ...

    def close(self) -> None:
        """Lets go of what it holds. Raises like `export`."""
        ...


class ExportThread:
    """Calls an exporter at its interval, and a last time when it is closed."""

    def __init__(self, exporter: Exporter, interval_seconds: float) -> None:
        self.counters = exporter.counters
        self._exporter = exporter
        self._interval = interval_seconds
        self._stop = threading.Event()
        self._failures_in_a_row = 0
        # A daemon: a disk or a receiver that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"export-{self.counters.exporter}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Asks for the last export; `join` waits for it."""
        self._stop.set()

    def join(self, timeout_seconds: float) -> bool:
        """False when the last export takes longer: it is left behind."""
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            log.warning("%s: still busy after %g s, leaving it behind", self.counters.exporter, timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            self._attempt()
            # Drift-free; an export that took longer than an interval is not made up for by a burst.
            pause = self._interval * min(MAX_BACKOFF, 2**self._failures_in_a_row)
            due = max(due + pause, time.monotonic())
        self._attempt()
        try:
            self._exporter.close()
        except Exception as error:  # noqa: BLE001 - as below
            self.counters.failures += 1
            log.warning("%s: was not closed in order: %s", self.counters.exporter, error)

    def _attempt(self) -> None:
        """Says in the log when failures begin and when they end, not each of them."""
        try:
            self._exporter.export()
        except Exception as error:  # noqa: BLE001 - whatever a disk or a receiver does, the next interval tries again
            self.counters.failures += 1
            if not self._failures_in_a_row:
                log.warning("%s: fails, the engine goes on without it: %s", self.counters.exporter, error)
            self._failures_in_a_row += 1
        else:
            if self._failures_in_a_row:
                log.warning("%s: works again", self.counters.exporter)
            self._failures_in_a_row = 0


def close_all(threads: Sequence[ExportThread], timeout_seconds: float) -> None:
    """All of them get their last export at the same time, and this long together."""
    for thread in threads:
        thread.stop()
    deadline = time.monotonic() + timeout_seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
