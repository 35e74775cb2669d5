"""A device that is the CPU: captures are functions run again, events tell a clock that the test can hold back."""

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns

import torch
from torch import Tensor

from engine.runner.attention.backends import AttentionSpec, Backend, paged
from engine.runner.attention.layout import StepLayout
from engine.runner.event_ring import TimingEvent


class FakeEvent:
    def __init__(self, device: "FakeDevice") -> None:
        self._device = device
        self.number = 0
        self.time_ns = 0

    def record(self) -> None:
        self._device.recorded += 1
        self.number = self._device.recorded
        self.time_ns = self._device.now_ns()

    def query(self) -> bool:
        return self.number <= self._device.recorded - self._device.lag

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        assert self.query() and end_event.query(), "read before the device passed it"
        return (end_event.time_ns - self.time_ns) / 1e6


class FakeDevice:
    """`lag`: how many marks the device is behind; 0: everything is done at once."""

    torch_device = torch.device("cpu")
    name = "fake device"
    capability: tuple[int, int] | None = None
    num_processors = 4

    def __init__(self, lag: int = 0, memory: int = 1 << 30) -> None:
        self.lag = lag
        self.memory = memory
        self.recorded = 0
        self.num_events = 0
        self.num_waits = 0
        self.num_captures = 0
        self.num_replays = 0
        self.now_ns: Callable[[], int] = perf_counter_ns

    def usable_memory(self) -> int:
        return self.memory

    def new_event(self) -> TimingEvent:
        self.num_events += 1
        return FakeEvent(self)  # type: ignore[return-value]

    def host_buffer(self, num_values: int) -> Tensor:
        return torch.empty(num_values, dtype=torch.int32)

    def wait(self) -> None:
        self.num_waits += 1

    def capture(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        self.num_captures += 1
        result = run().clone()

        def replay() -> None:
            self.num_replays += 1
            result.copy_(run())

        return replay, result

    def measure_bandwidth(self) -> float:
        return 1e9

    def measure_flops(self, dtype: torch.dtype) -> float:
        return 2e9


class LoopKernels:
    """Paged attention, one sequence and one row at a time, out of what the device would have: the layout's tensors."""

    name = "loops"

    def begin(self, layout: StepLayout) -> None:
        self.slots = layout.slots.long()

    def write(self, layout: StepLayout, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> None:
        keys.view(-1, *key.shape[1:])[self.slots] = key
        values.view(-1, *key.shape[1:])[self.slots] = value

    def decode(self, layout: StepLayout, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        output = torch.empty_like(query)
        for row in range(query.shape[0]):
            history = _history(layout, row, keys, values)
            output[row] = _attend(query[row], *history)
        return output

    def prefill(self, layout: StepLayout, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        output = torch.empty_like(query)
        starts = layout.prefill_starts.tolist()
        for chunk, (first, last) in enumerate(pairwise(starts)):
            own_keys, own_values = _history(layout, layout.num_decodes + chunk, keys, values)
            for row in range(first, last):
                seen = own_keys.shape[0] - (last - 1 - row)
                output[row] = _attend(query[row], own_keys[:seen], own_values[:seen])
        return output


def _history(layout: StepLayout, sequence: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    length = int(layout.context_lens[sequence])
    blocks = layout.block_tables[sequence, : -(-length // keys.shape[1])].long()
    return keys[blocks].flatten(0, 1)[:length], values[blocks].flatten(0, 1)[:length]


def _attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """query [heads, dim], keys [length, kv_heads, dim]"""
    group = query.shape[0] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    weights = (torch.einsum("hd,khd->hk", query, keys) * query.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("hk,khd->hd", weights, values)


def _never(spec: AttentionSpec) -> str | None:
    return None


LOOPS = Backend(_never, lambda spec: paged(LoopKernels(), spec))
"""A backend that supports graphs, for `monkeypatch.setitem(BACKENDS, "loops", LOOPS)`."""
