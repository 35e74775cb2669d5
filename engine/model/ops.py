"""The decoder's operations besides attention, in torch: what every device can do. Others may do them faster."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.rope import rotate


class DecoderOps(Protocol):
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [rows, in], weight [out, in] -> [rows, out]."""
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
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, epsilon)

    def rotate(self, heads: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
        return rotate(heads, cos, signed_sin)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = torch.chunk(gate_up, 2, dim=-1)
        return F.silu(gate).mul_(up)
