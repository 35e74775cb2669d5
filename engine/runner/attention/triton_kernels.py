"""The engine's own Triton kernels as a backend: any block size, any head size up to 256, every floating type."""

import torch
from torch import Tensor

from engine.runner.attention.layout import StepLayout
from engine.runner.kernels.kv_write import write_kv
from engine.runner.kernels.paged_decode import choose_splits, paged_decode
from engine.runner.kernels.paged_prefill import paged_prefill

_LARGE_SHARED_MEMORY = {(8, 0), (8, 7), (9, 0), (10, 0), (10, 3)}
"""Compute capabilities whose programs may have at least 160 KiB of shared memory; the others have about 100."""


class TritonKernels:
    """Implements `engine.runner.attention.paged.Kernels`."""

    name = "triton"

    def __init__(self, *, num_processors: int, capability: tuple[int, int], max_context: int) -> None:
        """max_context: the longest sequence that can come; with it a captured launch has splits for any other."""
        self._num_processors = num_processors
        self._is_large = capability in _LARGE_SHARED_MEMORY
        self._max_context = max_context

    def begin(self, layout: StepLayout) -> None:
        pass

    def write(self, layout: StepLayout, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> None:
        write_kv(key, value, keys, values, layout.slots)

    def decode(self, layout: StepLayout, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        num_seqs, num_kv_heads = query.shape[0], keys.shape[2]
        return paged_decode(
            query,
            keys,
            values,
            layout.block_tables[:num_seqs],
            layout.context_lens[:num_seqs],
            num_splits=choose_splits(num_seqs, num_kv_heads, self._num_processors, self._max_context),
            num_stages=3 if self._is_large and query.dtype is not torch.float32 else 2,
        )

    def prefill(self, layout: StepLayout, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        first = layout.num_decodes
        return paged_prefill(
            query,
            keys,
            values,
            layout.block_tables[first:],
            layout.context_lens[first:],
            layout.prefill_starts,
            max_query_len=layout.max_query_len,
            large_tiles=self._is_large,
        )
