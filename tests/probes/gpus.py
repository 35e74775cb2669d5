"""GPUs for tests: one of which everything is known, one that is well, and a monitor that says what it is given."""

import os
from dataclasses import replace
from typing import Any

from probes.gpu import GpuReading, GpuSample, ThrottleReason
from probes.gpu_monitor import GpuMonitor

IDENTITY: dict[str, Any] = {"index": 0, "uuid": "GPU-a", "name": "Fake"}


class FixedMonitor(GpuMonitor):
    """Says `reading` for ever."""

    def __init__(self, reading: GpuReading) -> None:
        self.reading = reading
        self.probe_errors = 0

    def latest(self) -> GpuReading:
        return self.reading


def whole_gpu() -> GpuSample:
    """Every figure is 1, except what is no number."""
    numbers: dict[str, Any] = {
        name: 1 for name, field in GpuSample.__dataclass_fields__.items() if "None" in str(field.type)
    }
    return GpuSample(**{**numbers, "process_memory_bytes": {os.getpid(): 1}, "throttle": frozenset()}, **IDENTITY)


def healthy_gpu(*reasons: ThrottleReason, **over: Any) -> GpuSample:
    """Busy, at full clocks, without errors; or as `over` and the throttle `reasons` say."""
    sample = GpuSample(
        **IDENTITY,
        busy_ratio=0.95,
        sm_clock_hz=1_980_000_000,
        sm_clock_max_hz=1_980_000_000,
        throttle=frozenset(reasons),
        ecc_corrected=0,
        ecc_uncorrected=0,
        xid_errors=0,
        last_xid=0,
    )
    return replace(sample, **over)
