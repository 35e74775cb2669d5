"""Paged attention whose steps are laid out on the host, from the plan: what torch's and the compiled one share.

kv          [layers, 2, num_blocks, block_size, kv_heads, head_dim]
slot        block_id * block_size + offset: a row of one layer's K or V seen as [slots, kv_heads, head_dim]
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from engine.runner.attention.layout import StepLayout
from engine.step import BatchPlan
from probes import optime
from probes.optime import Laps


class HostPagedAttention(ABC):
    """Owns the KV memory. `begin` lays out a step, then `attend` runs once per layer. On the CPU unless told otherwise."""

    name: ClassVar[str]
    supports_graphs = False

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        self._device = device or torch.device("cpu")
        shape = (num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim)
        self.kv = torch.empty(shape, dtype=dtype, device=self._device)
        # Writing touches every page, so that the pool is resident from the start; zeros, because padding and the
        # unwritten tail of a last block are multiplied by a weight of 0 and must be finite.
        self.kv.zero_()
        self._slots = torch.empty(0, dtype=torch.int64)
        self._num_decodes = 0
        self._has_chunks = False

    def use(self, layout: StepLayout) -> None:
        """See `engine.runner.attention.paged.StepAttention`."""
        self.begin(layout.plan)

    def begin(self, plan: BatchPlan) -> None:
        self._slots = torch.tensor(plan.slots, dtype=torch.int64, device=self._device)
        self._num_decodes = plan.num_decode_seqs
        self._has_chunks = plan.num_decode_seqs < len(plan.query_lens)
        if self._num_decodes:
            self._begin_decodes(plan)
        if self._has_chunks:
            self._begin_chunks(plan)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, timer: Laps) -> Tensor:
        """See `engine.model.decoder.Attention`."""
        keys, values = self.kv[layer, 0], self.kv[layer, 1]
        self._store(key, value, keys, values)
        timer.lap(optime.KV_WRITE)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        count = self._num_decodes
        if count:
            self._attend_decodes(query[:count], keys, values, output[:count])
            timer.lap(optime.ATTENTION_DECODE)
        if self._has_chunks:
            self._attend_chunks(query[count:], keys, values, output[count:])
            timer.lap(optime.ATTENTION_PREFILL)
        return output.view(query.shape[0], -1)

    # keys, values: one layer's pool, [blocks, block_size, kv_heads, head_dim].

    @abstractmethod
    def _store(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> None:
        """Writes key and value [tokens, kv_heads, head_dim] to `_slots`."""

    @abstractmethod
    def _begin_decodes(self, plan: BatchPlan) -> None:
        """Called for a step that has decodes."""

    @abstractmethod
    def _attend_decodes(self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor) -> None:
        """query, output [decodes, heads, head_dim], one row per sequence."""

    @abstractmethod
    def _begin_chunks(self, plan: BatchPlan) -> None:
        """Called for a step that has chunks of prompts."""

    @abstractmethod
    def _attend_chunks(self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor) -> None:
        """query, output [rows of the chunks, heads, head_dim]: each attends to its sequence's history and causally within
        its chunk."""
