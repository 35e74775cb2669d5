"""GGUF tensors under HF names, dequantised one at a time."""

import re
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from engine.errors import ModelError
from engine.model.config import ModelConfig, config_from_gguf
from engine.model.gguf_dequantise import dequantise
from engine.model.gguf_file import GgufFile, TensorInfo
from engine.model.rope import llama3_scaling

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


class GgufSource:
    """`engine.model.weights.TensorSource` over a mapped GGUF file."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        self.metadata = self._file.metadata
        self.config = self._read_config()
        # llama.cpp stores Q and K of llama models with their rows reordered for interleaved rotary pairs.
        is_permuted = self.metadata["general.architecture"] == "llama"
        config = self.config
        self._permuted = {"attn_q": config.num_query_heads, "attn_k": config.num_kv_heads} if is_permuted else {}

    def read(self, name: str) -> Tensor:
        gguf_name = _gguf_name(name)
        info = self._file.tensors.get(gguf_name)
        if info is None:
            raise ModelError(f"{self._file.path} lacks tensor {gguf_name}")
        tensor = self._dequantise(gguf_name, info)
        num_heads = self._permuted.get(gguf_name.split(".")[-2])
        return tensor if num_heads is None else _rotate_half_order(tensor, num_heads)

    def _read_config(self) -> ModelConfig:
        tensors = self._file.tensors
        if "token_embd.weight" not in tensors:
            raise ModelError(f"{self._file.path} lacks tensor token_embd.weight")
        vocab_size = tensors["token_embd.weight"].shape[0]
        config = config_from_gguf(self.metadata, vocab_size=vocab_size, tie_embeddings="output.weight" not in tensors)
        if "rope_freqs.weight" not in tensors:
            return config
        divisors = self._dequantise("rope_freqs.weight", tensors["rope_freqs.weight"])
        return replace(config, rope_scaling=llama3_scaling(config, divisors))

    def _dequantise(self, name: str, info: TensorInfo) -> Tensor:
        try:
            return dequantise(self._file.data, info)
        except (ValueError, KeyError, NotImplementedError) as error:
            raise ModelError(f"{self._file.path}: tensor {name} cannot be read: {error}") from error


def _gguf_name(name: str) -> str:
    match = _LAYER_NAME.fullmatch(name)
    if match:
        layer, module, kind = match.groups()
        return f"blk.{layer}.{_NAMES[module]}.{kind}"
    module, _, kind = name.rpartition(".")
    return f"{_NAMES[module]}.{kind}"


def _rotate_half_order(tensor: Tensor, num_heads: int) -> Tensor:
    """Rows of each head from interleaved pairs (0,1)(2,3).. to halves: evens first, then odds. Weights and biases."""
    head_dim = tensor.shape[0] // num_heads
    pairs = tensor.view(num_heads, head_dim // 2, 2, -1)
    return pairs.transpose(1, 2).reshape(tensor.shape)
