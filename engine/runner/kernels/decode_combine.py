"""Joins the splits of a decode: a weighted mean of their outputs, weights from each split's log-sum-exp."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _combine(
    partial, partial_lse, output, num_splits,
    SPLITS_PADDED: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    splits, dims = tl.arange(0, SPLITS_PADDED), tl.arange(0, DIM_PADDED)
    is_split, is_dim = splits < num_splits, dims < DIM
    lse = tl.load(partial_lse + row * num_splits + splits, mask=is_split, other=float("-inf"))
    largest = tl.max(lse, 0)
    # Nothing in any split (an empty sequence): all weights 0, and the output with them.
    weights = tl.exp2(lse - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(weights, 0)
    at = (row * num_splits + splits)[:, None] * DIM + dims[None, :]
    parts = tl.load(partial + at, mask=is_split[:, None] & is_dim[None, :], other=0.0)
    joined = tl.sum(parts * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(output + row * DIM + dims, joined.to(output.dtype.element_ty), mask=is_dim)


def combine_splits(partial: Tensor, partial_lse: Tensor, dtype: torch.dtype) -> Tensor:
    """partial [seqs, heads, splits, D] and partial_lse [seqs, heads, splits] (base 2), float32 -> [seqs, heads, D]."""
    num_seqs, num_heads, num_splits, dim = partial.shape
    output = torch.empty((num_seqs, num_heads, dim), dtype=dtype, device=partial.device)
    if num_seqs:
        _combine[(num_seqs * num_heads,)](
            partial, partial_lse, output, num_splits,
            SPLITS_PADDED=triton.next_power_of_2(num_splits), DIM=dim, DIM_PADDED=triton.next_power_of_2(dim),
            num_warps=2,
        )  # fmt: skip
    return output
