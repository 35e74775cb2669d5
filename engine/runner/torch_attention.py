"""Paged attention in plain torch: the reference, and what the CPU has without the compiled kernels."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.runner.host_attention import HostPagedAttention
from engine.step import BatchPlan

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
    rows: slice
    """Of the chunks' rows."""
    blocks: Tensor
    """[blocks] physical blocks of the sequence up to this chunk's end."""
    context_len: int
    visible: Tensor | None
    """[num_rows, context_len] bool; None when the chunk starts at position 0 and plain causal masking is exact."""


class TorchPagedAttention(HostPagedAttention):
    name = "torch"

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        max_position: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(
            num_layers=num_layers,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=dtype,
            device=device,
        )
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        # Gathers go to scratch memory allocated once: fresh pages for each of them would cost more than the copy.
        block_bytes = block_size * num_kv_heads * head_dim * self.kv.element_size()
        self._gather_blocks = max(1, _GATHER_BYTES // block_bytes)
        longest = min(num_blocks, -(-max_position // block_size))
        scratch_shape = (max(self._gather_blocks, longest), block_size, num_kv_heads, head_dim)
        self._key_scratch = torch.zeros(scratch_shape, dtype=dtype, device=self._device)
        self._value_scratch = torch.zeros(scratch_shape, dtype=dtype, device=self._device)
        self._buckets: list[_DecodeBucket] = []
        self._chunks: list[_PrefillChunk] = []

    def _store(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> None:
        flat = (-1, self._num_kv_heads, self._head_dim)
        keys.view(flat).index_copy_(0, self._slots, key)
        values.view(flat).index_copy_(0, self._slots, value)

    def _begin_decodes(self, plan: BatchPlan) -> None:
        self._buckets = [self._decode_bucket(plan, rows) for rows in length_buckets(plan, self._gather_blocks)]

    def _attend_decodes(self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor) -> None:
        for bucket in self._buckets:
            output[bucket.rows] = self._decode(bucket, query[bucket.rows], keys, values)

    def _begin_chunks(self, plan: BatchPlan) -> None:
        self._chunks = []
        row = 0
        for sequence in range(plan.num_decode_seqs, len(plan.query_lens)):
            self._chunks.append(self._prefill_chunk(plan, sequence, row))
            row += plan.query_lens[sequence]

    def _attend_chunks(self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor) -> None:
        for chunk in self._chunks:
            output[chunk.rows] = self._prefill(chunk, query[chunk.rows], keys, values)

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
        return _PrefillChunk(slice(first_row, first_row + num_rows), blocks, context_len, visible)


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
