"""Llamas with random weights for vLLM: what a step costs and how blocks move does not depend on what the weights say."""

import json
from pathlib import Path
from typing import Any

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,  # vLLM's CPU attention has no kernel for smaller ones
    "vocab_size": 512,
    "max_position_embeddings": 8192,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
_LARGER = {
    "num_hidden_layers": 8,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
"""22 million parameters: a decode step of some 20 ms on an idle core, and a chunk of 128 tokens several times that."""


def make_llm(directory: Path, **options: Any) -> Any:
    """A vLLM `LLM` whose engine runs in this process. Call it with VLLM_ENABLE_V1_MULTIPROCESSING=0 in the environment."""
    from vllm import LLM

    (directory / "config.json").write_text(json.dumps(_CONFIG))
    fixed = {"load_format": "dummy", "skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True}
    return LLM(str(directory), **fixed, **options)


def engine_core(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core


def write_served_model(directory: Path) -> Path:
    """A larger one with the byte tokenizer of our tiny model, to be served with --load-format dummy."""
    from engine.model.export import export_hf
    from engine.model.registry import load_model

    export_hf(load_model("tiny", "float32"), directory)
    (directory / "model.safetensors").unlink()
    exported = json.loads((directory / "config.json").read_text())
    names = ("vocab_size", "bos_token_id", "eos_token_id")
    config = _CONFIG | _LARGER | {name: exported[name] for name in names}
    (directory / "config.json").write_text(json.dumps(config))
    return directory
