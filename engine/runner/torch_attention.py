"""Paged attention in plain torch: the reference, and the default on the CPU.

kv          [layers, 2, num_blocks, block_size, kv_heads, head_dim]
slot        block_id * block_size + offset: a row of one layer's K or V seen as [slots, kv_heads, head_dim]
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.runner.attention.layout import StepLayout
from engine.step import BatchPlan, BlockCopy
from probes import optime
from probes.optime import Laps

_PADDING_RATIO = 1.25
_PADDING_TOKENS = 64
"""A decode joins a bucket while padding costs it at most a quarter of its own context, or this many tokens."""
_GATHER_BYTES = 2 << 20
"""Gathered K (and V) of a bucket, unless one sequence alone needs more: small enough to be attended to from the cache,
where a gather of the whole batch would go to memory and back (2.5 times slower for 32 sequences of 1024 tokens)."""


@dataclass(slots=True)
class _DecodeBucket:
    rows: Tensor
    """[n] rows of the batch."""
    blocks: Tensor
    """[n * blocks of the longest] physical blocks, padded with block 0."""
    max_length: int
    visible: Tensor | None
    """[n, 1, 1, max_length] bool: which gathered positions belong to the sequence; None when all do."""


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
    """Owns the KV memory. `begin` lays out a step, then `attend` runs once per layer. On the CPU unless told otherwise."""

    name = "torch"
    supports_graphs = False

    def __init__(
        self,
        *,
        num_layers: int,
        num_query_heads: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        max_position: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._block_size = block_size
        self._device = device or torch.device("cpu")
        shape = (num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim)
        self.kv = torch.empty(shape, dtype=dtype, device=self._device)
        # Writing touches every page, so that the pool is resident from the start; zeros, because padding and the
        # unwritten tail of a last block are multiplied by a weight of 0 and must be finite.
        self.kv.zero_()
        # Gathers go to scratch memory allocated once: fresh pages for each of them would cost more than the copy.
        block_bytes = block_size * num_kv_heads * head_dim * self.kv.element_size()
        self._gather_blocks = max(1, _GATHER_BYTES // block_bytes)
        longest = min(num_blocks, -(-max_position // block_size))
        scratch_shape = (max(self._gather_blocks, longest), block_size, num_kv_heads, head_dim)
        self._key_scratch = torch.zeros(scratch_shape, dtype=dtype, device=self._device)
        self._value_scratch = torch.zeros(scratch_shape, dtype=dtype, device=self._device)
        self._slots = torch.empty(0, dtype=torch.int64)
        self._num_decodes = 0
        self._buckets: list[_DecodeBucket] = []
        self._chunks: list[_PrefillChunk] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the KV pool, without scratch memory."""
        return self.kv.numel() * self.kv.element_size()

    def copy_blocks(self, copies: list[BlockCopy]) -> None:
        """Copies in order: a later copy may read what an earlier one wrote."""
        for source, target, num_tokens in copies:
            self.kv[:, :, target, :num_tokens] = self.kv[:, :, source, :num_tokens]

    def use(self, layout: StepLayout) -> None:
        """See `engine.runner.attention.paged.StepAttention`."""
        self.begin(layout.plan)

    def begin(self, plan: BatchPlan) -> None:
        self._slots = torch.tensor(plan.slots, dtype=torch.int64, device=self._device)
        self._begin_decodes(plan)
        self._chunks = []
        row = plan.num_decode_seqs
        for sequence in range(plan.num_decode_seqs, len(plan.query_lens)):
            self._chunks.append(self._prefill_chunk(plan, sequence, row))
            row += plan.query_lens[sequence]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, timer: Laps) -> Tensor:
        """See `engine.model.decoder.Attention`."""
        keys, values = self.kv[layer, 0], self.kv[layer, 1]
        self._store(key, value, keys, values)
        timer.lap(optime.KV_WRITE)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if self._num_decodes:
            self._attend_decodes(query, keys, values, output)
            timer.lap(optime.ATTENTION_DECODE)
        for chunk in self._chunks:
            rows = slice(chunk.first_row, chunk.first_row + chunk.num_rows)
            output[rows] = self._prefill(chunk, query[rows], keys, values)
        if self._chunks:
            timer.lap(optime.ATTENTION_PREFILL)
        return output.view(query.shape[0], -1)

    # What compiled kernels do in their own way.

    def _begin_decodes(self, plan: BatchPlan) -> None:
        self._num_decodes = plan.num_decode_seqs
        self._buckets = [self._decode_bucket(plan, rows) for rows in length_buckets(plan, self._gather_blocks)]

    def _store(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> None:
        flat = (-1, self._num_kv_heads, self._head_dim)
        keys.view(flat).index_copy_(0, self._slots, key)
        values.view(flat).index_copy_(0, self._slots, value)

    def _attend_decodes(self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor) -> None:
        for bucket in self._buckets:
            output[bucket.rows] = self._decode(bucket, query[bucket.rows], keys, values)

    def _decode(self, bucket: _DecodeBucket, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [n, heads, head_dim]. The query heads that share a KV head become rows of one small matrix, so that the
        gathered K and V are read once per KV head."""
        num_seqs = query.shape[0]
        grouped = query.view(num_seqs, self._num_kv_heads, -1, self._head_dim)
        attended = F.scaled_dot_product_attention(
            grouped,
            self._gather(keys, bucket.blocks, self._key_scratch, num_seqs, bucket.max_length),
            self._gather(values, bucket.blocks, self._value_scratch, num_seqs, bucket.max_length),
            attn_mask=bucket.visible,
        )
        return attended.reshape(query.shape)

    def _prefill(self, chunk: _PrefillChunk, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [rows, heads, head_dim]: attends to the sequence's history and causally within the chunk."""
        attended = F.scaled_dot_product_attention(
            query.transpose(0, 1).unsqueeze(0),
            self._gather(keys, chunk.blocks, self._key_scratch, 1, chunk.context_len),
            self._gather(values, chunk.blocks, self._value_scratch, 1, chunk.context_len),
            attn_mask=chunk.visible,
            is_causal=chunk.visible is None,
            enable_gqa=True,
        )
        return attended.squeeze(0).transpose(0, 1)

    def _gather(self, store: Tensor, blocks: Tensor, scratch: Tensor, num_seqs: int, length: int) -> Tensor:
        """[num_seqs, kv_heads, length, head_dim], a view of `scratch` that is valid until the next gather into it."""
        gathered = torch.index_select(store, 0, blocks, out=scratch[: blocks.numel()])
        per_sequence = gathered.view(num_seqs, -1, self._num_kv_heads, self._head_dim)
        return per_sequence[:, :length].transpose(1, 2)

    def _decode_bucket(self, plan: BatchPlan, rows: list[int]) -> _DecodeBucket:
        tables = [plan.block_tables[row] for row in rows]
        max_blocks = max(map(len, tables))
        padded = [block for table in tables for block in table + [0] * (max_blocks - len(table))]
        lengths = [plan.context_lens[row] for row in rows]
        visible = None
        if min(lengths) < max(lengths):
            own = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
            visible = own[:, None, None, :].to(self._device)
        device = self._device
        return _DecodeBucket(
            torch.tensor(rows, device=device), torch.tensor(padded, device=device), max(lengths), visible
        )

    def _prefill_chunk(self, plan: BatchPlan, sequence: int, first_row: int) -> _PrefillChunk:
        context_len, num_rows = plan.context_lens[sequence], plan.query_lens[sequence]
        start = context_len - num_rows
        visible = None
        if start:
            # Row i is position start + i and sees positions 0..start + i.
            visible = torch.arange(context_len) <= torch.arange(start, context_len).unsqueeze(1)
            visible = visible.to(self._device)
        blocks = torch.tensor(plan.block_tables[sequence], device=self._device)
        return _PrefillChunk(first_row, num_rows, blocks, context_len, visible)


def length_buckets(plan: BatchPlan, max_blocks: int) -> list[list[int]]:
    """Decode rows grouped by context length, longest first: bounded padding, and at most `max_blocks` gathered blocks
    (padding included) unless one sequence alone has more."""
    buckets: list[list[int]] = []
    longest = longest_blocks = 0
    for row in sorted(range(plan.num_decode_seqs), key=plan.context_lens.__getitem__, reverse=True):
        length = plan.context_lens[row]
        is_padded_too_much = longest > max(length * _PADDING_RATIO, length + _PADDING_TOKENS)
        if not buckets or is_padded_too_much or (len(buckets[-1]) + 1) * longest_blocks > max_blocks:
            buckets.append([])
            longest, longest_blocks = length, len(plan.block_tables[row])
        buckets[-1].append(row)
    return buckets
