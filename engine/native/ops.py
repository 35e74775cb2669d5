"""The decoder's operations by the compiled kernels."""

from functools import partial

from torch import Tensor

from engine.model.ops import Linear
from engine.native.library import Library


class NativeOps:
    """Implements `engine.model.ops.DecoderOps` for float32 on the CPU."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.rms_norm = library.rms_norm
        self.rotate = library.rotate
        self.silu_mul = library.silu_mul
        self.packed_bytes = 0
        """Of all weights that were packed, which are copies."""

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        panels = self._library.pack(weight)
        self.packed_bytes += panels.packed.nbytes
        return partial(self._library.linear, weight=panels, bias=bias)
