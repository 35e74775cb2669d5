"""What a recorder counts, cumulative since the start, and the estimate that one of its counters rests on."""

from collections import Counter
from dataclasses import dataclass

from probes.locks import Histogram
from probes.records import StepKind


@dataclass(slots=True)
class Counters:
    """Cumulative since start. Keys are label values."""

    step_duration: dict[StepKind, Histogram]
    device_ns: dict[StepKind, list[int]]
    schedule: Histogram
    host_gap: Histogram
    inter_token_latency: Histogram
    time_to_first_token: Histogram
    e2e: Histogram
    queue_time: Histogram
    frontend_delay: Histogram
    tokens: Counter[str]
    deferrals: Counter[str]
    failures: Counter[str]
    finished: Counter[str]
    stall_ns: Counter[tuple[str, str]]
    transfer_wire: Histogram
    transfer_exposed: Histogram
    transfer_bytes: Counter[str]
    transfer_chunks: Counter[str]
    transfer_failures: Counter[str]
    evictions: int = 0
    ghost_hits: int = 0
    preemptions: int = 0
    probe_errors: int = 0
    lost_device_times: int = 0


class DecodeFloor:
    """Running estimate of what a pure decode step costs on the device, by log2 of its batch.

    Each pure decode step moves the estimate of its batch class by at most 10 %, so that one disturbed step cannot. It
    feeds the stall counters only; the latency account fits the records themselves.
    """

    _STEP = 0.1

    def __init__(self) -> None:
        self._estimates: dict[int, float] = {}

    def learn(self, num_seqs: int, device_ns: int) -> None:
        size = num_seqs.bit_length()
        known = self._estimates.get(size)
        if known is None:
            self._estimates[size] = float(device_ns)
        else:
            limit = known * self._STEP
            self._estimates[size] = known + max(-limit, min(limit, self._STEP * (device_ns - known)))

    def of(self, num_seqs: int) -> float | None:
        """ns for a decode batch of `num_seqs`, from the nearest class seen; None before the first pure decode step."""
        if not self._estimates:
            return None
        size = num_seqs.bit_length()
        return self._estimates[min(self._estimates, key=lambda seen: abs(seen - size))]
