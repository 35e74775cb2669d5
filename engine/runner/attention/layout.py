"""A step's layout on the device: packed on the host as one row of integers, so that it travels in one copy.

    | token_ids T | positions T | slots T | context_lens S | prefill_starts P+1 | kv_starts P+1 | sample_rows R | tables S*W |

T query tokens, S sequences (decodes first), P prefill chunks, R sampled rows, W blocks of the longest table.
"""

from array import array
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from engine.step import BatchPlan


@dataclass(slots=True)
class StepLayout:
    """What a forward pass and its attention need to know of a step. Device tensors are int32."""

    plan: BatchPlan
    """The host's view of the same step; in a captured graph the plan that it was captured with."""
    num_decodes: int
    """Rows 0..num_decodes-1 are decodes, one per sequence; the prefill chunks follow."""
    token_ids: Tensor
    """[tokens]"""
    positions: Tensor
    """[tokens]"""
    slots: Tensor
    """[tokens]"""
    context_lens: Tensor
    """[sequences]"""
    prefill_starts: Tensor
    """[prefills + 1] first row of each chunk, counted from the first prefill row."""
    kv_starts: Tensor
    """[prefills + 1] context lengths of the chunks, summed up."""
    sample_rows: Tensor
    """[rows to sample]"""
    block_tables: Tensor
    """[sequences, width]; entries beyond a sequence's length are arbitrary but name existing blocks."""
    max_query_len: int
    """Rows of the longest chunk; 0 without one."""
    max_prefill_context: int


class PackedStep(NamedTuple):
    """Host side of a layout."""

    plan: BatchPlan
    values: "array[int]"
    """All parts, one after the other."""
    sizes: tuple[int, ...]
    """Lengths of the eight parts, in order."""

    def unpack(self, packed: Tensor) -> StepLayout:
        """The layout, as views of `packed`: the values, wherever they are now."""
        plan = self.plan
        num_decodes = plan.num_decode_seqs
        token_ids, positions, slots, context_lens, prefill_starts, kv_starts, sample_rows, tables = torch.split(
            packed[: len(self.values)], list(self.sizes)
        )
        return StepLayout(
            plan=plan,
            num_decodes=num_decodes,
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            context_lens=context_lens,
            prefill_starts=prefill_starts,
            kv_starts=kv_starts,
            sample_rows=sample_rows,
            block_tables=tables.view(len(plan.query_lens), -1),
            max_query_len=max(plan.query_lens[num_decodes:], default=0),
            max_prefill_context=max(plan.context_lens[num_decodes:], default=0),
        )


def pack_step(plan: BatchPlan) -> PackedStep:
    """O(tokens + blocks)."""
    num_decodes = plan.num_decode_seqs
    tables = plan.block_tables
    width = max(map(len, tables))
    padding = array("i", bytes(4 * width))
    values, sizes = array("i"), []
    for part in (
        plan.token_ids,
        plan.positions,
        plan.slots,
        plan.context_lens,
        list(accumulate(plan.query_lens[num_decodes:], initial=0)),
        list(accumulate(plan.context_lens[num_decodes:], initial=0)),
        plan.sample_rows,
    ):
        # Through an array of its own: several times faster than extending by a list.
        values += array("i", part)
        sizes.append(len(part))
    for table in tables:
        values += array("i", table)
        values += padding[len(table) :]
    return PackedStep(plan, values, (*sizes, len(tables) * width))


def pad_decodes(plan: BatchPlan, num_rows: int, block: int, block_size: int) -> BatchPlan:
    """A plan of decodes alone, filled up to `num_rows`: each further row reads and writes the first token of `block`,
    which belongs to no sequence. The rows to sample stay the same."""
    assert plan.num_decode_seqs == len(plan.query_lens) == len(plan.token_ids)
    more = num_rows - len(plan.token_ids)
    zeros, ones = [0] * more, [1] * more
    return BatchPlan(
        plan.token_ids + zeros,
        plan.positions + zeros,
        plan.slots + [block * block_size] * more,
        plan.block_tables + [[block]] * more,
        plan.context_lens + ones,
        plan.query_lens + ones,
        num_rows,
        plan.sample_rows,
        plan.sample_requests,
        plan.copies,
    )
