"""Device time of every step, and its split into classes now and then.

A mark per class and layer in every step would cost more than a decode step can spare. So each step is timed as a whole
(copies, forward, sampling), and every Nth one of a kind in full; the others' forward time is divided as that one's was.

    step        0     1     2     3     4     5     6     7     8
    marks      full   3     3     3     3     3     3     3    full
    split    measured |---- by the shares of step 0 ----|   measured

A captured graph shows no classes to events: its shares come from `learn`, called with what a profiler saw.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol

from engine.runner.event_ring import EventRing, TimedStep, TimingEvent
from probes import optime
from probes.optime import Laps, NoLaps
from probes.records import DeviceTime, OpClass

_FORWARD = tuple(op for op in range(len(OpClass)) if op not in (optime.COPY, optime.SAMPLING, optime.COMM))
"""Classes that a forward pass consists of; the others are marked in every step."""


class StepMarks(NamedTuple):
    """How to time one step: `forward` goes down into the forward pass, `step` marks its big parts."""

    step: Laps
    forward: Laps
    is_split: bool


class Clock(Protocol):
    """Times steps on a device; see `StepClock`."""

    def step(self, step_id: int, key: str, *, can_split: bool) -> AbstractContextManager[StepMarks]: ...

    def collect(self) -> list[tuple[int, DeviceTime | None]]: ...

    def learn(self, key: str, forward_ns: DeviceTime) -> None: ...


class NoClock:
    """Times nothing: the other arm of every measurement of what timing costs."""

    @contextmanager
    def step(self, step_id: int, key: str, *, can_split: bool) -> Iterator[StepMarks]:
        yield StepMarks(NoLaps(), NoLaps(), False)

    def collect(self) -> list[tuple[int, DeviceTime | None]]:
        return []

    def learn(self, key: str, forward_ns: DeviceTime) -> None:
        pass


class StepClock:
    """Implements `Clock` with a ring of events."""

    def __init__(self, new_event: Callable[[], TimingEvent], *, split_every: int = 16, num_steps: int = 64) -> None:
        """split_every: every which step of a kind is marked class by class; 0: none."""
        self._ring = EventRing(new_event, num_steps)
        self._split_every = split_every
        self._seen: dict[str, int] = {}
        self._shares: dict[str, tuple[float, ...]] = {}

    @contextmanager
    def step(self, step_id: int, key: str, *, can_split: bool) -> Iterator[StepMarks]:
        """Times the body on the device. Raising abandons the step. can_split: whether the forward pass books laps."""
        seen = self._seen.get(key, 0)
        self._seen[key] = seen + 1
        is_split = can_split and self._split_every > 0 and seen % self._split_every == 0
        self._ring.begin(step_id, key, is_split=is_split)
        try:
            yield StepMarks(self._ring, self._ring if is_split else NoLaps(), is_split)
        except BaseException:
            self._ring.abandon()
            raise
        self._ring.finish()

    def collect(self) -> list[tuple[int, DeviceTime | None]]:
        """(step id, device time by class) that became known since the last call; None: lost. Never waits."""
        return [(timed.step_id, self._split(timed)) for timed in self._ring.collect()]

    def learn(self, key: str, forward_ns: DeviceTime) -> None:
        """How the forward pass of steps with this key divides into classes."""
        total = sum(forward_ns[op] for op in _FORWARD)
        if total > 0:
            self._shares[key] = tuple(forward_ns[op] / total for op in _FORWARD)

    def _split(self, timed: TimedStep) -> DeviceTime | None:
        device_ns = timed.device_ns
        if device_ns is None:
            return None
        if timed.is_split:
            self.learn(timed.key, device_ns)
            return device_ns
        shares = self._shares.get(timed.key)
        if shares is None:
            return device_ns
        parts = list(device_ns)
        whole = device_ns.other
        for op, share in zip(_FORWARD, shares, strict=True):
            parts[op] = round(whole * share)
        # Rounding must not change the sum; `other` takes what is left.
        parts[optime.OTHER] += whole - sum(parts[op] for op in _FORWARD)
        return DeviceTime(*parts)
