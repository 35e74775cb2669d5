"""The decoder's tensors as the forward pass wants them: Q, K, V fused into one matrix, gate and up into another.

Every format (HF, GGUF, random) offers its tensors under HF names through `TensorSource`; fusing happens once, here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

import torch
from torch import Tensor

from engine.errors import ModelError
from engine.model.config import ModelConfig

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class TensorSource(Protocol):
    """Named tensors, read one at a time so that loading never holds the model twice."""

    def read(self, name: str) -> Tensor:
        """The tensor with this HF name; ModelError when it is missing or unreadable."""
        ...


@dataclass(slots=True)
class LayerWeights:
    """One block. Matrices are [out, in], as `torch.nn.functional.linear` takes them.

    qkv: [query_size + 2 * kv_size, hidden] · gate_up: [2 * intermediate, hidden] · query_norm, key_norm: [head_dim]
    """

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        return self.qkv, self.output, self.gate_up, self.down

    def drop_matrices(self) -> None:
        """They are gone then: asking for one is an AttributeError."""
        del self.qkv, self.output, self.gate_up, self.down


@dataclass(slots=True)
class DecoderWeights:
    """embedding and lm_head: [vocab, hidden]; the same tensor when they are tied."""

    embedding: Tensor
    layers: list[LayerWeights]
    final_norm: Tensor
    lm_head: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def drop_lm_head(self) -> None:
        """As `LayerWeights.drop_matrices`; the embedding stays."""
        del self.lm_head

    @property
    def droppable_bytes(self) -> int:
        """What the matrices of all layers and an lm_head of its own take."""
        layers = sum(matrix.nbytes for layer in self.layers for matrix in layer.matrices)
        return layers + (0 if self.lm_head is self.embedding else self.lm_head.nbytes)

    def tensors(self) -> Iterator[Tensor]:
        """Every distinct tensor once; a tied lm_head is not repeated."""
        yield self.embedding
        for layer in self.layers:
            present = (getattr(layer, name) for name in LayerWeights.__slots__)
            yield from (tensor for tensor in present if tensor is not None)
        yield self.final_norm
        if self.lm_head is not self.embedding:
            yield self.lm_head

    def move_to(self, device: torch.device) -> None:
        """Moves every tensor, one at a time: a tied lm_head stays tied, and nothing is left where it was."""
        is_tied = self.lm_head is self.embedding
        self.embedding = self.embedding.to(device)
        for layer in self.layers:
            for name in LayerWeights.__slots__:
                tensor = getattr(layer, name)
                setattr(layer, name, None if tensor is None else tensor.to(device))
        self.final_norm = self.final_norm.to(device)
        self.lm_head = self.embedding if is_tied else self.lm_head.to(device)

    def digest(self) -> str:
        """SHA-256 over every tensor's shape and bytes, in order. Reads all of them: about a second per GB."""
        total = sha256()
        for tensor in self.tensors():
            total.update(str(tuple(tensor.shape)).encode())
            total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return total.hexdigest()

    @property
    def num_parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors())

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


def dtype_from_name(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r} is not supported (supported: {', '.join(DTYPES)})")
    return DTYPES[name]


def assemble(config: ModelConfig, source: TensorSource, dtype: torch.dtype) -> DecoderWeights:
    """Reads, checks and fuses every tensor of the decoder."""
    hidden, query, kv = config.hidden_size, config.query_size, config.kv_size
    vocab_shape = (config.vocab_size, hidden)
    embedding = _fuse(source, dtype, [("model.embed_tokens.weight", vocab_shape)])
    layers = []
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        qkv = (("q_proj", query), ("k_proj", kv), ("v_proj", kv))
        qkv_bias, output_bias, query_norm, key_norm = None, None, None, None
        if config.qkv_bias:
            qkv_bias = _fuse(source, dtype, [(f"{attention}{name}.bias", (rows,)) for name, rows in qkv])
        if config.output_bias:
            output_bias = _fuse(source, dtype, [(f"{attention}o_proj.bias", (hidden,))])
        if config.qk_norm:
            query_norm = _fuse(source, dtype, [(f"{attention}q_norm.weight", (config.head_dim,))])
            key_norm = _fuse(source, dtype, [(f"{attention}k_norm.weight", (config.head_dim,))])
        gate_up_shape = (config.intermediate_size, hidden)
        layers.append(
            LayerWeights(
                input_norm=_fuse(source, dtype, [(f"{prefix}input_layernorm.weight", (hidden,))]),
                qkv=_fuse(source, dtype, [(f"{attention}{name}.weight", (rows, hidden)) for name, rows in qkv]),
                qkv_bias=qkv_bias,
                output=_fuse(source, dtype, [(f"{attention}o_proj.weight", (hidden, query))]),
                output_bias=output_bias,
                post_norm=_fuse(source, dtype, [(f"{prefix}post_attention_layernorm.weight", (hidden,))]),
                gate_up=_fuse(
                    source, dtype, [(f"{mlp}{name}.weight", gate_up_shape) for name in ("gate_proj", "up_proj")]
                ),
                down=_fuse(source, dtype, [(f"{mlp}down_proj.weight", (hidden, config.intermediate_size))]),
                query_norm=query_norm,
                key_norm=key_norm,
            )
        )
    final_norm = _fuse(source, dtype, [("model.norm.weight", (hidden,))])
    lm_head = embedding if config.tie_embeddings else _fuse(source, dtype, [("lm_head.weight", vocab_shape)])
    return DecoderWeights(embedding, layers, final_norm, lm_head)


def split_to_hf(config: ModelConfig, weights: DecoderWeights) -> dict[str, Tensor]:
    """The inverse of `assemble`: HF names to contiguous tensors; a tied lm_head is left out, as HF does."""
    named = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.final_norm}
    if not config.tie_embeddings:
        named["lm_head.weight"] = weights.lm_head
    qkv_sizes = [config.query_size, config.kv_size, config.kv_size]
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        named[f"{prefix}input_layernorm.weight"] = layer.input_norm
        named[f"{prefix}post_attention_layernorm.weight"] = layer.post_norm
        for name, part in zip(("q_proj", "k_proj", "v_proj"), torch.split(layer.qkv, qkv_sizes), strict=True):
            named[f"{attention}{name}.weight"] = part
        if layer.qkv_bias is not None:
            for name, part in zip(("q_proj", "k_proj", "v_proj"), torch.split(layer.qkv_bias, qkv_sizes), strict=True):
                named[f"{attention}{name}.bias"] = part
        if layer.query_norm is not None and layer.key_norm is not None:
            named[f"{attention}q_norm.weight"], named[f"{attention}k_norm.weight"] = layer.query_norm, layer.key_norm
        named[f"{attention}o_proj.weight"] = layer.output
        if layer.output_bias is not None:
            named[f"{attention}o_proj.bias"] = layer.output_bias
        gate, up = layer.gate_up.chunk(2)
        named[f"{mlp}gate_proj.weight"], named[f"{mlp}up_proj.weight"] = gate, up
        named[f"{mlp}down_proj.weight"] = layer.down
    return {name: tensor.contiguous() for name, tensor in named.items()}


def _fuse(source: TensorSource, dtype: torch.dtype, parts: list[tuple[str, tuple[int, ...]]]) -> Tensor:
    """Stacks the named tensors by rows, each checked against its expected shape."""
    rows = sum(shape[0] for _, shape in parts)
    fused = torch.empty((rows, *parts[0][1][1:]), dtype=dtype)
    start = 0
    for name, shape in parts:
        tensor = source.read(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(f"tensor {name} has shape {tuple(tensor.shape)}, expected {shape}")
        fused[start : start + shape[0]] = tensor
        start += shape[0]
    return fused
