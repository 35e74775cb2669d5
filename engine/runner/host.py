"""What this machine offers an engine that runs on its CPU: memory limit, name, read bandwidth, matrix products."""

import functools
import os
import platform
from pathlib import Path
from time import perf_counter, thread_time

import torch

from engine.errors import ConfigError
from engine.runner import ceilings

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_LLC_SIZE = "/sys/devices/system/cpu/cpu0/cache/index3/size"
_MIN_BUFFER_BYTES = 128 << 20
_MAX_BUFFER_BYTES = 512 << 20
_MEASURE_SECONDS = 0.1
_GEMM_EDGE = 768


def memory_limit_bytes() -> int:
    """The smaller of the container's limit and the physical memory."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        text = _read(path)
        if text.isdigit():  # "max" means no limit
            limit = min(limit, int(text))
    return limit


def cpu_name() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def set_threads(threads: int | None) -> int:
    """Sets torch's intra-op threads for the whole process; None keeps what torch chose. Returns the number in force."""
    if threads is not None:
        if threads < 1:
            raise ConfigError(f"threads must be at least 1, not {threads}")
        torch.set_num_threads(threads)
    return torch.get_num_threads()


@functools.cache
def measure_read_bandwidth(threads: int) -> float:
    """Bytes per second of streaming reads by `threads` threads, which must be in force; measured once per process.

    The buffer is larger than the last-level cache. The work is a matrix-vector product, which is what a decode step of
    one sequence does with the weights. Best of the passes that fit into the time: a ceiling is wanted, not an average.
    One thread is timed by its own CPU time, as its steps are: what other processes take is not the memory's fault.
    """
    assert torch.get_num_threads() == threads
    clock = thread_time if threads == 1 else perf_counter
    columns = 1024
    num_bytes = min(max(_MIN_BUFFER_BYTES, 4 * _llc_bytes()), _MAX_BUFFER_BYTES)
    matrix = torch.ones((num_bytes // (4 * columns), columns))
    vector = torch.ones(columns)
    matrix.mv(vector)
    best = float("inf")
    deadline = perf_counter() + _MEASURE_SECONDS
    while best == float("inf") or perf_counter() < deadline:
        start = clock()
        matrix.mv(vector)
        best = min(best, clock() - start)
    return matrix.numel() * 4 / best


@functools.cache
def measure_flops(threads: int, dtype: torch.dtype) -> float:
    """FLOP/s of matrix products by `threads` threads, which must be in force; measured once per process."""
    assert torch.get_num_threads() == threads
    return ceilings.measure_flops(torch.device("cpu"), dtype, lambda: None, edge=_GEMM_EDGE)


def _llc_bytes() -> int:
    text = _read(_LLC_SIZE)
    return int(text[:-1]) << 10 if text[:-1].isdigit() and text.endswith("K") else 0


def _read(path: str) -> str:
    """A kernel file's text; "" where this system does not have it."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
