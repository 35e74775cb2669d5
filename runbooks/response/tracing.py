"""Sends the spans of closed incidents to an OTLP/HTTP receiver, from a thread of its own: no run waits for it or ends by it."""

import queue
import threading
from collections.abc import Callable
from typing import Protocol

from diagnose.sources.clock import Clock
from diagnose.units import printable
from runbooks.errors import ConfigError, RunbookError
from runbooks.response.journal import Incident, Journal

ATTEMPTS = 3
_RETRY_SECONDS = 20.0
_WAITING = 1000
"""Incidents that may wait for a receiver that is down; more are told and dropped."""
_LAST_SECONDS = 12.0
"""For what is left when the process ends; the exporter's own limit is 10 s."""


class SpanExport(Protocol):
    def export(self, incident: Incident) -> None:
        """Raises whatever its library raises."""

    def close(self) -> None: ...


def make_export(endpoint: str, instance: str) -> SpanExport:
    """Of a receiver's base URL; `instance` names this process. Raises ConfigError when the extra is not installed."""
    try:
        from runbooks.response.spans import OtlpExport
    except ModuleNotFoundError:
        raise ConfigError("receiver: otlp_endpoint needs the extra: pip install 'stallscope[otel]'") from None
    return OtlpExport(endpoint, instance)


class Tracing:
    """`send` may be called from any thread."""

    def __init__(self, export: SpanExport, journal: Journal, clock: Clock, log: Callable[[str], None]) -> None:
        self._export, self._journal, self._clock, self._log = export, journal, clock, log
        self._waiting: queue.Queue[int | None] = queue.Queue(_WAITING)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def send(self, incident: int) -> None:
        """Queues a closed incident; never blocks."""
        try:
            self._waiting.put_nowait(incident)
        except queue.Full:
            self._log(f"incident {incident}: its spans are dropped: {_WAITING} others wait for the OTLP receiver")

    def close(self) -> None:
        """What waits is tried once more."""
        self._stop.set()
        self._waiting.put(None)
        self._thread.join(_LAST_SECONDS)
        self._export.close()

    def _run(self) -> None:
        while (number := self._waiting.get()) is not None:
            try:
                self._deliver(number)
            except RunbookError as error:
                self._log(f"incident {number}: its spans are not sent: {error}")

    def _deliver(self, number: int) -> None:
        """Raises JournalError. What could not be sent is a note in the journal, as with notifications."""
        incident = self._journal.incident(number)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._export.export(incident)
            except Exception as error:  # noqa: BLE001 - any library, any error: it is kept in the journal
                reason = f"{type(error).__name__}: {printable(str(error))[:200]}"
            else:
                return
            if attempt == ATTEMPTS or self._stop.wait(_RETRY_SECONDS):
                break
        self._journal.note(number, f"its spans could not be sent: {reason}", self._clock.unix())
        self._log(f"incident {number}: its spans could not be sent: {reason}")
