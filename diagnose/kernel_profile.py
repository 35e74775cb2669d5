"""What a profiler says of one process: device time by class, and of a trace the steps that its annotations mark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from probes.kernel_patterns import KernelClass
from probes.records import StepKind
from probes.step_spans import StepSpan


@dataclass(slots=True)
class ProfiledStep:
    """One annotated step and the device work that was launched from its start to the next one's. Times on the trace's clock."""

    span: StepSpan
    start_ns: int = 0
    """First kernel's start."""
    end_ns: int = 0
    """Last kernel's end."""
    num_kernels: int = 0
    num_kv_writes: int = 0
    kv_write_tokens: int | None = None
    """Threads blocks of a KV write: one per token, padded where a captured graph replays it; None when not written."""
    class_ns: dict[KernelClass, int] = field(default_factory=dict)
    attention: StepKind | None = None
    """What the attention kernels show of the rows, where the annotation does not tell the phase."""
    first_launch_ns: int | None = None
    """When the host launched the first kernel; None without launch events."""

    @property
    def device_ns(self) -> int:
        """Sum over kernels; more than `busy_ns` where streams overlap."""
        return sum(self.class_ns.values())

    @property
    def comm_ns(self) -> int:
        return self.class_ns.get(KernelClass.COMM, 0)


@dataclass(slots=True)
class KernelProfile:
    """One trace file: one process of an engine, one rank of a group."""

    name: str
    rank: int | None = None
    device: str = ""
    base_ns: int | None = None
    """What to add to the trace's clock for wall time; None when the file does not say."""
    num_events: int = 0
    num_unreadable: int = 0
    is_cut_off: bool = False
    """The file ends in the middle of its events, or the reader stopped at its limit."""
    num_kernels: int = 0
    num_launches: int = 0
    num_lost_kernels: int = 0
    """Launches without a kernel of the same correlation id: the profiler dropped them."""
    class_ns: dict[KernelClass, int] = field(default_factory=dict)
    unclassified_ns: Mapping[str, int] = field(default_factory=dict)
    """By name, the longest ones."""
    unattached_ns: int = 0
    """Device time of kernels that belong to no step."""
    sync_wait_ns: int = 0
    """Time in which host threads waited for the device."""
    steps: list[ProfiledStep] = field(default_factory=list)

    @property
    def device_ns(self) -> int:
        return sum(self.class_ns.values())

    @property
    def form(self) -> str:
        """Whose annotations it has; empty without one."""
        return self.steps[0].span.form if self.steps else ""

    @property
    def length_seconds(self) -> float | None:
        """First kernel of the first step to the last kernel of the last one."""
        busy = [step for step in self.steps if step.num_kernels]
        return (busy[-1].end_ns - busy[0].start_ns) / 1e9 if busy else None

    @property
    def num_layers(self) -> int | None:
        """Layers as the KV writes count them: the most that a tenth of the steps reach, since lost kernels only lower the
        count; None when none is written."""
        counts = sorted((step.num_kv_writes for step in self.steps if step.num_kv_writes), reverse=True)
        return counts[len(counts) // 10] if counts else None


@dataclass(frozen=True, slots=True)
class KernelTotals:
    """A profiler's table: device time by kernel over a whole run. It knows no step, no order and no idle time."""

    form: str
    """Whose table it is."""
    class_ns: Mapping[KernelClass, float]
    """Of the kernels that are listed."""
    total_ns: float
    """Of all kernels, those that the table leaves out included; at least what is listed."""
    num_kernels: int
    """Launches of the listed ones."""
    comm_range_ns: tuple[float, float] | None = None
    """Shortest and longest collective; None without one, or when the table has no extremes."""

    @property
    def listed_share(self) -> float:
        return sum(self.class_ns.values()) / self.total_ns

    def share(self, *kinds: KernelClass) -> float:
        return sum(self.class_ns.get(kind, 0.0) for kind in kinds) / self.total_ns


def late_launch_share(profile: KernelProfile) -> float | None:
    """Share of the device's idle time between steps in which the next step had not been launched yet: the host was late.

    The rest is what a launch takes to arrive, or waits on the device. None without launches, or where the device never idles.
    """
    idle = late = 0
    busy = [step for step in profile.steps if step.num_kernels]
    for before, step in pairwise(busy):
        gap = step.start_ns - before.end_ns
        if gap > 0 and step.first_launch_ns is not None:
            idle += gap
            late += min(gap, max(0, step.first_launch_ns - before.end_ns))
    return late / idle if idle else None
