"""What runners share about models and pools: the part of a model they need, its geometry, and the pool's bounds."""

from typing import Protocol

from engine.errors import ConfigError
from engine.model.config import ModelConfig
from engine.model.weights import DecoderWeights
from engine.runner.base import ModelGeometry


class RunnableModel(Protocol):
    """A model without tokenizer and template; `engine.model.registry.LoadedModel` is one."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def weights(self) -> DecoderWeights: ...


def geometry_of(model: RunnableModel) -> ModelGeometry:
    config, weights = model.config, model.weights
    element_bytes = weights.embedding.element_size()
    return ModelGeometry(
        name=model.name,
        num_layers=config.num_layers,
        num_query_heads=config.num_query_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_position=config.max_position,
        num_parameters=weights.num_parameters,
        weight_bytes=weights.num_bytes,
        kv_bytes_per_token=2 * config.num_layers * config.kv_size * element_bytes,
        dtype=str(weights.dtype).removeprefix("torch."),
    )


def check_pool(num_blocks: int, block_size: int, *, bytes_per_token: int, available: int) -> None:
    """Raises ConfigError unless a pool of `num_blocks` has at least one token and fits into `available` bytes."""
    if num_blocks < 1 or block_size < 1:
        raise ConfigError(f"the KV pool needs at least one block of one token, not {num_blocks} x {block_size}")
    num_bytes = num_blocks * block_size * bytes_per_token
    if num_bytes > available:
        wanted = f"{num_blocks} blocks of {block_size} tokens need {num_bytes >> 20} MiB"
        raise ConfigError(f"KV pool too large: {wanted}, {max(0, available) >> 20} MiB are left beside the weights")
