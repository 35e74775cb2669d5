"""A torch-profiler (Chrome) trace as a source: kernels by class, attached to the steps that annotations mark.

Events come in any order, so that kernels and launches are kept as columns of numbers until the file ends: some thirty
bytes for what takes four hundred in the file, and never more than `MAX_KERNELS` of them.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from diagnose.kernel_profile import KernelProfile, ProfiledStep
from diagnose.sources.trace_events import TraceEvent, TraceFile, base_of, device_of, rank_of
from diagnose.sources.trace_head import is_trace
from diagnose.units import printable
from probes.kernel_patterns import ATTENTION, KernelClass, attention_phase, kernel_class
from probes.records import StepKind
from probes.step_spans import StepSpan, parse_step_span

__all__ = ["MAX_KERNELS", "is_trace", "read_trace"]

MAX_KERNELS = 8_000_000
"""About 4 GB of trace and 500 MB of memory: what comes after is left out, and the profile says that it is cut off."""

_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
_RUNTIME = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "Runtime"})
_CLASSES = tuple(KernelClass)
_INDEX = {kind: index for index, kind in enumerate(_CLASSES)}
_PHASES = (None, StepKind.DECODE, StepKind.PREFILL)
_KV_WRITE = _INDEX[KernelClass.KV_WRITE]
_UNCLASSIFIED = _INDEX[KernelClass.UNCLASSIFIED]


def read_trace(path: Path, on_progress: Callable[[float], None] = lambda _: None) -> KernelProfile:
    """Reads one file, plain or gzip. Raises SourceError when it cannot be read or is no trace."""
    trace = TraceFile(path, on_progress)
    columns = _Columns()
    profile = KernelProfile(str(path))
    for event in trace:
        profile.num_events += 1
        if not columns.add(event):
            profile.is_cut_off = True
            break
    profile.is_cut_off |= trace.is_cut_off
    profile.num_unreadable = trace.num_unreadable
    profile.base_ns = base_of(trace.header)
    profile.rank, profile.device = rank_of(trace.header), device_of(trace.header)
    _assemble(columns, profile)
    return profile


class _Columns:
    """What is kept of the events, in their order."""

    def __init__(self) -> None:
        self.start = array("q")
        self.duration = array("q")
        self.kind = array("B")
        self.phase = array("B")
        self.grid = array("i")
        self.correlation = array("q")
        self.launch_start = array("q")
        self.launch_correlation = array("q")
        self.launch_is_kernel = array("B")
        self.host_spans: list[tuple[int, StepSpan]] = []
        self.device_spans: list[tuple[int, StepSpan]] = []
        self.sync_wait_ns = 0
        self.totals = [0] * len(_CLASSES)
        self.unclassified: Counter[str] = Counter()
        self._names: dict[str, tuple[int, bool]] = {}
        """Class of a kernel's name, and whether it shows a phase."""

    def add(self, event: TraceEvent) -> bool:
        """False when there is no room for another kernel."""
        category = event.cat
        if event.ph != "X":
            return True
        if category in _DEVICE:
            if len(self.start) == MAX_KERNELS:
                return False
            self._kernel(event)
        elif category in _RUNTIME:
            self._launch(event)
        elif category in ("user_annotation", "gpu_user_annotation"):
            span = parse_step_span(event.name)
            if span is not None:
                spans = self.host_spans if category == "user_annotation" else self.device_spans
                spans.append((_ns(event.ts), span))
        return True

    def _kernel(self, event: TraceEvent) -> None:
        args, name = event.args, event.name
        grid = args.grid[0] if args is not None and args.grid else 0
        known = self._names.get(name)
        if known is None:
            found = kernel_class(name)
            known = self._names[name] = (_INDEX[found], found in ATTENTION)
        kind, is_attention = known
        duration = _ns(event.dur)
        self.totals[kind] += duration
        if kind == _UNCLASSIFIED:
            self.unclassified[name] += duration
        self.start.append(_ns(event.ts))
        self.duration.append(duration)
        self.kind.append(kind)
        self.phase.append(_PHASES.index(attention_phase(name, grid)) if is_attention else 0)
        self.grid.append(grid)
        self.correlation.append(-1 if args is None else args.correlation)

    def _launch(self, event: TraceEvent) -> None:
        name, args = event.name, event.args
        if "Synchronize" in name:
            self.sync_wait_ns += _ns(event.dur)
            return
        is_kernel = "Launch" in name
        if args is None or args.correlation < 0 or not (is_kernel or "Memcpy" in name or "Memset" in name):
            return
        self.launch_start.append(_ns(event.ts))
        self.launch_correlation.append(args.correlation)
        self.launch_is_kernel.append(is_kernel)


def _ns(microseconds: float) -> int:
    return int(microseconds * 1e3 + 0.5)


def _assemble(columns: _Columns, profile: KernelProfile) -> None:
    profile.num_kernels = len(columns.start)
    profile.num_launches = sum(columns.launch_is_kernel)
    profile.sync_wait_ns = columns.sync_wait_ns
    profile.unclassified_ns = {printable(name)[:120]: ns for name, ns in columns.unclassified.most_common(3)}
    profile.class_ns = {kind: ns for kind, ns in zip(_CLASSES, columns.totals, strict=True) if ns}
    profile.num_lost_kernels = _lost_kernels(columns)
    spans = sorted(columns.host_spans or columns.device_spans, key=lambda item: item[0])
    profile.steps = [ProfiledStep(span) for _, span in spans]
    if profile.steps:
        _attach(columns, profile, [start for start, _ in spans])


def _lost_kernels(columns: _Columns) -> int:
    """Launches whose kernel is not in the file. One launch of a graph stands for all of its kernels."""
    seen = _ByCorrelation(columns.correlation)
    for correlation in columns.correlation:
        seen[correlation] = 1
    pairs = zip(columns.launch_correlation, columns.launch_is_kernel, strict=True)
    return sum(is_kernel and seen[correlation] < 0 for correlation, is_kernel in pairs)


class _ByCorrelation:
    """Correlation id -> number, -1 where none was set. A plain column, since profilers count the ids up one by one."""

    def __init__(self, ids: "array[int]") -> None:
        """ids: all that will be set."""
        self._low = min(ids, default=0)
        size = max(ids, default=-1) - self._low + 1
        self._sparse: dict[int, int] | None = {} if size > _MAX_DENSE else None
        self._dense = array("i", [-1]) * (0 if self._sparse is not None else size)

    def __setitem__(self, correlation: int, value: int) -> None:
        if self._sparse is not None:
            self._sparse[correlation] = value
        else:
            self._dense[correlation - self._low] = value

    def __getitem__(self, correlation: int) -> int:
        if self._sparse is not None:
            return self._sparse.get(correlation, -1)
        place = correlation - self._low
        return self._dense[place] if 0 <= place < len(self._dense) else -1


_MAX_DENSE = 1 << 26


def _attach(columns: _Columns, profile: KernelProfile, starts: list[int]) -> None:
    """Gives every kernel to the step whose span began last before its launch; what follows a span (sampling) is its step's.

    Without launches, or for kernels whose launch is not in the file, the kernel's own start decides, which is right for
    spans on the device's clock.
    """
    launched = _launch_steps(columns, starts, profile) if columns.host_spans else _ByCorrelation(array("q"))
    device_starts = sorted(start for start, _ in columns.device_spans)
    same_spans = len(device_starts) == len(starts)
    owner = array("i", bytes(4 * len(columns.start)))
    for index, correlation in enumerate(columns.correlation):
        step = launched[correlation]
        if step < 0:
            step = bisect_right(device_starts, columns.start[index]) - 1 if same_spans else -1
        owner[index] = step
    for step, members in _by_owner(owner, len(starts)):
        if step < 0:
            profile.unattached_ns = sum(columns.duration[index] for index in members)
        else:
            _fill(profile.steps[step], columns, members)


def _launch_steps(columns: _Columns, starts: list[int], profile: KernelProfile) -> _ByCorrelation:
    """The step in which each launch was made."""
    steps = _ByCorrelation(columns.launch_correlation)
    for start, correlation in zip(columns.launch_start, columns.launch_correlation, strict=True):
        index = bisect_right(starts, start) - 1
        if index < 0:
            continue
        steps[correlation] = index
        step = profile.steps[index]
        if step.first_launch_ns is None or start < step.first_launch_ns:
            step.first_launch_ns = start
    return steps


def _by_owner(owner: "array[int]", num_steps: int) -> Iterator[tuple[int, "array[int]"]]:
    """(step, its kernels) for every step that has some; -1 stands for none. A counting sort: memory for one column."""
    ends = [0] * (num_steps + 1)
    for step in owner:
        ends[step + 1] += 1
    for index in range(num_steps):
        ends[index + 1] += ends[index]
    places = [0, *ends[:-1]]
    order = array("i", bytes(4 * len(owner)))
    for index, step in enumerate(owner):
        order[places[step + 1]] = index
        places[step + 1] += 1
    begin = 0
    for step, end in enumerate(ends, -1):
        if end > begin:
            yield step, order[begin:end]
        begin = end


def _fill(step: ProfiledStep, columns: _Columns, members: "array[int]") -> None:
    ordered = sorted(members, key=columns.start.__getitem__)
    step.num_kernels = len(ordered)
    step.start_ns = step.end_ns = columns.start[ordered[0]]
    tokens: Counter[int] = Counter()
    phases: set[StepKind | None] = set()
    for index in ordered:
        start, duration, kind = columns.start[index], columns.duration[index], columns.kind[index]
        end = start + duration
        step.end_ns = max(step.end_ns, end)
        name = _CLASSES[kind]
        step.class_ns[name] = step.class_ns.get(name, 0) + duration
        if kind == _KV_WRITE:
            step.num_kv_writes += 1
            tokens[columns.grid[index]] += 1
        phases.add(_PHASES[columns.phase[index]])
    known = phases - {None}
    if known:
        step.attention = StepKind.PREFILL if StepKind.PREFILL in known else StepKind.DECODE
    if tokens and (most := tokens.most_common(1)[0][0]) > 0:
        step.kv_write_tokens = most
