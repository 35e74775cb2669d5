"""Geometry and constants of a Llama-family decoder, read from a HF config.json or from GGUF metadata.

What the decoder does not implement is refused here, in one line, before any weight is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine.errors import ModelError

HF_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_HF_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_MISTRAL_WINDOW, _QWEN3_HEAD_DIM = 4096, 128
"""What transformers takes when a config.json does not say."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    """The last three are read by `llama3` only."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder: RMSNorm, rotary positions (rotate-half), grouped-query attention, SwiGLU."""

    architecture: str
    """One of `HF_ARCHITECTURES`: what an exported config.json says."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rope_theta: float
    rms_eps: float
    tie_embeddings: bool
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    """Bias of the attention output projection."""
    qk_norm: bool = False
    """RMSNorm over each query and key head, before their rotation."""
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "intermediate_size", "num_query_heads", "num_kv_heads", "head_dim"):
            _require_positive(name, getattr(self, name))
        _require_positive("vocab_size", self.vocab_size)
        _require_positive("max_position", self.max_position)
        if self.num_query_heads % self.num_kv_heads:
            heads = f"{self.num_query_heads} query heads, {self.num_kv_heads} KV heads"
            raise ModelError(f"query heads must be a multiple of KV heads: {heads}")
        if self.head_dim % 2:
            raise ModelError(f"head_dim must be even for rotary positions, not {self.head_dim}")

    @property
    def query_size(self) -> int:
        return self.num_query_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


def config_from_hf(values: Mapping[str, Any]) -> ModelConfig:
    """Reads the dict of a config.json (the layouts of transformers 4 and 5)."""
    architecture = _hf_architecture(values)
    max_position = int(values.get("max_position_embeddings") or 2048)
    _refuse_unsupported_hf(values, architecture, max_position)
    hidden_size = int(_required(values, "hidden_size"))
    num_query_heads = int(_required(values, "num_attention_heads"))
    # transformers 5 moved theta into rope_parameters; transformers 4 has rope_theta beside rope_scaling.
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    default_head_dim = _QWEN3_HEAD_DIM if architecture == "Qwen3ForCausalLM" else hidden_size // num_query_heads
    is_qwen2 = architecture == "Qwen2ForCausalLM"
    attention_bias = bool(values.get("attention_bias", False))
    return ModelConfig(
        architecture=architecture,
        num_layers=int(_required(values, "num_hidden_layers")),
        hidden_size=hidden_size,
        intermediate_size=int(_required(values, "intermediate_size")),
        num_query_heads=num_query_heads,
        num_kv_heads=int(values.get("num_key_value_heads") or num_query_heads),
        head_dim=int(values.get("head_dim") or default_head_dim),
        vocab_size=int(_required(values, "vocab_size")),
        max_position=max_position,
        rope_theta=float(rope.get("rope_theta") or values.get("rope_theta") or 10000.0),
        rms_eps=float(values.get("rms_norm_eps") or 1e-6),
        tie_embeddings=bool(values.get("tie_word_embeddings", False)),
        rope_scaling=_hf_rope_scaling(rope),
        qkv_bias=is_qwen2 or attention_bias,
        output_bias=attention_bias and not is_qwen2,
        qk_norm=architecture == "Qwen3ForCausalLM",
        bos_id=_first_id(values.get("bos_token_id")),
        eos_ids=token_ids(values.get("eos_token_id")),
    )


def config_to_hf(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """The config.json of `config`, readable by transformers 4 and 5 and by `config_from_hf`."""
    eos: int | list[int] | None = list(config.eos_ids) or None
    if len(config.eos_ids) == 1:
        eos = config.eos_ids[0]
    return {
        "architectures": [config.architecture],
        "model_type": _HF_MODEL_TYPES[config.architecture],
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_query_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position,
        "rope_theta": config.rope_theta,
        "rope_scaling": _rope_scaling_to_hf(config.rope_scaling),
        "rms_norm_eps": config.rms_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.output_bias,
        "mlp_bias": False,
        "hidden_act": "silu",
        "sliding_window": None,
        "bos_token_id": config.bos_id,
        "eos_token_id": eos,
        "torch_dtype": dtype,
    }


def config_from_gguf(metadata: Mapping[str, Any], *, vocab_size: int, tie_embeddings: bool) -> ModelConfig:
    """Reads GGUF metadata; the two keywords come from the tensors, since metadata may not say."""
    architecture = metadata.get("general.architecture")
    if architecture not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise ModelError(f"GGUF architecture {architecture!r} is not supported (supported: {known})")

    def field(name: str, default: Any = None) -> Any:
        value = metadata.get(f"{architecture}.{name}", default)
        if value is None:
            raise ModelError(f"GGUF metadata lacks {architecture}.{name}")
        if isinstance(value, list):
            raise ModelError(f"GGUF models whose layers differ ({architecture}.{name} is a list) are not supported")
        return value

    if field("expert_count", 0):
        raise ModelError("GGUF mixture-of-experts models are not supported")
    hidden_size = int(field("embedding_length"))
    num_query_heads = int(field("attention.head_count"))
    head_dim = int(field("attention.key_length", hidden_size // num_query_heads))
    if int(field("rope.dimension_count", head_dim)) != head_dim:
        raise ModelError(f"partial rotary positions are not supported ({field('rope.dimension_count')} of {head_dim})")
    max_position = int(field("context_length"))
    _refuse_binding_window(int(field("attention.sliding_window", 0)), max_position)
    scaling = str(field("rope.scaling.type", "none"))
    if scaling not in ("none", "linear"):
        raise ModelError(f"GGUF rope scaling {scaling!r} is not supported (supported: none, linear)")
    return ModelConfig(
        architecture=GGUF_ARCHITECTURES[architecture],
        num_layers=int(field("block_count")),
        hidden_size=hidden_size,
        intermediate_size=int(field("feed_forward_length")),
        num_query_heads=num_query_heads,
        num_kv_heads=int(field("attention.head_count_kv", num_query_heads)),
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position=max_position,
        rope_theta=float(field("rope.freq_base", 10000.0)),
        rms_eps=float(field("attention.layer_norm_rms_epsilon")),
        tie_embeddings=tie_embeddings,
        rope_scaling=RopeScaling("linear", float(field("rope.scaling.factor"))) if scaling == "linear" else None,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
        bos_id=_first_id(metadata.get("tokenizer.ggml.bos_token_id")),
        eos_ids=token_ids(metadata.get("tokenizer.ggml.eos_token_id")),
    )


def token_ids(value: Any) -> tuple[int, ...]:
    """A config's `eos_token_id`: absent, one id or a list of ids."""
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, list) else (int(value),)


def _hf_architecture(values: Mapping[str, Any]) -> str:
    names = values.get("architectures") or []
    for name in names:
        if name in HF_ARCHITECTURES:
            return str(name)
    found = ", ".join(map(str, names)) or f"model_type {values.get('model_type')!r}"
    raise ModelError(f"architecture {found} is not supported (supported: {', '.join(HF_ARCHITECTURES)})")


def _refuse_binding_window(window: int, max_position: int) -> None:
    """A window that holds the whole context is no window: position p sees p - window + 1 .. p."""
    if 0 < window < max_position:
        raise ModelError(
            f"sliding-window attention is not supported (window {window}, smaller than the context of {max_position})"
        )


def _refuse_unsupported_hf(values: Mapping[str, Any], architecture: str, max_position: int) -> None:
    # Llama knows no window. Mistral's is transformers' default unless the config says null; Qwen configs carry one that
    # is off unless use_sliding_window says otherwise.
    if architecture == "MistralForCausalLM":
        _refuse_binding_window(int(values.get("sliding_window", _MISTRAL_WINDOW) or 0), max_position)
    elif architecture != "LlamaForCausalLM" and values.get("use_sliding_window", False):
        _refuse_binding_window(int(values.get("sliding_window") or 0), max_position)
    if values.get("quantization_config"):
        method = values["quantization_config"].get("quant_method", "unknown")
        raise ModelError(f"quantised HF weights ({method}) are not supported: use the unquantised model or a GGUF file")
    if values.get("mlp_bias"):
        raise ModelError("mlp_bias is not supported")
    if values.get("hidden_act", "silu") != "silu":
        raise ModelError(f"activation {values['hidden_act']!r} is not supported (supported: silu)")
    if float(values.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelError("partial rotary positions are not supported")


def _hf_rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    factor = float(rope.get("factor") or 1.0)
    if kind == "linear":
        return RopeScaling("linear", factor)
    if kind == "llama3":
        low, high = float(_required(rope, "low_freq_factor")), float(_required(rope, "high_freq_factor"))
        return RopeScaling("llama3", factor, low, high, int(_required(rope, "original_max_position_embeddings")))
    raise ModelError(f"rope scaling {kind!r} is not supported (supported: linear, llama3)")


def _rope_scaling_to_hf(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    values: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        values["low_freq_factor"] = scaling.low_freq_factor
        values["high_freq_factor"] = scaling.high_freq_factor
        values["original_max_position_embeddings"] = scaling.original_max_position
    return values


def _required(values: Mapping[str, Any], name: str) -> Any:
    if values.get(name) is None:
        raise ModelError(f"the model's config lacks {name!r}")
    return values[name]


def _first_id(value: Any) -> int | None:
    ids = token_ids(value)
    return ids[0] if ids else None


def _require_positive(name: str, value: int) -> None:
    if value <= 0:
        raise ModelError(f"{name} must be positive, not {value}")
