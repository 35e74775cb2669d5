"""A model's geometry from its config.json, for engines that do not state it: the labels of `engine_info`.

Counts of a dense decoder with grouped-query attention and a gated MLP (Llama, Mistral, Qwen2, Qwen3, Gemma without its extra
norms). Where a count depends on what the file does not say (experts hit per step, quantised weights), it is left out, and
with it every statement that rests on it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diagnose.errors import SourceError

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def read_model_config(path: Path) -> dict[str, str]:
    """Labels as `engine_info` has them. Raises SourceError that names the file and what is wrong with it."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"--model-config {path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise SourceError(f"--model-config {path}: is not JSON: {error}") from None
    if isinstance(values, dict) and isinstance(values.get("text_config"), dict):
        values = values["text_config"]  # multimodal models nest their decoder
    if not isinstance(values, dict):
        raise SourceError(f"--model-config {path}: should be the object of a Hugging Face config.json")
    try:
        return model_labels(values)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise SourceError(f"--model-config {path}: is not the config.json of a decoder: {error!r}") from None


def model_labels(config: Mapping[str, Any]) -> dict[str, str]:
    """Raises KeyError, TypeError or ValueError when the file lacks a dimension."""
    layers, query_heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or int(config["hidden_size"]) // query_heads)
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
    if min(layers, query_heads, head_dim) <= 0 or dtype not in _BYTES:
        raise ValueError(f"{layers} layers, {query_heads} heads of {head_dim}, {dtype}")
    labels = {
        "num_layers": layers,
        "num_query_heads": query_heads,
        "head_dim": head_dim,
        "kv_bytes_per_token": layers * _kv_values(config, query_heads, head_dim) * _BYTES[dtype],
    }
    if not any(config.get(name) for name in _EXPERTS) and "kv_lora_rank" not in config:
        parameters = _dense_parameters(config, layers, query_heads, head_dim)
        labels["num_parameters"] = parameters
        if not config.get("quantization_config"):
            labels["weight_bytes"] = parameters * _BYTES[dtype]
    return {"dtype": dtype} | {name: str(value) for name, value in labels.items()}


def _kv_values(config: Mapping[str, Any], query_heads: int, head_dim: int) -> int:
    """Cached values per token and layer: K and V of every KV head, or one latent vector (multi-head latent attention)."""
    if "kv_lora_rank" in config:
        return int(config["kv_lora_rank"]) + int(config["qk_rope_head_dim"])
    return 2 * int(config.get("num_key_value_heads") or query_heads) * head_dim


def _dense_parameters(config: Mapping[str, Any], layers: int, query_heads: int, head_dim: int) -> int:
    hidden, vocabulary = int(config["hidden_size"]), int(config["vocab_size"])
    query, kv = query_heads * head_dim, int(config.get("num_key_value_heads") or query_heads) * head_dim
    kind = str(config.get("model_type", ""))
    attention = hidden * (query + 2 * kv) + query * hidden
    if kind == "qwen2" or config.get("attention_bias"):
        attention += query + 2 * kv
    if kind != "qwen2" and config.get("attention_bias"):
        attention += hidden
    if kind == "qwen3":
        attention += 2 * head_dim
    layer = attention + 3 * hidden * int(config["intermediate_size"]) + 2 * hidden
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return layers * layer + embeddings + hidden
