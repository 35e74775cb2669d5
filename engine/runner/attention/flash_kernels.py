"""FlashAttention as a backend: one adapter over the call forms of its generations.

| generation | module               | pages                      | decode                 | prefill                              |
| 2          | flash_attn           | multiples of 256 tokens    | flash_attn_with_kvcache| flash_attn_varlen_func(block_table)  |
| 3          | flash_attn_interface | any; Hopper                | flash_attn_with_kvcache(page_table), both                     |
| 4          | flash_attn.cute      | any; Hopper, Blackwell     | flash_attn_varlen_func(page_table, seqused_k), both           |

All align the causal mask to the last key, which is what a chunk at an offset needs. Generation 4 takes no cu_seqlens_k
beside a page table, and does not split the context on Hopper: small batches of long sequences decode slowly there.
"""

import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor

from engine.runner.attention.layout import StepLayout

_MODULES = {2: "flash_attn", 3: "flash_attn_interface", 4: "flash_attn.cute"}
_FA2_PAGE_TOKENS = 256


def installed_generations() -> frozenset[int]:
    """Generations whose modules can be found; none is imported."""
    return frozenset(generation for generation, module in _MODULES.items() if _is_findable(module))


def _is_findable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def usable_generations(capability: tuple[int, int], block_size: int) -> tuple[list[int], dict[int, str]]:
    """Generations that page KV on a device of this compute capability, best first; and why each other one does not."""
    major = capability[0]
    order = {9: [3, 2, 4], 10: [4, 2]}.get(major, [2] if major >= 8 else [])
    device = f"compute capability {major}.{capability[1]}"
    refused = {generation: f"no paged KV on {device}" for generation in _MODULES if generation not in order}
    if 2 in order and block_size % _FA2_PAGE_TOKENS:
        refused[2] = f"pages are a multiple of {_FA2_PAGE_TOKENS} tokens, not {block_size} (try --block-size 256)"
    return [generation for generation in order if generation not in refused], refused


class FlashKernels:
    """Implements `engine.runner.attention.paged.Kernels` with one generation; imports it."""

    def __init__(self, generation: int) -> None:
        self.name = f"flash_attn {generation}"
        self._generation = generation
        # Bound by name at run time: none of the three is a dependency, and their signatures differ.
        self._module: Any = importlib.import_module(_MODULES[generation])
        self._slots = torch.empty(0, dtype=torch.int64)

    def begin(self, layout: StepLayout) -> None:
        self._slots = layout.slots.long()  # index_copy_ wants 64 bits

    def write(self, layout: StepLayout, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> None:
        rows = (-1, *key.shape[1:])
        keys.view(rows).index_copy_(0, self._slots, key)
        values.view(rows).index_copy_(0, self._slots, value)

    def decode(self, layout: StepLayout, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        num_seqs = query.shape[0]
        tables, lengths = layout.block_tables[:num_seqs], layout.context_lens[:num_seqs]
        if self._generation == 4:
            starts = torch.arange(num_seqs + 1, dtype=torch.int32, device=query.device)
            return self._varlen4(query, keys, values, tables, lengths, starts, 1)
        table_name = "block_table" if self._generation == 2 else "page_table"
        attended: Tensor = self._module.flash_attn_with_kvcache(
            query.unsqueeze(1), keys, values, cache_seqlens=lengths, causal=True, **{table_name: tables}
        )
        return attended.squeeze(1)

    def prefill(self, layout: StepLayout, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        first = layout.num_decodes
        tables, lengths = layout.block_tables[first:], layout.context_lens[first:]
        starts, max_query_len = layout.prefill_starts, layout.max_query_len
        if self._generation == 4:
            return self._varlen4(query, keys, values, tables, lengths, starts, max_query_len)
        attended: Tensor
        if self._generation == 3:
            attended = self._module.flash_attn_with_kvcache(
                query,
                keys,
                values,
                cache_seqlens=lengths,
                page_table=tables,
                cu_seqlens_q=starts,
                max_seqlen_q=max_query_len,
                causal=True,
            )
            return attended
        attended = self._module.flash_attn_varlen_func(
            query,
            keys,
            values,
            cu_seqlens_q=starts,
            cu_seqlens_k=layout.kv_starts,
            max_seqlen_q=max_query_len,
            max_seqlen_k=layout.max_prefill_context,
            causal=True,
            block_table=tables,
        )
        return attended

    def _varlen4(
        self, query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, starts: Tensor, longest: int
    ) -> Tensor:
        result = self._module.flash_attn_varlen_func(
            query,
            keys,
            values,
            cu_seqlens_q=starts,
            max_seqlen_q=longest,
            seqused_k=lengths,
            page_table=tables,
            causal=True,
        )
        # Some versions return the log-sum-exp beside the output.
        attended: Tensor = result[0] if isinstance(result, tuple) else result
        return attended
