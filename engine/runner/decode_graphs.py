"""Decode steps captured once per batch size and replayed: a step of many small kernels then costs one launch.

A batch runs in the smallest captured size that holds it. The rows beyond it read and write a block that belongs to no
sequence; their logits are not looked at.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from engine.model.decoder import Decoder
from engine.runner.attention.layout import StepLayout, pack_step, pad_decodes
from engine.runner.attention.paged import StepAttention
from engine.runner.device import Device
from engine.runner.staging import Staging
from engine.step import BatchPlan
from probes.optime import NoLaps

_LARGEST = 512


class _Graph(NamedTuple):
    replay: Callable[[], None]
    logits: Tensor
    """[size, vocab], overwritten by each replay."""


def graph_sizes(max_sequences: int) -> list[int]:
    """1, 2, 4, 8 and multiples of 8, then of 16 and 32: a batch is padded by at most a sixth from 48 on."""
    steps = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, _LARGEST + 1, 32)]
    limit = min(max_sequences, _LARGEST)
    sizes = [size for size in steps if size < limit]
    return [*sizes, limit]


def padded_size(sizes: list[int], num_rows: int) -> int | None:
    """The smallest of the sorted sizes that holds `num_rows`."""
    return next((size for size in sizes if size >= num_rows), None)


class DecodeGraphs:
    def __init__(
        self,
        device: Device,
        decoder: Decoder,
        attention: StepAttention,
        *,
        max_sequences: int,
        num_blocks: int,
        block_size: int,
    ) -> None:
        """num_blocks: of the pool; the block after the last one is the padding's."""
        self.sizes = graph_sizes(max_sequences)
        self._device = device
        self._decoder = decoder
        self._attention = attention
        self._pad_block, self._block_size = num_blocks, block_size
        width = min(num_blocks, -(-decoder.config.max_position // block_size))
        # What the graphs read. Parts of a layout lie one after the other, for each size from the start of `_inputs`.
        torch_device = device.torch_device
        self._inputs = torch.zeros(4 * self.sizes[-1], dtype=torch.int32, device=torch_device)
        self._tables = torch.full((self.sizes[-1], width), num_blocks, dtype=torch.int32, device=torch_device)
        self._graphs: dict[int, _Graph] = {}

    def capture(self) -> None:
        """All sizes, largest first, so that the smaller ones find room in its memory. Seconds in all."""
        for size in reversed(self.sizes):
            layout = self._layout(size)
            rows = torch.arange(size, device=self._device.torch_device)

            def run(layout: StepLayout = layout, rows: Tensor = rows) -> Tensor:
                self._attention.use(layout)
                return self._decoder.forward(layout.token_ids, layout.positions, rows, self._attention, NoLaps())

            self._graphs[size] = _Graph(*self._device.capture(run))

    def size_for(self, plan: BatchPlan) -> int | None:
        """The size that this plan runs in; None when it is not made of decodes alone or too large."""
        num_rows = len(plan.token_ids)
        if plan.num_decode_seqs != len(plan.query_lens) or plan.sample_rows != list(range(num_rows)):
            return None
        return padded_size(self.sizes, num_rows)

    def replay(self, plan: BatchPlan, size: int, staging: Staging) -> Tensor:
        """Logits [rows of the plan, vocab], valid until the next replay."""
        packed = pack_step(pad_decodes(plan, size, self._pad_block, self._block_size))
        arrived = staging.send(packed.values)
        tables = packed.unpack(arrived).block_tables
        self._inputs[: 4 * size].copy_(arrived[: 4 * size])
        # Columns beyond the longest table keep older entries: no sequence is long enough to look there.
        self._tables[:size, : tables.shape[1]].copy_(tables)
        self.repeat(size)
        return self._graphs[size].logits[: len(plan.token_ids)]

    def repeat(self, size: int) -> None:
        """Replays with the inputs that are there: the same KV to the same slots, the same logits."""
        self._graphs[size].replay()

    def _layout(self, size: int) -> StepLayout:
        token_ids, positions, slots, context_lens = self._inputs[: 4 * size].view(4, size)
        slots.fill_(self._pad_block * self._block_size)
        context_lens.fill_(1)
        none = torch.empty(0, dtype=torch.int32, device=self._device.torch_device)
        empty = BatchPlan([], [], [], [], [], [], 0, [], [], [])
        plan = pad_decodes(empty, size, self._pad_block, self._block_size)
        return StepLayout(
            plan=plan,
            num_decodes=size,
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            context_lens=context_lens,
            prefill_starts=none,
            kv_starts=none,
            sample_rows=none,
            block_tables=self._tables[:size],
            max_query_len=0,
            max_prefill_context=0,
        )
