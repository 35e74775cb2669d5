"""Stores the K and V of a step's tokens into their slots of the pool: both in one launch, from strided inputs."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _write(
    key, value, key_pool, value_pool, slots, key_stride_row, key_stride_head, value_stride_row,
    value_stride_head, pool_stride_block, pool_stride_token,
    BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    columns = tl.arange(0, WIDTH)
    head, dim = columns // DIM, columns % DIM
    is_column = columns < HEADS * DIM
    # A token's heads lie side by side in the pool: one contiguous store.
    target = (slot // BLOCK_SIZE).to(tl.int64) * pool_stride_block + (slot % BLOCK_SIZE) * pool_stride_token + columns
    keys = tl.load(key + row * key_stride_row + head * key_stride_head + dim, mask=is_column)
    tl.store(key_pool + target, keys, mask=is_column)
    values = tl.load(value + row * value_stride_row + head * value_stride_head + dim, mask=is_column)
    tl.store(value_pool + target, values, mask=is_column)


def write_kv(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """key, value [rows, kv_heads, D], last dimension contiguous -> keys, values [blocks, block_size, kv_heads, D].

    slots [rows] int32: block * block_size + offset; a negative slot is skipped.
    """
    num_rows, num_kv_heads, dim = key.shape
    if num_rows:
        _write[(num_rows,)](
            key, value, keys, values, slots, key.stride(0), key.stride(1), value.stride(0),
            value.stride(1), keys.stride(0), keys.stride(1),
            BLOCK_SIZE=keys.shape[1], HEADS=num_kv_heads, DIM=dim, WIDTH=triton.next_power_of_2(num_kv_heads * dim), num_warps=4,
        )  # fmt: skip
