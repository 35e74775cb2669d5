"""The decoder's operations by the compiled kernels; products of many rows by torch, whose library is made for those."""

import torch.nn.functional as F
from torch import Tensor

from engine.native.library import Library

_MANY_ROWS = 160
"""From here on a matrix product is bound by arithmetic alone, and packing the weights pays."""


class NativeOps:
    """Implements `engine.model.ops.DecoderOps` for float32 on the CPU."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.rms_norm = library.rms_norm
        self.rotate = library.rotate
        self.silu_mul = library.silu_mul

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if x.shape[0] >= _MANY_ROWS:
            return F.linear(x, weight, bias)
        return self._library.linear(x, weight, bias)
