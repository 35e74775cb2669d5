"""GGUF files of models made in tests, as llama.cpp's converter would write them."""

from pathlib import Path

import gguf
import numpy as np
from torch import Tensor

from engine.model.registry import LoadedModel
from engine.model.weights import split_to_hf

GGUF_NAMES = {
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


def write_gguf(path: Path, model: LoadedModel, architecture: str = "llama", divisors: Tensor | None = None) -> Path:
    """The model as llama.cpp's converter would write it: Q and K rows of each head reordered to interleaved pairs;
    `divisors` of the rotary frequencies, when they are scaled."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_query_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = [model.tokenizer.token(index) or "" for index in range(config.vocab_size)]
    writer.add_token_list(tokens)
    tokens[255] = "ab"  # a byte that no UTF-8 text has gives its place to a merge
    writer.add_token_merges(["a b"])
    writer.add_token_types([3 if index in model.tokenizer.special_ids else 1 for index in range(config.vocab_size)])
    writer.add_eos_token_id(258)
    writer.add_bos_token_id(256)
    writer.add_add_bos_token(True)
    for name, tensor in split_to_hf(config, model.weights).items():
        heads = {"q_proj": config.num_query_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
        values = tensor.numpy()
        if heads is not None and architecture == "llama":
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        stem, _, kind = name.rpartition(".")
        if stem.startswith("model.layers."):
            _, _, layer, module = stem.split(".", 3)
            stem = f"blk.{layer}.{GGUF_NAMES[module]}"
        else:
            stem = GGUF_NAMES[stem]
        writer.add_tensor(f"{stem}.{kind}", np.ascontiguousarray(values))
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
