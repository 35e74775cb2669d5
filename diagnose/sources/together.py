"""Watches of what stands beside a target (a device exporter, a router), at the same time as the target's own."""

from threading import Thread

from diagnose.errors import TargetError
from diagnose.sources.live import Watch
from probes.recording import Entry

_GRACE_SECONDS = 10.0
"""A last answer may take this long: the endpoint's own limit is shorter."""


class Together:
    """One thread per watch. What they saw counts as evidence beside the target's; that one of them fails harms nothing."""

    def __init__(self, watches: list[Watch]) -> None:
        self._watches = watches
        self._threads: list[Thread] = []
        self.problems: list[str] = []

    def start(self, seconds: float, interval: float) -> None:
        for watch in self._watches:
            thread = Thread(target=self._run, args=(watch, seconds, interval), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _run(self, watch: Watch, seconds: float, interval: float) -> None:
        try:
            watch.run(seconds, interval)
        except TargetError as error:
            self.problems.append(f"left out: {error}")

    def entries(self, wait_seconds: float) -> list[Entry]:
        """What they saw until now, or until they end. That one of them went away is not the target's end."""
        for thread in self._threads:
            thread.join(wait_seconds + _GRACE_SECONDS if wait_seconds else 0.0)
        seen = [entry for watch in self._watches for entry in list(watch.entries)]
        self.problems += [entry.body for entry in seen if entry.kind == "event" and entry.event != "no_step_records"]
        return [entry for entry in seen if entry.kind == "exposition"]
