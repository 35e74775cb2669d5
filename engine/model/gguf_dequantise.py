"""GGML-quantised bytes to float32 tensors.

The formats of small models are done here in torch, 3-4 times as fast as the `gguf` package and equal bit by bit;
every other format is left to that package.
"""

import math
import mmap
from collections.abc import Callable

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from torch import Tensor

from engine.model.gguf_file import TensorInfo

_CHUNK_BLOCKS = 1 << 15
"""Blocks converted at a time: the intermediates (a few MiB) stay in the cache."""


def dequantise(data: mmap.mmap, info: TensorInfo) -> Tensor:
    """A float32 tensor of `info.shape`, copied out of the file. ValueError when the file ends before the tensor."""
    kind = GGMLQuantizationType(info.type_id)
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    if info.shape[-1] % block_size:
        raise ValueError(f"rows of {info.shape[-1]} are no multiple of the {kind.name} block of {block_size}")
    num_blocks = math.prod(info.shape) // block_size
    raw = torch.frombuffer(data, dtype=torch.uint8, offset=info.offset, count=num_blocks * block_bytes)
    blocks = raw.view(num_blocks, block_bytes)
    convert = _CONVERTERS.get(kind)
    if convert is None:
        rows = raw.view(*info.shape[:-1], -1).numpy()
        return torch.from_numpy(np.array(dequantize(rows, kind), dtype=np.float32))
    values = torch.empty((num_blocks, block_size))
    for start in range(0, num_blocks, _CHUNK_BLOCKS):
        chunk = slice(start, start + _CHUNK_BLOCKS)
        convert(blocks[chunk], values[chunk])
    return values.view(info.shape)


def _f32(blocks: Tensor, values: Tensor) -> None:
    values.copy_(blocks.view(torch.float32))


def _f16(blocks: Tensor, values: Tensor) -> None:
    values.copy_(blocks.view(torch.float16))


def _q4_0(blocks: Tensor, values: Tensor) -> None:
    """Block of 32: scale | 16 bytes of low nibbles (values 0-15) and high nibbles (16-31), biased by 8."""
    _nibbles(blocks[:, 2:], values)
    values.sub_(8.0).mul_(_half(blocks[:, :2]))


def _q4_1(blocks: Tensor, values: Tensor) -> None:
    """Block of 32: scale | minimum | 16 bytes of nibbles."""
    _nibbles(blocks[:, 4:], values)
    values.mul_(_half(blocks[:, :2])).add_(_half(blocks[:, 2:4]))


def _q8_0(blocks: Tensor, values: Tensor) -> None:
    """Block of 32: scale | 32 signed bytes."""
    torch.mul(blocks[:, 2:].view(torch.int8), _half(blocks[:, :2]), out=values)


def _nibbles(packed: Tensor, values: Tensor) -> None:
    values[:, :16] = packed & 15
    values[:, 16:] = packed >> 4


def _half(column: Tensor) -> Tensor:
    """float32 [blocks, 1] of two bytes per block."""
    return column.contiguous().view(torch.float16).float()


_CONVERTERS: dict[GGMLQuantizationType, Callable[[Tensor, Tensor], None]] = {
    GGMLQuantizationType.F32: _f32,
    GGMLQuantizationType.F16: _f16,
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q8_0: _q8_0,
}
