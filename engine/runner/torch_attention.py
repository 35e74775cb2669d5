"""Paged attention in plain torch: the reference, and the default on the CPU.

kv          [layers, 2, num_blocks, block_size, kv_heads, head_dim]
slot        block_id * block_size + offset: a row of one layer's K or V seen as [slots, kv_heads, head_dim]
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.step import BatchPlan, BlockCopy
from probes import optime
from probes.optime import LapTimer

_PADDING_RATIO = 1.25
_PADDING_TOKENS = 64
"""A decode joins a bucket while padding costs it at most a quarter of its own context, or this many tokens."""


@dataclass(slots=True)
class _DecodeBucket:
    rows: Tensor
    """[n] rows of the batch."""
    blocks: Tensor
    """[n * max_blocks] physical blocks, padded with block 0."""
    max_blocks: int
    visible: Tensor
    """[n, 1, 1, max_blocks * block_size] bool: which gathered positions belong to the sequence."""


@dataclass(slots=True)
class _PrefillChunk:
    first_row: int
    num_rows: int
    blocks: Tensor
    """[blocks] physical blocks of the sequence up to this chunk's end."""
    context_len: int
    visible: Tensor | None
    """[num_rows, context_len] bool; None when the chunk starts at position 0 and plain causal masking is exact."""


class TorchPagedAttention:
    """Owns the KV memory. `begin` lays out a step, then `attend` runs once per layer."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_query_heads: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> None:
        self._num_query_heads = num_query_heads
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._block_size = block_size
        self.kv = torch.empty((num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim), dtype=dtype)
        # Writing touches every page, so that the pool is resident from the start; zeros, because padding and the
        # unwritten tail of a last block are multiplied by a weight of 0 and must be finite.
        self.kv.zero_()
        self._slots = torch.empty(0, dtype=torch.int64)
        self._buckets: list[_DecodeBucket] = []
        self._chunks: list[_PrefillChunk] = []

    @property
    def num_bytes(self) -> int:
        return self.kv.numel() * self.kv.element_size()

    def copy_blocks(self, copies: list[BlockCopy]) -> None:
        """Copies in order: a later copy may read what an earlier one wrote."""
        for source, target, num_tokens in copies:
            self.kv[:, :, target, :num_tokens] = self.kv[:, :, source, :num_tokens]

    def begin(self, plan: BatchPlan) -> None:
        self._slots = torch.tensor(plan.slots, dtype=torch.int64)
        self._buckets = [self._decode_bucket(plan, rows) for rows in _length_buckets(plan)]
        self._chunks = []
        row = plan.num_decode_seqs
        for sequence in range(plan.num_decode_seqs, len(plan.query_lens)):
            self._chunks.append(self._prefill_chunk(plan, sequence, row))
            row += plan.query_lens[sequence]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, timer: LapTimer) -> Tensor:
        """See `engine.model.decoder.Attention`."""
        keys, values = self.kv[layer, 0], self.kv[layer, 1]
        flat = (-1, self._num_kv_heads, self._head_dim)
        keys.view(flat).index_copy_(0, self._slots, key)
        values.view(flat).index_copy_(0, self._slots, value)
        timer.lap(optime.KV_WRITE)
        output = torch.empty_like(query)
        for bucket in self._buckets:
            output[bucket.rows] = self._decode(bucket, query[bucket.rows], keys, values)
        if self._buckets:
            timer.lap(optime.ATTENTION_DECODE)
        for chunk in self._chunks:
            rows = slice(chunk.first_row, chunk.first_row + chunk.num_rows)
            output[rows] = self._prefill(chunk, query[rows], keys, values)
        if self._chunks:
            timer.lap(optime.ATTENTION_PREFILL)
        return output.view(query.shape[0], -1)

    def _decode(self, bucket: _DecodeBucket, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [n, heads, head_dim]. The query heads that share a KV head become rows of one small matrix, so that the
        gathered K and V are read once per KV head."""
        num_seqs = query.shape[0]
        grouped = query.view(num_seqs, self._num_kv_heads, -1, self._head_dim)
        shape = (num_seqs, bucket.max_blocks * self._block_size, self._num_kv_heads, self._head_dim)
        gathered_keys = keys.index_select(0, bucket.blocks).view(shape).transpose(1, 2)
        gathered_values = values.index_select(0, bucket.blocks).view(shape).transpose(1, 2)
        attended = F.scaled_dot_product_attention(grouped, gathered_keys, gathered_values, attn_mask=bucket.visible)
        return attended.reshape(query.shape)

    def _prefill(self, chunk: _PrefillChunk, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [rows, heads, head_dim]: attends to the sequence's history and causally within the chunk."""
        flat = (-1, self._num_kv_heads, self._head_dim)
        gathered_keys = keys.index_select(0, chunk.blocks).view(flat)[: chunk.context_len]
        gathered_values = values.index_select(0, chunk.blocks).view(flat)[: chunk.context_len]
        attended = F.scaled_dot_product_attention(
            query.transpose(0, 1).unsqueeze(0),
            gathered_keys.transpose(0, 1).unsqueeze(0),
            gathered_values.transpose(0, 1).unsqueeze(0),
            attn_mask=chunk.visible,
            is_causal=chunk.visible is None,
            enable_gqa=True,
        )
        return attended.squeeze(0).transpose(0, 1)

    def _decode_bucket(self, plan: BatchPlan, rows: list[int]) -> _DecodeBucket:
        tables = [plan.block_tables[row] for row in rows]
        max_blocks = max(map(len, tables))
        padded = [block for table in tables for block in table + [0] * (max_blocks - len(table))]
        lengths = torch.tensor([plan.context_lens[row] for row in rows])
        visible = torch.arange(max_blocks * self._block_size) < lengths.unsqueeze(1)
        return _DecodeBucket(torch.tensor(rows), torch.tensor(padded), max_blocks, visible[:, None, None, :])

    def _prefill_chunk(self, plan: BatchPlan, sequence: int, first_row: int) -> _PrefillChunk:
        context_len, num_rows = plan.context_lens[sequence], plan.query_lens[sequence]
        start = context_len - num_rows
        visible = None
        if start:
            # Row i is position start + i and sees positions 0..start + i.
            visible = torch.arange(context_len) <= torch.arange(start, context_len).unsqueeze(1)
        blocks = torch.tensor(plan.block_tables[sequence])
        return _PrefillChunk(first_row, num_rows, blocks, context_len, visible)


def _length_buckets(plan: BatchPlan) -> list[list[int]]:
    """Decode rows grouped by context length, longest first, so that the padding of a batched gather stays bounded."""
    buckets: list[list[int]] = []
    longest = 0
    for row in sorted(range(plan.num_decode_seqs), key=plan.context_lens.__getitem__, reverse=True):
        length = plan.context_lens[row]
        if not buckets or longest > max(length * _PADDING_RATIO, length + _PADDING_TOKENS):
            buckets.append([])
            longest = length
        buckets[-1].append(row)
    return buckets
