"""Eviction as the device sees it: not at all."""

import torch

from engine.block_pool import BlockPool
from engine.runner.torch_attention import TorchPagedAttention
from tests.requirements import covers


@covers("S3.29")
def test_eviction_moves_no_byte_and_frees_no_memory():
    """10,000 evictions later the pool is the same memory, and an evicted block reads as before until it is written."""
    attention = TorchPagedAttention(
        num_layers=2,
        num_kv_heads=1,
        head_dim=4,
        num_blocks=50,
        block_size=4,
        max_position=64,
        dtype=torch.float32,
    )
    attention.kv.uniform_()
    address, size, content = attention.kv.data_ptr(), attention.kv.nbytes, attention.kv.clone()
    pool = BlockPool(50, 4)
    while pool.evictions < 10_000:
        blocks = pool.allocate(50)
        pool.mark_cached(blocks)
        pool.release(blocks)
    assert (attention.kv.data_ptr(), attention.kv.nbytes) == (address, size)
    assert torch.equal(attention.kv, content)
    pool.check_invariants()
