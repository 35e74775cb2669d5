"""Decode attention over paged KV, the context split over programs (flash decoding).

One query row per sequence, so the work is reading KV: a program takes one sequence, one KV head and one split of the
context, and the G query heads that share the KV head form the rows of its tile. K and V are thereby read once per KV head.

    context   0 ---- split 0 ----|---- split 1 ----|-- split 2 --| length
                TILE TILE TILE ..

The number of splits is fixed at launch and their length follows from each sequence's own, so that a captured launch
serves any lengths. A split without a token leaves weight 0; `decode_combine` joins the splits.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.runner.kernels.decode_combine import combine_splits
from engine.runner.kernels.online_softmax import attend_tile

TILE_TOKENS = 64
_MIN_ROWS = 16
"""tl.dot wants at least this many rows; those beyond the group are zeros and not stored."""


@triton.jit
def _decode_split(
    query, key_pool, value_pool, block_tables, context_lens, partial, partial_lse,
    scale_log2, table_stride, query_stride_seq, query_stride_head, pool_stride_block, pool_stride_token,
    pool_stride_head, num_heads, num_splits,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    sequence, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIM_PADDED)
    is_row, is_dim = rows < GROUP, dims < DIM
    heads = kv_head * GROUP + rows

    length = tl.load(context_lens + sequence)
    # Whole tiles per split: no two splits touch the same tile.
    split_tokens = tl.cdiv(tl.cdiv(length, TILE), num_splits) * TILE
    start = split * split_tokens
    end = tl.minimum(start + split_tokens, length)

    query_at = sequence * query_stride_seq + heads[:, None] * query_stride_head + dims[None, :]
    own_query = tl.load(query + query_at, mask=is_row[:, None] & is_dim[None, :], other=0.0)
    accumulated = tl.zeros([ROWS, DIM_PADDED], tl.float32)
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for tile in range(start, end, TILE):
        positions = tile + tl.arange(0, TILE)
        is_token = positions < end
        blocks = tl.load(block_tables + sequence * table_stride + positions // BLOCK_SIZE, mask=is_token, other=0)
        # 64 bits: a pool of a hundred gigabytes has more elements than 32 bits can number.
        token_at = blocks.to(tl.int64) * pool_stride_block + (positions % BLOCK_SIZE) * pool_stride_token
        token_at += kv_head * pool_stride_head
        mask = is_token[None, :] & is_dim[:, None]
        keys = tl.load(key_pool + token_at[None, :] + dims[:, None], mask=mask, other=0.0)
        values = tl.load(
            value_pool + token_at[:, None] + dims[None, :], mask=is_token[:, None] & is_dim[None, :], other=0.0
        )
        accumulated, maximum, total = attend_tile(
            own_query, keys, values, is_token[None, :], accumulated, maximum, total, scale_log2
        )
    is_empty = total == 0.0
    output = accumulated / tl.where(is_empty, 1.0, total)[:, None]
    lse = tl.where(is_empty, float("-inf"), maximum + tl.log2(tl.where(is_empty, 1.0, total)))
    slot = (sequence * num_heads + heads).to(tl.int64) * num_splits + split
    tl.store(partial + slot[:, None] * DIM + dims[None, :], output, mask=is_row[:, None] & is_dim[None, :])
    tl.store(partial_lse + slot, lse, mask=is_row)


def paged_decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    *,
    num_splits: int,
    num_stages: int = 2,
) -> Tensor:
    """Each query row attends to the first `context_lens[row]` positions of its sequence; a length of 0 gives zeros.

    query [seqs, heads, D], last dimension contiguous · keys, values [blocks, block_size, kv_heads, D], same strides ·
    block_tables [seqs, width] int32, entries beyond a sequence's length are not read · context_lens [seqs] int32.
    num_stages: tiles of K and V in flight; 3 pays and fits where a program may have 160 KiB of shared memory.
    Returns [seqs, heads, D] in the query's dtype; arithmetic is float32.
    """
    num_seqs, num_heads, dim = query.shape
    num_kv_heads = keys.shape[2]
    group = num_heads // num_kv_heads
    partial = torch.empty((num_seqs, num_heads, num_splits, dim), dtype=torch.float32, device=query.device)
    partial_lse = torch.empty((num_seqs, num_heads, num_splits), dtype=torch.float32, device=query.device)
    if num_seqs:
        _decode_split[num_seqs, num_kv_heads, num_splits](
            query, keys, values, block_tables, context_lens, partial, partial_lse,
            dim**-0.5 * math.log2(math.e), block_tables.stride(0), query.stride(0), query.stride(1),
            keys.stride(0), keys.stride(1), keys.stride(2), num_heads, num_splits,
            BLOCK_SIZE=keys.shape[1], GROUP=group, ROWS=max(_MIN_ROWS, triton.next_power_of_2(group)), DIM=dim,
            DIM_PADDED=max(16, triton.next_power_of_2(dim)), TILE=_tile_tokens(query.dtype, dim), num_warps=4,
            num_stages=num_stages,
        )  # fmt: skip
    return combine_splits(partial, partial_lse, query.dtype)


def _tile_tokens(dtype: torch.dtype, dim: int) -> int:
    return TILE_TOKENS if dtype.itemsize * dim <= 256 else TILE_TOKENS // 2


def choose_splits(num_seqs: int, num_kv_heads: int, num_processors: int, max_context: int) -> int:
    """A power of two: enough programs to keep every multiprocessor busy, none shorter than a tile at `max_context`."""
    wanted = 4 * num_processors // max(1, num_seqs * num_kv_heads)
    useful = min(wanted, -(-max_context // TILE_TOKENS), 64)
    return 1 << max(0, useful.bit_length() - 1)
