"""A random two-layer decoder with a byte-level tokenizer: the whole engine runs in milliseconds and without a download.

The same seed gives the same weights on every machine with the same torch; its text is noise.
"""

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.tokenizer import BYTE_LEVEL_SPECIALS

TINY_CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    num_layers=2,
    hidden_size=64,
    intermediate_size=128,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=256 + len(BYTE_LEVEL_SPECIALS),
    max_position=8192,
    rope_theta=10000.0,
    rms_eps=1e-5,
    tie_embeddings=False,
    bos_id=256,
    eos_ids=(258,),
)


class RandomSource:
    """Tensors drawn from one seed and the tensor's name, so that their values do not depend on the order of reading.

    Matrices have a standard deviation of 1/sqrt(in): attention is far from uniform, so that a wrong mask or position
    shows in the logits.
    """

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self._config = config
        self._seed = seed

    def read(self, name: str) -> Tensor:
        shape = self._shape(name)
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=torch.float64)
        generator = torch.Generator().manual_seed(
            self._seed * 1_000_003 + sum(ord(c) * 31**i for i, c in enumerate(name)) % 999_983
        )
        scale = 1.0 if name.endswith("embed_tokens.weight") or len(shape) == 1 else shape[-1] ** -0.5
        return torch.randn(shape, generator=generator, dtype=torch.float64) * scale

    def _shape(self, name: str) -> tuple[int, ...]:
        config = self._config
        parts = name.split(".")
        module, kind = parts[-2], parts[-1]
        rows = {
            "q_proj": config.query_size,
            "k_proj": config.kv_size,
            "v_proj": config.kv_size,
            "gate_proj": config.intermediate_size,
            "up_proj": config.intermediate_size,
            "embed_tokens": config.vocab_size,
            "lm_head": config.vocab_size,
        }.get(module, config.hidden_size)
        if module in ("q_norm", "k_norm"):
            return (config.head_dim,)
        if kind == "bias" or module.endswith("norm"):
            return (rows,)
        columns = {"o_proj": config.query_size, "down_proj": config.intermediate_size}.get(module, config.hidden_size)
        return (rows, columns)
