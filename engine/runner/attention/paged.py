"""Paged attention of a device runner: owns the KV memory and lets a set of kernels do the work.

kv   [layers, 2, num_blocks + 1, block_size, kv_heads, head_dim]; the last block belongs to no sequence. Rows that pad a
     captured batch write and read it, so that nothing has to be skipped.
"""

from typing import Protocol

import torch
from torch import Tensor

from engine.model.decoder import Attention
from engine.runner.attention.layout import StepLayout
from probes import optime
from probes.optime import Laps


class Kernels(Protocol):
    """What a backend brings. keys, values: one layer's pool, [blocks, block_size, kv_heads, head_dim]."""

    @property
    def name(self) -> str:
        """For logs and `engine_info`, e.g. `triton` or `flash_attn 3`."""
        ...

    def begin(self, layout: StepLayout) -> None:
        """Called once per step before its layers, inside a capture as well: what is derived from the layout is derived
        here, so that a replay derives it again."""
        ...

    def write(self, layout: StepLayout, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores key and value [tokens, kv_heads, head_dim] into the slots of the layout."""
        ...

    def decode(self, layout: StepLayout, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [num_decodes, heads, head_dim], one row per sequence -> the same shape. Must not look at the host's view
        of the lengths: a captured launch is replayed with others."""
        ...

    def prefill(self, layout: StepLayout, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [prefill rows, heads, head_dim]: the last positions of each sequence -> the same shape."""
        ...


class StepAttention(Attention, Protocol):
    """What a device runner asks of its attention, besides attending."""

    kv: Tensor
    """The pool, as above."""

    @property
    def name(self) -> str: ...

    @property
    def supports_graphs(self) -> bool:
        """Whether a decode step may be captured once and replayed with other lengths and blocks."""
        ...

    def use(self, layout: StepLayout) -> None:
        """The next `attend` calls belong to this step."""
        ...


class PagedAttention:
    """Implements `StepAttention`. `use` says which step follows, then `attend` runs once per layer."""

    supports_graphs = True

    def __init__(
        self,
        kernels: Kernels,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._kernels = kernels
        shape = (num_layers, 2, num_blocks + 1, block_size, num_kv_heads, head_dim)
        # Zeros: the unwritten rest of a last block must be finite for kernels that read whole pages (FlashAttention 4).
        self.kv = torch.zeros(shape, dtype=dtype, device=device)
        self._layout: StepLayout | None = None

    @property
    def name(self) -> str:
        return self._kernels.name

    def use(self, layout: StepLayout) -> None:
        self._layout = layout
        self._kernels.begin(layout)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, timer: Laps) -> Tensor:
        """See `engine.model.decoder.Attention`."""
        layout = self._layout
        assert layout is not None, "use() comes before attend()"
        keys, values = self.kv[layer, 0], self.kv[layer, 1]
        self._kernels.write(layout, key, value, keys, values)
        timer.lap(optime.KV_WRITE)
        parts = []
        if layout.num_decodes:
            parts.append(self._kernels.decode(layout, query[: layout.num_decodes], keys, values))
            timer.lap(optime.ATTENTION_DECODE)
        if layout.max_query_len:
            parts.append(self._kernels.prefill(layout, query[layout.num_decodes :], keys, values))
            timer.lap(optime.ATTENTION_PREFILL)
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return attended.view(query.shape[0], -1)
