"""Times of kernels as a profiler shows them -> time by class of device work, for what runs inside a captured graph."""

from collections.abc import Callable, Iterable

import torch

from probes.kernel_patterns import KernelClass, kernel_class, op_class
from probes.records import DeviceTime, OpClass, StepKind

_IN_A_FORWARD_PASS = {
    KernelClass.ELEMENTWISE: OpClass.NORM_ROPE_ACT,
    KernelClass.EMBEDDING: OpClass.NORM_ROPE_ACT,
    KernelClass.SAMPLING: OpClass.ATTENTION_DECODE,
}
"""Only a forward pass of decode rows is captured: what is pointwise or gathers in it is norms, rotation or activation, and a
softmax is attention's."""
_ORDER = list(OpClass)


def class_of(kernel: str) -> OpClass:
    kind = kernel_class(kernel)
    return _IN_A_FORWARD_PASS.get(kind) or op_class(kind, StepKind.DECODE)


def classify(kernels: Iterable[tuple[str, float]]) -> DeviceTime:
    """(name, microseconds) -> nanoseconds by class."""
    sums = [0.0] * len(_ORDER)
    for name, microseconds in kernels:
        sums[_ORDER.index(class_of(name))] += microseconds * 1e3
    return DeviceTime(*map(round, sums))


def profile(run: Callable[[], None], synchronize: Callable[[], None]) -> DeviceTime:
    """Runs once under torch's profiler and waits for it: tens of milliseconds, the first time a second."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        run()
        synchronize()
    events = profiler.events() or ()
    return classify((event.name, event.time_range.elapsed_us()) for event in events if event.device_type.name == "CUDA")
