"""Paged attention with the compiled kernels, which read keys and values where they lie."""

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from engine.native.library import Library
from engine.runner.host_attention import HostPagedAttention
from engine.step import BatchPlan


class _Sequences(NamedTuple):
    tables: Tensor
    """[sequences, blocks of the longest] int64, padded with block 0."""
    lengths: Tensor
    """[sequences] int64, positions of the context."""


class NativePagedAttention(HostPagedAttention):
    """For float32 on the CPU and head sizes that `library` takes."""

    name = "native"

    def __init__(
        self,
        library: Library,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
    ) -> None:
        super().__init__(
            num_layers=num_layers,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=torch.float32,
        )
        self._library = library
        self._decodes = self._chunks = _Sequences(torch.empty((0, 0)), torch.empty(0))
        self._row_starts = torch.empty(0)

    def _store(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> None:
        self._library.store(key, value, keys, values, self._slots)

    def _begin_decodes(self, plan: BatchPlan) -> None:
        self._decodes = _sequences(plan, 0, plan.num_decode_seqs)

    def _attend_decodes(self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor) -> None:
        self._library.decode_attention(query, keys, values, *self._decodes, output)

    def _begin_chunks(self, plan: BatchPlan) -> None:
        first, end = plan.num_decode_seqs, len(plan.query_lens)
        self._chunks = _sequences(plan, first, end)
        self._row_starts = torch.tensor(list(accumulate(plan.query_lens[first:], initial=0)), dtype=torch.int64)

    def _attend_chunks(self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor) -> None:
        self._library.chunk_attention(query, keys, values, *self._chunks, self._row_starts, output)


def _sequences(plan: BatchPlan, first: int, end: int) -> _Sequences:
    tables = plan.block_tables[first:end]
    width = max(map(len, tables))
    padded = [table + [0] * (width - len(table)) for table in tables]
    lengths = plan.context_lens[first:end]
    return _Sequences(torch.tensor(padded, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64))
