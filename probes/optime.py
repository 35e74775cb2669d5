"""Time by operation class: what a forward pass calls, and the timer of devices whose work is done when the call returns."""

from time import perf_counter_ns
from typing import Protocol

from probes.records import DeviceTime, OpClass

(
    GEMM,
    ATTENTION_PREFILL,
    ATTENTION_DECODE,
    KV_WRITE,
    NORM_ROPE_ACT,
    SAMPLING,
    COMM,
    COPY,
    OTHER,
    ATTENTION_MIXED,
) = range(len(OpClass))


class Laps(Protocol):
    """What the forward pass books its parts with."""

    def lap(self, op: int) -> None:
        """Everything since the previous call was work of class `op`."""
        ...


class NoLaps:
    """Books nothing: for work that is timed as a whole, or replayed later."""

    __slots__ = ()

    def lap(self, op: int) -> None:
        pass


class LapTimer:
    """Splits a stretch of code into classes: each `lap` books the time since the previous one.

    What is never lapped over is not lost: `finish` books the tail as `other`, so that the classes add up to the stretch.
    """

    __slots__ = ("_last", "_sums")

    def __init__(self) -> None:
        self._sums = [0] * len(OpClass)
        self._last = perf_counter_ns()

    def start(self) -> None:
        self._sums = [0] * len(OpClass)
        self._last = perf_counter_ns()

    def lap(self, op: int) -> None:
        now = perf_counter_ns()
        self._sums[op] += now - self._last
        self._last = now

    def finish(self) -> DeviceTime:
        self.lap(OTHER)
        return DeviceTime(*self._sums)
