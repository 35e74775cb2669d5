"""The decoder's operations besides attention, in torch: what every device can do. Others may do them faster."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.rope import rotate

Linear = Callable[[Tensor], Tensor]
"""x [rows, in] -> [rows, out]."""


class DecoderOps(Protocol):
    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """The product with weight [out, in], which may be laid out for it here."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """x [rows, size], by rows."""
        ...

    def rotate(self, heads: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
        """See `engine.model.rope.rotate`; the last two dimensions of `heads` are contiguous."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[rows, 2 * size] -> silu(first half) * second half, [rows, size]."""
        ...


class TorchOps:
    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return partial(F.linear, weight=weight, bias=bias)

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, epsilon)

    def rotate(self, heads: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
        return rotate(heads, cos, signed_sin)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = torch.chunk(gate_up, 2, dim=-1)
        return F.silu(gate).mul_(up)
