"""Paged attention with the compiled kernels for decodes, which read keys and values where they lie. Chunks of prefill stay
with torch: they are bound by arithmetic, and one copy of their context costs little beside it."""

import torch
from torch import Tensor

from engine.native.library import Library
from engine.runner.torch_attention import TorchPagedAttention
from engine.step import BatchPlan


class NativePagedAttention(TorchPagedAttention):
    """For float32 on the CPU and head sizes that `library` takes."""

    name = "native"

    def __init__(
        self,
        library: Library,
        *,
        num_layers: int,
        num_query_heads: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        max_position: int,
        dtype: torch.dtype,
    ) -> None:
        assert dtype is torch.float32
        super().__init__(
            num_layers=num_layers,
            num_query_heads=num_query_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            num_blocks=num_blocks,
            block_size=block_size,
            max_position=max_position,
            dtype=dtype,
        )
        self._library = library
        self._tables = torch.empty((0, 0), dtype=torch.int64)
        self._lengths = torch.empty(0, dtype=torch.int64)

    def _begin_decodes(self, plan: BatchPlan) -> None:
        self._num_decodes = count = plan.num_decode_seqs
        if not count:
            return
        tables = plan.block_tables[:count]
        width = max(map(len, tables))
        self._tables = torch.tensor([table + [0] * (width - len(table)) for table in tables], dtype=torch.int64)
        self._lengths = torch.tensor(plan.context_lens[:count], dtype=torch.int64)

    def _store(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> None:
        self._library.store(key, value, keys, values, self._slots)

    def _attend_decodes(self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor) -> None:
        count = self._num_decodes
        self._library.decode_attention(query[:count], keys, values, self._tables, self._lengths, output[:count])
