"""The compiled kernels as functions of tensors. Float32, on the CPU, rows contiguous; shapes are the caller's promise."""

import contextlib
import ctypes
import functools
from collections.abc import Callable
from ctypes import c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.native.build import libraries, source_hash

LANES = 8
"""Sizes that kernels run along are multiples of this."""

_P, _N = c_void_p, c_int64
_LONG = {
    "stallscope_linear": [_P, _P, _P, _P, _N, _N, _N, c_int32],
    "stallscope_decode_attention": [_P] * 6 + [_N] * 7 + [c_float, c_int32],
    "stallscope_chunk_attention": [_P] * 7 + [_N] * 7 + [c_float, c_int32],
}
_SHORT = {
    "stallscope_rms_norm": [_P, _P, _P, _N, _N, c_float],
    "stallscope_silu_mul": [_P, _P, _N, _N, c_int32],
    "stallscope_rotate": [_P, _P, _P, _P, _N, _N, _N, _N],
    "stallscope_store": [_P, _P, _P, _P, _P, _N, _N, _N, _N],
}
"""Some microseconds: they keep the interpreter lock, as a thread that gives it up may wait 5 ms until it has it again."""


class Unavailable(Exception):
    """The kernels cannot be used; says why in a few words."""


class Panels(NamedTuple):
    """A weight as a library reads it: so many features side by side that one number of x meets them in two vectors."""

    packed: Tensor
    """[ceil(features / panel), depth, panel], zeros past the last feature."""
    features: int


class Library:
    """`threads`: of each call, at most. Raises Unavailable."""

    def __init__(self, path: Path, threads: int) -> None:
        if not path.exists():
            raise Unavailable("are not built (python -m engine.native.build)")
        try:
            self._functions = ctypes.CDLL(str(path))
        except OSError as error:
            raise Unavailable(f"do not load: {error}") from error
        self._functions.stallscope_source.restype = ctypes.c_char_p
        if self._functions.stallscope_source().decode() != source_hash():
            raise Unavailable("were built from other sources (python -m engine.native.build)")
        if not self._functions.stallscope_runs_here():
            raise Unavailable("use instructions that this processor lacks")
        self._short = ctypes.PyDLL(str(path))
        for functions, signatures in ((self._functions, _LONG), (self._short, _SHORT)):
            for name, types in signatures.items():
                getattr(functions, name).argtypes = types
                getattr(functions, name).restype = None
        self._functions.stallscope_decode_attention.restype = c_int32
        self._threads = threads
        self.variant = path.stem.removeprefix("_kernels_")
        self.panel: int = self._functions.stallscope_panel()
        """Features of a panel, a multiple of LANES."""

    def pack(self, weight: Tensor) -> Panels:
        """weight [features, depth]."""
        features, depth = weight.shape
        whole = F.pad(weight, (0, 0, 0, -features % self.panel))
        return Panels(whole.view(-1, self.panel, depth).transpose(1, 2).contiguous(), features)

    def linear(self, x: Tensor, weight: Panels, bias: Tensor | None = None) -> Tensor:
        """x [rows, depth] -> [rows, features]."""
        rows, depth = x.shape
        out = torch.empty((rows, weight.features))
        self._functions.stallscope_linear(
            x.data_ptr(),
            weight.packed.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            rows,
            weight.features,
            depth,
            self._threads,
        )
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """x [rows, size] -> the same."""
        out = torch.empty_like(x)
        self._short.stallscope_rms_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), *x.shape, epsilon)
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[rows, 2 * size] -> silu(gate) * up, [rows, size]."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, size))
        self._short.stallscope_silu_mul(gate_up.data_ptr(), out.data_ptr(), rows, size, self._threads)
        return out

    def rotate(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """heads [rows, heads, dim], cos and signed sin [rows, 1, dim] -> [rows, heads, dim], contiguous."""
        rows, num_heads, dim = heads.shape
        out = torch.empty((rows, num_heads, dim))
        self._short.stallscope_rotate(
            heads.data_ptr(), cos.data_ptr(), sin.data_ptr(), out.data_ptr(), rows, num_heads, dim, heads.stride(0)
        )
        return out

    def store(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """key, value [rows, kv_heads, dim] into rows `slots` (int64) of keys, values: one layer's pool."""
        rows, kv_heads, dim = key.shape
        self._short.stallscope_store(
            key.data_ptr(),
            value.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            slots.data_ptr(),
            rows,
            kv_heads * dim,
            key.stride(0),
            value.stride(0),
        )

    def takes_head_dim(self, dim: int) -> bool:
        no_tensors = (None,) * 6
        return not self._functions.stallscope_decode_attention(*no_tensors, 0, 1, 1, dim, 1, 1, dim, 1.0, 1)

    def decode_attention(
        self, query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, out: Tensor
    ) -> None:
        """query, out [sequences, heads, dim]; keys, values [blocks, block_size, kv_heads, dim]; tables [sequences, width]
        and lengths [sequences], int64."""
        self._attend(self._functions.stallscope_decode_attention, query, keys, values, tables, lengths, out)

    def chunk_attention(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        tables: Tensor,
        lengths: Tensor,
        row_starts: Tensor,
        out: Tensor,
    ) -> None:
        """query, out [rows, heads, dim]: the last positions of each chunk's sequence, chunk c's rows from row_starts[c] to
        row_starts[c + 1]; keys, values, tables [chunks, width] and lengths [chunks] as for decodes."""
        self._attend(self._functions.stallscope_chunk_attention, query, keys, values, tables, lengths, row_starts, out)

    def _attend(
        self, kernel: Callable[..., object], query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, *more: Tensor
    ) -> None:
        _, num_heads, dim = query.shape
        _, block_size, kv_heads, _ = keys.shape
        kernel(
            *(tensor.data_ptr() for tensor in (query, keys, values, tables, *more)),
            tables.shape[0],
            num_heads,
            kv_heads,
            dim,
            block_size,
            tables.shape[1],
            query.stride(0),
            dim**-0.5,
            self._threads,
        )


@functools.cache
def load(threads: int) -> Library:
    """The quickest that this processor runs. Raises Unavailable with what keeps the least demanding one from being used."""
    *others, last = libraries()
    for path in others:
        with contextlib.suppress(Unavailable):
            return Library(path, threads)
    return Library(last, threads)
