"""What the target does not say of itself: devices by name, geometry by config.json."""

import json

import pytest

from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.errors import SourceError
from diagnose.hardware import find_hardware, parse_devices
from diagnose.model_config import model_labels, read_model_config
from diagnose.signals import Gauge
from diagnose.supplement import Supplement
from tests.builders import make_signals
from tests.diagnose import cases
from tests.diagnose.cases import finding, look, texts, verdict

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
QWEN_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA GH200 480GB", "GH200"),
    ],
)
def test_devices_are_known_by_the_name_their_driver_gives(name, known):
    found = find_hardware(name)
    assert found is not None
    assert found.name == known


@pytest.mark.parametrize("name", ["NVIDIA A1000", "abacus", "", "0x H100", "NVIDIA L400"])
def test_an_unknown_device_is_refused_with_what_is_known(name):
    with pytest.raises(SourceError, match=r"known: .*H100 SXM"):
        parse_devices(name)


def test_several_devices_add_their_ceilings_up():
    devices = parse_devices("4x NVIDIA H100 80GB HBM3")
    assert (devices.bandwidth, devices.flops) == (4 * 3.35e12, 4 * 989e12)
    assert str(devices) == "4 x H100 SXM"


@pytest.mark.parametrize(
    ("config", "parameters", "kv_bytes"),
    [(LLAMA_8B, 8_030_261_248, 128 * 1024), (QWEN_7B, 7_615_616_512, 28 * 2 * 4 * 128 * 2)],
)
def test_geometry_of_published_models(config, parameters, kv_bytes):
    labels = model_labels(config)
    assert labels["num_parameters"] == str(parameters)
    assert labels["weight_bytes"] == str(2 * parameters)
    assert labels["kv_bytes_per_token"] == str(kv_bytes)


def test_what_a_config_does_not_say_is_left_out():
    experts = model_labels(LLAMA_8B | {"num_local_experts": 8})
    assert "weight_bytes" not in experts
    assert "num_parameters" not in experts
    quantised = model_labels(LLAMA_8B | {"quantization_config": {"quant_method": "awq"}})
    assert "weight_bytes" not in quantised
    assert quantised["num_parameters"] == "8030261248"
    latent = model_labels(LLAMA_8B | {"kv_lora_rank": 512, "qk_rope_head_dim": 64})
    assert latent["kv_bytes_per_token"] == str(32 * 576 * 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "is not JSON"),
        ("[]", "should be the object"),
        ("{}", "num_hidden_layers"),
        (json.dumps(LLAMA_8B | {"num_attention_heads": 0}), "is not the config.json of a decoder"),
        (json.dumps(LLAMA_8B | {"torch_dtype": "int3"}), "is not the config.json of a decoder"),
    ],
)
def test_a_wrong_config_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(SourceError, match=message):
        read_model_config(path)
    with pytest.raises(SourceError, match="cannot be read"):
        read_model_config(tmp_path / "absent.json")


def test_a_nested_decoder_is_found(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": LLAMA_8B}))
    assert read_model_config(path)["num_layers"] == "32"


def test_the_target_s_own_figures_stand_and_contradictions_are_told():
    signals = make_signals(gauges={"bandwidth_ceiling": 1e9}, info={"num_layers": "30", "dtype": ""})
    warnings = Supplement(parse_devices("H100"), model_labels(LLAMA_8B)).add_to(signals)
    assert signals.gauges["bandwidth_ceiling"].last == 1e9
    assert signals.gauges["flops_ceiling"] == Gauge((989e12,), "datasheet of H100 SXM")
    assert signals.info["num_layers"] == "30"
    assert signals.info["dtype"] == "bfloat16"
    assert warnings == ["num_layers: the target says 30, --model-config 32; the target's is used"]


def test_a_roofline_from_a_datasheet_says_so():
    """Steps that read 8 GB/s: at the ceiling that this engine measured, and far from it on an engine that measured none."""

    def compared(diagnosis: Diagnosis) -> list[str]:
        evidence = finding(diagnosis, "bandwidth_saturation").judgement.evidence
        return [item.compared_with for item in evidence if "GB/s" in item.text]

    own = look(cases.long_contexts(), cases.short_contexts())
    assert verdict(own, "bandwidth_saturation") == "supported"
    assert compared(own) == ["10.0 GB/s (stallscope_device_bandwidth_bytes_per_second)"]
    silent = {"bandwidth_bytes_per_second": None}
    incident, baseline = cases.long_contexts(**silent), cases.short_contexts(**silent)
    told = judge(
        incident, baseline, (), is_live=True, target=cases.TARGET, supplement=Supplement(parse_devices("NVIDIA L4"))
    )
    assert verdict(told, "bandwidth_saturation") == "refuted"
    assert compared(told) == ["300.0 GB/s (datasheet of L4)"]
    untold = look(cases.long_contexts(**silent), cases.short_contexts(**silent))
    assert verdict(untold, "bandwidth_saturation") == "undetermined"
    assert "--device" in texts(untold, "bandwidth_saturation")
