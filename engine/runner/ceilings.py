"""What a device can do at best, from a short run at start: the numbers that a step's bytes and FLOPs are held against."""

from collections.abc import Callable
from time import perf_counter

import torch

_SECONDS = 0.05
_SMALL_EDGE = 256


def best_rate(run: Callable[[], object], wait: Callable[[], None], work: float, *, repeat: int = 1) -> float:
    """`work` per second in the fastest of the rounds that fit into a twentieth of a second; at least one after a warm-up.

    A ceiling is wanted, not an average. `wait` returns when the device has done what was asked of it; `repeat` runs share
    one wait, so that it costs nothing against them.
    """
    run()
    wait()
    best = float("inf")
    deadline = perf_counter() + _SECONDS
    while best == float("inf") or perf_counter() < deadline:
        start = perf_counter()
        for _ in range(repeat):
            run()
        wait()
        best = min(best, perf_counter() - start)
    return work * repeat / best


def measure_flops(
    device: torch.device, dtype: torch.dtype, wait: Callable[[], None], *, edge: int, repeat: int = 1
) -> float:
    """FLOP/s of a square matrix product in `dtype`: what prefill's linear layers consist of.

    Random values: products of zeros can run faster. `edge` is used unless the device is so slow in this type (half
    precision on a CPU without instructions for it) that a smaller product already takes long enough to measure.
    """
    small = _multiply_rate(device, dtype, wait, min(edge, _SMALL_EDGE), repeat)
    if 2 * edge**3 / small > _SECONDS:
        return small
    return max(small, _multiply_rate(device, dtype, wait, edge, repeat))


def measure_bandwidth(device: torch.device, wait: Callable[[], None], num_bytes: int) -> float:
    """Bytes per second: the better of a sum over `num_bytes` (read) and a copy of half of them (read and written)."""
    values = torch.randn(num_bytes // 4, device=device)
    source, target = values.chunk(2)
    reading = best_rate(values.sum, wait, num_bytes, repeat=4)
    copying = best_rate(lambda: target.copy_(source), wait, num_bytes, repeat=4)
    return max(reading, copying)


def _multiply_rate(device: torch.device, dtype: torch.dtype, wait: Callable[[], None], edge: int, repeat: int) -> float:
    left, right = (torch.randn((edge, edge), device=device).to(dtype) for _ in range(2))
    product = torch.empty((edge, edge), device=device, dtype=dtype)
    # Transposed, as a linear layer has its weights: some types have a fast path for this order alone.
    return best_rate(lambda: torch.mm(left, right.t(), out=product), wait, 2.0 * edge**3, repeat=repeat)
