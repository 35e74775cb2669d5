"""Logits of every model family, and of every way it may be configured, against Hugging Face transformers.

The models are random and tiny, made here and saved by transformers itself, so that its files are what is read.
"""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.model.registry import LoadedModel, load_model
from engine.tokenizer import byte_level_tokenizer
from tests.engine.model_helpers import BLOCK_SIZE, blocks_for, make_prompt, make_request, make_runner, prefill_logits

os.environ.setdefault("HF_HUB_OFFLINE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = 75
SHAPE: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 258,
    "pad_token_id": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3, "rope_scaling": LLAMA3}),
    "llama-bias-tied": ("Llama", {"attention_bias": True, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 24}),
    "mistral-window-of-the-context": ("Mistral", {"sliding_window": 256}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window-off": ("Qwen2", {"use_sliding_window": False, "sliding_window": 16, "rope_theta": 1e6}),
    "qwen3": ("Qwen3", {"head_dim": 40}),
    "qwen3-bias-tied": ("Qwen3", {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": True}),
}


def make_pair(directory: Path, family: str, dtype: torch.dtype) -> tuple[Any, LoadedModel]:
    """A random model of transformers, and what the engine loads from its directory."""
    kind, changes = FAMILIES[family]
    config = getattr(transformers, f"{kind}Config")(**(SHAPE | changes))
    with torch.random.fork_rng():
        torch.manual_seed(7)
        theirs = getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype).eval()
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                # Norms and biases are left at 1 and 0 by the constructor, where mistakes about them would not show.
                scale = 0.3 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
                parameter.normal_(mean=1.0 if name.endswith("norm.weight") else 0.0, std=scale)
    theirs.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(byte_level_tokenizer().to_json(), encoding="utf-8")
    return theirs, load_model(str(directory), str(dtype).removeprefix("torch."))


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # transformers computes rotary angles and norms in float32 whatever the dtype.
    [(torch.float32, 2e-4), (torch.float64, 5e-5)],
    ids=["float32", "float64"],
)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore")
def test_logits_equal_those_of_transformers(tmp_path: Path, family: str, dtype: torch.dtype, tolerance: float):
    theirs, ours = make_pair(tmp_path, family, dtype)
    prompt = make_prompt(TOKENS)
    with torch.inference_mode():
        expected = theirs(torch.tensor([prompt])).logits[0]
    runner = make_runner(ours, num_blocks=8, block_size=BLOCK_SIZE)
    logits = prefill_logits(runner, make_request(prompt, blocks_for(TOKENS)), chunk_size=32)
    assert expected.abs().max() > 1, "noise would hide differences"
    torch.testing.assert_close(logits, expected, atol=tolerance, rtol=0)


@pytest.mark.filterwarnings("ignore")
def test_a_model_written_here_is_read_by_transformers(tmp_path: Path):
    """Export of the family with the most options: what other engines are given is what runs here."""
    from engine.model.export import export_hf

    _, ours = make_pair(tmp_path / "theirs", "qwen3-bias-tied", torch.float32)
    export_hf(ours, tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    prompt = make_prompt(TOKENS)
    with torch.inference_mode():
        expected = again(torch.tensor([prompt])).logits[0]
    logits = prefill_logits(
        make_runner(ours, num_blocks=8), make_request(prompt, blocks_for(TOKENS)), chunk_size=TOKENS
    )
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=0)
