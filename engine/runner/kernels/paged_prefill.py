"""Prefill attention over paged KV: chunks of several sequences, each causal from its own absolute offset.

A program takes one tile of a chunk's rows for one query head. Row i of a chunk is position start + i, with
start = context_len - query_len; it sees positions 0..start + i, its history in the pool included.

    positions   0 ........................ first ... last row of the tile
                |------ no mask needed ------|-- causal mask --|
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.runner.kernels.online_softmax import attend_tile


@triton.jit
def _prefill_tile(
    query, key_pool, value_pool, output, block_tables, context_lens, query_starts,
    scale_log2, table_stride, query_stride_row, query_stride_head, pool_stride_block, pool_stride_token,
    pool_stride_head, output_stride_row,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    tile_index, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = tl.load(query_starts + sequence)
    query_len = tl.load(query_starts + sequence + 1) - first_row
    if tile_index * ROWS >= query_len:
        return  # the grid is as long as the longest chunk
    context_len = tl.load(context_lens + sequence)
    start = context_len - query_len
    rows, dims = tile_index * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM_PADDED)
    is_row, is_dim = rows < query_len, dims < DIM
    row_at = (first_row + rows).to(tl.int64)
    own = is_row[:, None] & is_dim[None, :]
    own_query = tl.load(
        query + row_at[:, None] * query_stride_row + head * query_stride_head + dims[None, :], mask=own, other=0.0
    )
    accumulated = tl.zeros([ROWS, DIM_PADDED], tl.float32)
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    end = tl.minimum(start + (tile_index + 1) * ROWS, context_len)
    for tile in range(0, end, TILE):
        positions = tile + tl.arange(0, TILE)
        is_token = positions < end
        blocks = tl.load(block_tables + sequence * table_stride + positions // BLOCK_SIZE, mask=is_token, other=0)
        token_at = blocks.to(tl.int64) * pool_stride_block + (positions % BLOCK_SIZE) * pool_stride_token
        token_at += (head // GROUP) * pool_stride_head
        mask = is_token[None, :] & is_dim[:, None]
        keys = tl.load(key_pool + token_at[None, :] + dims[:, None], mask=mask, other=0.0)
        values = tl.load(
            value_pool + token_at[:, None] + dims[None, :], mask=is_token[:, None] & is_dim[None, :], other=0.0
        )
        # Exact for every tile; for those before the chunk's first row it is all true.
        visible = (positions[None, :] <= start + rows[:, None]) & is_token[None, :]
        accumulated, maximum, total = attend_tile(
            own_query, keys, values, visible, accumulated, maximum, total, scale_log2
        )
    attended = accumulated / tl.where(total == 0.0, 1.0, total)[:, None]
    output_at = row_at[:, None] * output_stride_row + head * DIM + dims[None, :]
    tl.store(output + output_at, attended.to(output.dtype.element_ty), mask=own)


def paged_prefill(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    query_starts: Tensor,
    *,
    max_query_len: int,
    large_tiles: bool = False,
) -> Tensor:
    """Rows query_starts[i]..query_starts[i + 1] are the last positions of sequence i, whose KV is already in the pool.

    query [rows, heads, D], last dimension contiguous · keys, values [blocks, block_size, kv_heads, D], same strides ·
    block_tables [seqs, width], context_lens [seqs] (chunk included), query_starts [seqs + 1], all int32 ·
    max_query_len: rows of the longest chunk · large_tiles: where a program may have 160 KiB of shared memory.
    Returns [rows, heads, D] in the query's dtype; arithmetic is float32.
    """
    num_rows, num_heads, dim = query.shape
    num_seqs = block_tables.shape[0]
    output = torch.empty((num_rows, num_heads, dim), dtype=query.dtype, device=query.device)
    if not num_rows or not num_seqs:
        return output
    rows, tile = _tile_shape(query.dtype, dim, large_tiles)
    grid = (triton.cdiv(max_query_len, rows), num_heads, num_seqs)
    _prefill_tile[grid](
        query, keys, values, output, block_tables, context_lens, query_starts,
        dim**-0.5 * math.log2(math.e), block_tables.stride(0), query.stride(0), query.stride(1),
        keys.stride(0), keys.stride(1), keys.stride(2), output.stride(0),
        BLOCK_SIZE=keys.shape[1], GROUP=num_heads // keys.shape[2], ROWS=rows, DIM=dim,
        DIM_PADDED=max(16, triton.next_power_of_2(dim)), TILE=tile, num_warps=4 if rows <= 64 else 8, num_stages=2,
    )  # fmt: skip
    return output


def _tile_shape(dtype: torch.dtype, dim: int, large: bool) -> tuple[int, int]:
    """Rows and tokens of a tile: what fits the shared memory with two tiles of K and V in flight."""
    if dtype.itemsize > 2:
        return 32, 32
    if dim > 128:
        return 64, 32
    return (128, 64) if large else (64, 64)
