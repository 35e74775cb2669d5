"""Kernel names as a profiler shows them -> classes of device work, for what runs inside a captured graph.

First match wins. Only a forward pass runs inside a graph, so no name stands for sampling.
"""

import re
from collections.abc import Callable, Iterable

import torch

from probes.records import DeviceTime, OpClass

_PATTERNS = [
    (OpClass.KV_WRITE, r"^_write$|_write_|index_copy|indexCopy"),
    (OpClass.ATTENTION_PREFILL, r"_prefill_tile"),
    (OpClass.ATTENTION_DECODE, r"_decode_split|^_combine|flash|fmha|attn|attention"),
    (OpClass.GEMM, r"gemm|gemv|cutlass|cublas|nvjet|splitk|wgmma|xmma|matmul|dot_kernel"),
    (OpClass.COMM, r"nccl"),
    (OpClass.COPY, r"^mem(cpy|set)"),
    (
        OpClass.NORM_ROPE_ACT,
        r"rms|norm|silu|sigmoid|elementwise|vectorized|addcmul|catarray|mul|add|reduce|pow|rsqrt|index|gather|triton_",
    ),
]
_COMPILED = [(op, re.compile(pattern, re.IGNORECASE)) for op, pattern in _PATTERNS]
_ORDER = list(OpClass)


def class_of(kernel: str) -> OpClass:
    for op, pattern in _COMPILED:
        if pattern.search(kernel):
            return op
    return OpClass.OTHER


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
