"""Watches a live server: one scrape per interval, never overlapping, and its step records where it serves them."""

from collections.abc import Callable
from dataclasses import dataclass

from diagnose.dialects.base import Dialect
from diagnose.dialects.registry import recognise
from diagnose.errors import TargetError
from diagnose.exposition import ExpositionError, ExpositionParser
from diagnose.sources.clock import Clock
from diagnose.sources.http import Endpoint
from probes.recording import Entry
from probes.wire import StepsHeader, WireError, decode_steps

GONE_AFTER_FAILURES = 3
"""Consecutive failed scrapes after which a target that had answered is called gone."""
_AFTER_ALL_STEPS = 2**62


@dataclass(slots=True)
class Watch:
    """One window on one target. `on_entry` sees each entry as it comes (a recording is written that way)."""

    endpoint: Endpoint
    clock: Clock
    on_entry: Callable[[Entry], None] = lambda _: None
    on_progress: Callable[[float], None] = lambda _: None
    """Called with the seconds watched so far."""

    def run(self, seconds: float, interval: float) -> list[Entry]:
        """Entries in time order. Raises TargetError when the target cannot be read at the start.

        A failure later on is evidence and becomes an event; the watch ends early when the target is gone.
        """
        entries: list[Entry] = []

        def keep(entry: Entry) -> None:
            entries.append(entry)
            self.on_entry(entry)

        dialect = self._first_scrape(keep)
        next_step = self._first_steps(dialect, keep)
        start = self.clock.monotonic()
        due, failures = start + interval, 0
        while True:
            now = self.clock.monotonic()
            if now - start >= seconds:
                return entries
            # Drift-free, and a scrape that took longer than an interval is not made up for by a burst.
            self.clock.sleep(max(0.0, min(due, start + seconds) - now))
            due = max(due + interval, self.clock.monotonic())
            self.on_progress(min(seconds, self.clock.monotonic() - start))
            try:
                keep(Entry(self.clock.unix(), "exposition", self.endpoint.get("/metrics")))
                next_step = self._more_steps(dialect, next_step, keep)
                failures = 0
            except TargetError as error:
                failures += 1
                keep(Entry(self.clock.unix(), "event", str(error), "unreachable"))
                if failures >= GONE_AFTER_FAILURES:
                    keep(Entry(self.clock.unix(), "event", self._last_words(error), "gone"))
                    return entries

    def _first_scrape(self, keep: Callable[[Entry], None]) -> Dialect:
        body = self.endpoint.get("/metrics")
        try:
            page = ExpositionParser().parse(body)
        except ExpositionError as error:
            raise TargetError(f"{self.endpoint.url}/metrics: not a metrics page: {error}") from None
        dialect = recognise(self.endpoint.url, page)
        keep(Entry(self.clock.unix(), "exposition", body))
        return dialect

    def _first_steps(self, dialect: Dialect, keep: Callable[[Entry], None]) -> int | None:
        """Id of the first step of the window; None when the target serves no step records."""
        if dialect.debug_steps_path is None:
            return None
        try:
            header = self._read_steps(dialect.debug_steps_path, _AFTER_ALL_STEPS)[1]
        except TargetError as error:
            keep(Entry(self.clock.unix(), "event", str(error), "no_step_records"))
            return None
        return header.next_id

    def _more_steps(self, dialect: Dialect, since: int | None, keep: Callable[[Entry], None]) -> int | None:
        if since is None or dialect.debug_steps_path is None:
            return None
        body, header = self._read_steps(dialect.debug_steps_path, since)
        keep(Entry(self.clock.unix(), "steps", body))
        # A restarted engine counts from zero again: its records are read from there.
        return header.next_id if header.next_id >= since else 0

    def _read_steps(self, path: str, since: int) -> tuple[str, StepsHeader]:
        body = self.endpoint.get(f"{path}?since={since}")
        try:
            return body, decode_steps(body)[0]
        except WireError as error:
            raise TargetError(f"{self.endpoint.url}{path}: {error}") from None

    def _last_words(self, error: TargetError) -> str:
        return f"the target answered at the start of the window and is gone now: {error}"
