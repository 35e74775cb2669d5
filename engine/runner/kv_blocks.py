"""KV blocks copied within a pool, and as bytes, for transfer to another process.

kv            [layers, 2, num_blocks, block_size, kv_heads, head_dim]
one block     [layers, 2, block_size, kv_heads, head_dim], little-endian elements: its bytes are contiguous
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.step import BlockCopy, BlockImport

LAYOUT = "block: layers, K and V, tokens, KV heads, head size"
"""Part of what two instances must agree on. A change of the layout changes this text."""


def copy_blocks(kv: Tensor, copies: Sequence[BlockCopy]) -> None:
    """In order: a later copy may read what an earlier one wrote."""
    for source, target, num_tokens in copies:
        kv[:, :, target, :num_tokens] = kv[:, :, source, :num_tokens]


def read_blocks(kv: Tensor, block_ids: Sequence[int]) -> memoryview:
    """The blocks' bytes, one block after the other, in host memory of their own."""
    chosen = torch.tensor(block_ids, dtype=torch.int64, device=kv.device)
    blocks = kv.permute(2, 0, 1, 3, 4, 5).index_select(0, chosen)
    return blocks.contiguous().cpu().flatten().view(torch.uint8).numpy().data


def write_blocks(kv: Tensor, imports: Sequence[BlockImport]) -> None:
    """Raises ValueError when a content has not the size of a block."""
    by_block = kv.permute(2, 0, 1, 3, 4, 5)
    shape = by_block.shape[1:]
    num_bytes = shape.numel() * kv.element_size()
    if wrong := next((one for one in imports if one.content.nbytes != num_bytes), None):
        raise ValueError(
            f"a KV block has {num_bytes} bytes here, {wrong.content.nbytes} came for block {wrong.block_id}"
        )
    chosen = torch.tensor([one.block_id for one in imports], dtype=torch.int64, device=kv.device)
    content = torch.frombuffer(bytearray().join(one.content for one in imports), dtype=kv.dtype)
    by_block.index_copy_(0, chosen, content.view(len(imports), *shape).to(kv.device))
