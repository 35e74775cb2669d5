"""A tiny Llama for vLLM, with random weights: two layers, of the smallest head that its CPU attention has a kernel for."""

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
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 8192,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def make_llm(directory: Path, **options: Any) -> Any:
    """A vLLM `LLM` whose engine runs in this process. Call it with VLLM_ENABLE_V1_MULTIPROCESSING=0 in the environment."""
    from vllm import LLM

    (directory / "config.json").write_text(json.dumps(_CONFIG))
    fixed = {"load_format": "dummy", "skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True}
    return LLM(str(directory), **fixed, **options)


def engine_core(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core
