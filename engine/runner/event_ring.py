"""Device time of steps from a ring of events: recorded beside the work, read when the device has passed them.

Nothing here waits for the device. A step's slot is read by a later `collect`, oldest first; a slot that the ring comes
round to before it could be read is lost, and says so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from probes.records import DeviceTime, OpClass


class TimingEvent(Protocol):
    """A mark on the device's stream; `torch.cuda.Event(enable_timing=True)` is one."""

    def record(self) -> None: ...

    def query(self) -> bool:
        """Whether the device has passed it. Never waits."""
        ...

    def elapsed_time(self, end_event: "TimingEvent") -> float:
        """Milliseconds between two marks that the device has passed."""
        ...


class TimedStep(NamedTuple):
    """`device_ns` is None for a step whose time was lost."""

    step_id: int
    key: str
    """What kind of work it was: steps with one key split into classes alike."""
    is_split: bool
    """False when the forward pass was timed as a whole, booked as `other`."""
    device_ns: DeviceTime | None


@dataclass(slots=True)
class _Slot:
    events: list[TimingEvent] = field(default_factory=list)
    """Grows to the most marks a step ever had, and is used again."""
    ops: list[int] = field(default_factory=list)
    """The class of the work before mark i + 1."""
    step_id: int = 0
    key: str = ""
    is_split: bool = False
    is_pending: bool = False


class EventRing:
    """One step is open at a time: `begin`, any number of `lap`, then `finish` or `abandon`. Implements `Laps`."""

    def __init__(self, new_event: Callable[[], TimingEvent], num_steps: int = 64) -> None:
        self._new_event = new_event
        self._slots = [_Slot() for _ in range(num_steps)]
        self._next = 0
        self._oldest = 0
        self._lost: list[TimedStep] = []
        self._open = self._slots[0]

    def begin(self, step_id: int, key: str, *, is_split: bool) -> None:
        slot = self._slots[self._next % len(self._slots)]
        if slot.is_pending:
            self._lost.append(TimedStep(slot.step_id, slot.key, slot.is_split, None))
            slot.is_pending = False
            self._oldest += 1
        slot.step_id, slot.key, slot.is_split = step_id, key, is_split
        slot.ops.clear()
        self._open = slot
        self._mark(0)

    def lap(self, op: int) -> None:
        """Everything since the previous mark was of class `op`."""
        ops = self._open.ops
        ops.append(op)
        self._mark(len(ops))

    def finish(self) -> None:
        """The step is over; its time will be collected. A step without a lap has none."""
        if self._open.ops:
            self._open.is_pending = True
            self._next += 1

    def abandon(self) -> None:
        """The step failed: its slot is used again, and nothing is reported."""
        self._open.ops.clear()

    def collect(self) -> list[TimedStep]:
        """What became known since the last call, in order of steps; lost ones first."""
        known, self._lost = self._lost, []
        while self._oldest < self._next:
            slot = self._slots[self._oldest % len(self._slots)]
            if not slot.events[len(slot.ops)].query():
                break
            known.append(TimedStep(slot.step_id, slot.key, slot.is_split, _read(slot)))
            slot.is_pending = False
            self._oldest += 1
        return known

    def _mark(self, index: int) -> None:
        events = self._open.events
        if index == len(events):
            events.append(self._new_event())
        events[index].record()


def _read(slot: _Slot) -> DeviceTime:
    sums = [0] * len(OpClass)
    for index, op in enumerate(slot.ops):
        sums[op] += round(slot.events[index].elapsed_time(slot.events[index + 1]) * 1e6)
    return DeviceTime(*sums)
