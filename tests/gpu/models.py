"""Random models of realistic geometry, their weights drawn on the device: no file and no download."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.weights import DecoderWeights, LayerWeights


class RandomModel(NamedTuple):
    """Implements `engine.runner.model.RunnableModel`."""

    name: str
    config: ModelConfig
    weights: DecoderWeights


def llama(
    *, num_layers: int, hidden: int, intermediate: int, query_heads: int, kv_heads: int, vocab: int, tied: bool
) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_query_heads=query_heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // query_heads,
        vocab_size=vocab,
        max_position=8192,
        rope_theta=500000.0,
        rms_eps=1e-5,
        tie_embeddings=tied,
    )


LLAMA_8B_4_LAYERS = llama(
    num_layers=4, hidden=4096, intermediate=14336, query_heads=32, kv_heads=8, vocab=128256, tied=False
)
LLAMA_1B = llama(num_layers=16, hidden=2048, intermediate=8192, query_heads=32, kv_heads=8, vocab=128256, tied=True)


def random_model(
    name: str, config: ModelConfig, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> RandomModel:
    """Weights with a standard deviation of 1/sqrt(in), so that activations keep their size through the layers."""
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        values = torch.randn((rows, columns), generator=generator, device=device, dtype=torch.float32)
        return values.div_(math.sqrt(columns)).to(dtype)

    def ones() -> Tensor:
        return torch.ones(config.hidden_size, device=device, dtype=dtype)

    def layer() -> LayerWeights:
        return LayerWeights(
            input_norm=ones(),
            qkv=matrix(config.query_size + 2 * config.kv_size, config.hidden_size),
            qkv_bias=None,
            output=matrix(config.hidden_size, config.query_size),
            output_bias=None,
            post_norm=ones(),
            gate_up=matrix(2 * config.intermediate_size, config.hidden_size),
            down=matrix(config.hidden_size, config.intermediate_size),
        )

    embedding = matrix(config.vocab_size, config.hidden_size)
    layers = [layer() for _ in range(config.num_layers)]
    lm_head = embedding if config.tie_embeddings else matrix(config.vocab_size, config.hidden_size)
    return RandomModel(name, config, DecoderWeights(embedding, layers, ones(), lm_head))
