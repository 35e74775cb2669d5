"""The forward pass over a flat batch of query tokens. Knows no sequences and no blocks: attention is a collaborator."""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.ops import DecoderOps, Linear, TorchOps
from engine.model.rope import rope_tables
from engine.model.weights import DecoderWeights, LayerWeights
from probes import optime
from probes.optime import Laps


class Attention(Protocol):
    """Paged attention of one step: the batch's layout was given to it before the forward pass."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, timer: Laps) -> Tensor:
        """Stores key and value [tokens, kv_heads, head_dim], then attends query [tokens, heads, head_dim] to all KV of
        each token's sequence up to and including itself. Returns [tokens, heads * head_dim]; books its own laps."""
        ...


class _Products(NamedTuple):
    """The matrix products of a layer."""

    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear


class Decoder:
    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        ops: DecoderOps | None = None,
        *,
        takes_matrices: bool = False,
    ) -> None:
        """ops: torch's own when not given. takes_matrices: `weights` lose each matrix once it is laid out for `ops`, so that
        what was laid out anew is not held twice."""
        self.config = config
        self._ops = ops or TorchOps()
        self.weights = weights
        device = weights.embedding.device
        cos, sin = rope_tables(config, weights.dtype)
        self._cos, self._sin = cos.to(device), sin.to(device)
        self._head_norms = [_head_norm(config, layer) for layer in weights.layers]
        self._products: list[_Products] = []
        for layer in weights.layers:
            linear = self._ops.linear
            products = (
                linear(layer.qkv, layer.qkv_bias),
                linear(layer.output, layer.output_bias),
                linear(layer.gate_up),
                linear(layer.down),
            )
            self._products.append(_Products(*products))
            if takes_matrices:
                layer.drop_matrices()
        self._lm_head = self._ops.linear(weights.lm_head)
        if takes_matrices:
            weights.drop_lm_head()

    def forward(
        self, token_ids: Tensor, positions: Tensor, sample_rows: Tensor, attention: Attention, timer: Laps
    ) -> Tensor:
        """token_ids, positions: [tokens]; sample_rows: [n] rows wanted; int64 or int32. Returns logits [n, vocab].

        All rows write their KV. Only the wanted ones pass what follows the last layer's attention: its output projection
        and MLP, the final norm and the vocabulary projection (for this model family up to a fifth of the FLOPs). With no
        row wanted the result is empty and none of that is computed.
        """
        weights, eps = self.weights, self.config.rms_eps
        hidden = F.embedding(token_ids, weights.embedding)
        cos, sin = self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)
        timer.lap(optime.OTHER)
        last = len(weights.layers) - 1
        for index, layer in enumerate(weights.layers):
            attended = self._attend(index, layer, hidden, cos, sin, attention, timer)
            if index == last:
                if not sample_rows.numel():
                    return hidden.new_empty((0, self.config.vocab_size))
                hidden, attended = hidden[sample_rows], attended[sample_rows]
                timer.lap(optime.OTHER)
            projected = self._products[index].output(attended)
            timer.lap(optime.GEMM)
            hidden = self._mlp_block(index, layer, hidden.add_(projected), timer)
        wanted = self._ops.rms_norm(hidden, weights.final_norm, eps)
        timer.lap(optime.NORM_ROPE_ACT)
        logits = self._lm_head(wanted)
        timer.lap(optime.GEMM)
        return logits

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        attention: Attention,
        timer: Laps,
    ) -> Tensor:
        config, ops = self.config, self._ops
        normed = ops.rms_norm(hidden, layer.input_norm, config.rms_eps)
        timer.lap(optime.NORM_ROPE_ACT)
        qkv = self._products[index].qkv(normed)
        timer.lap(optime.GEMM)
        # Heads in the fused row: | query heads | key heads | value heads |; the first two groups are rotated together.
        heads = qkv.view(-1, config.num_query_heads + 2 * config.num_kv_heads, config.head_dim)
        value_start = config.num_query_heads + config.num_kv_heads
        rotating, head_norm = heads[:, :value_start], self._head_norms[index]
        if head_norm is not None:
            rotating = F.rms_norm(rotating, (config.head_dim,), None, config.rms_eps).mul_(head_norm)
        rotated = ops.rotate(rotating, cos, sin)
        query, key = rotated[:, : config.num_query_heads], rotated[:, config.num_query_heads :]
        timer.lap(optime.NORM_ROPE_ACT)
        return attention.attend(index, query, key, heads[:, value_start:], timer)

    def _mlp_block(self, index: int, layer: LayerWeights, hidden: Tensor, timer: Laps) -> Tensor:
        ops, products = self._ops, self._products[index]
        normed = ops.rms_norm(hidden, layer.post_norm, self.config.rms_eps)
        timer.lap(optime.NORM_ROPE_ACT)
        gate_up = products.gate_up(normed)
        timer.lap(optime.GEMM)
        activated = ops.silu_mul(gate_up)
        timer.lap(optime.NORM_ROPE_ACT)
        projected = products.down(activated)
        timer.lap(optime.GEMM)
        return hidden.add_(projected)


def _head_norm(config: ModelConfig, layer: LayerWeights) -> Tensor | None:
    """Norm weights of the query heads, then of the key heads: [query heads + KV heads, head_dim], one product for all."""
    if layer.query_norm is None or layer.key_norm is None:
        return None
    queries = layer.query_norm.expand(config.num_query_heads, -1)
    return torch.cat((queries, layer.key_norm.expand(config.num_kv_heads, -1)))
