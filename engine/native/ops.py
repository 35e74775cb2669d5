"""The decoder's operations by the compiled kernels."""

from engine.native.library import Library


class NativeOps:
    """Implements `engine.model.ops.DecoderOps` for float32 on the CPU."""

    def __init__(self, library: Library) -> None:
        self.linear = library.linear
        self.rms_norm = library.rms_norm
        self.rotate = library.rotate
        self.silu_mul = library.silu_mul
