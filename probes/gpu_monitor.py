"""Samples the GPUs in a thread of its own: a driver call may take 20 ms, or never return when a GPU is sick."""

import threading
import time
from typing import Protocol

from probes.gpu import GpuReading

STALE_INTERVALS = 5
"""Without an answer for so many intervals the latest reading says nothing any more."""


class GpuProbe(Protocol):
    """`probes.nvml.NvmlProbe`, or another measurement of the same figures."""

    def sample(self) -> GpuReading: ...

    def close(self) -> None: ...


class GpuMonitor:
    """Keeps the latest reading. Started once, stopped once; the probe belongs to its thread from then on."""

    def __init__(self, probe: GpuProbe, interval_seconds: float = 1.0) -> None:
        self._probe = probe
        self._interval = interval_seconds
        self._latest = (time.monotonic(), GpuReading((), "not read yet"))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-monitor", daemon=True)
        self.probe_errors = 0
        """Faults of the probe itself; the thread goes on."""

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> bool:
        """False when a driver call does not return within `timeout`; the thread is a daemon and holds nobody up."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def latest(self) -> GpuReading:
        """From any thread, at once."""
        taken, reading = self._latest
        age = time.monotonic() - taken
        if age > STALE_INTERVALS * self._interval:
            return GpuReading((), f"the driver has not answered for {age:.0f} s")
        return reading

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            try:
                self._latest = (time.monotonic(), self._probe.sample())
            except Exception as error:  # noqa: BLE001 - a fault of the probe must not end the watch; it is counted and shown
                self.probe_errors += 1
                self._latest = (time.monotonic(), GpuReading((), f"{type(error).__name__}: {error}"))
            # The next multiple of the interval, so that intervals do not drift by what a sample takes.
            now = time.monotonic()
            due += self._interval * max(1, -(-(now - due) // self._interval))
            self._stopping.wait(due - now)
        self._probe.close()
