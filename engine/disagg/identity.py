"""What must be equal in two processes before KV of one may serve the other."""

from engine.model.registry import LoadedModel
from engine.prefix_cache import CacheScope, identity
from engine.runner.kv_blocks import LAYOUT


def transfer_scope(model: LoadedModel, block_size: int) -> CacheScope:
    """Digests the weights, which must be in host memory: a name can stand for other weights elsewhere."""
    config, dtype = model.config, str(model.weights.dtype)
    return CacheScope(
        weights=identity(digest=model.weights.digest(), architecture=config.architecture, dtype=dtype),
        positional=identity(theta=config.rope_theta, scaling=config.rope_scaling),
        kv_format=identity(
            dtype=dtype,
            layout=LAYOUT,
            layers=config.num_layers,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        ),
        engine=identity(block_size=block_size),
    )
