"""What people can get wrong with `stallscope serve` and a model directory, beside the options: one line, exit code 2."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from engine.errors import ModelError
from engine.model.export import export_hf
from engine.model.registry import load_model
from engine.model.tiny import TINY_CONFIG
from engine.server.command import serve
from tests.engine.model_helpers import tiny


def complaint(*arguments: str) -> str:
    done = CliRunner().invoke(serve, ["--port", "0", "--model", "tiny", *arguments])
    assert done.exit_code == 2
    line: str = done.stderr
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    return line


@pytest.mark.parametrize("attention", ["triton", "flash_attn"])
def test_kernels_of_a_gpu_without_one(attention):
    line = complaint("--device", "cpu", "--attention", attention)
    assert f"--attention {attention} needs a CUDA device; on the CPU: " in line


@pytest.mark.parametrize("fault", ["lock", "lock=fast", "lock=0ms", "noise=5ms", "lock=20s", "lock=999999ms"])
def test_a_fault_that_is_none(monkeypatch, fault):
    monkeypatch.setenv("STALLSCOPE_DRILLS", "1")
    line = complaint("--drill-fault", fault)
    assert f"--drill-fault {fault!r}: write one of " in line
    assert "such as lock=20ms" in line


def test_a_fault_without_the_gate(monkeypatch):
    monkeypatch.delenv("STALLSCOPE_DRILLS", raising=False)
    assert "it needs STALLSCOPE_DRILLS=1 in the environment" in complaint("--drill-fault", "lock=20ms")


def test_a_person_at_a_terminal_sees_that_a_model_is_loaded(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with pytest.raises(SystemExit):
        serve.main(["--port", "0", "--model", "none"], standalone_mode=False)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "loading none ..."
    assert second.startswith("error: no model 'none'")


def test_without_the_server_the_extra_is_named(monkeypatch):
    for name in [
        name for name in sys.modules if name.startswith("engine.server.") and name != serve.callback.__module__
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    line = complaint()
    assert "uvicorn, which serving needs," in line
    assert "stallscope[engine]" in line


@pytest.fixture
def directory(tmp_path) -> Path:
    return export_hf(tiny("float32"), tmp_path / "model")


def refusal(directory: Path) -> str:
    with pytest.raises(ModelError) as refused:
        load_model(str(directory))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_config_that_is_no_object(directory):
    (directory / "config.json").write_text("[1]")
    assert refusal(directory).endswith("config.json does not hold a JSON object")


def test_a_tensor_that_is_not_there(directory):
    path = directory / "model.safetensors"
    tensors = load_file(path)
    gone = next(name for name in tensors if name.endswith("input_layernorm.weight"))
    save_file({name: tensor for name, tensor in tensors.items() if name != gone}, path)
    assert refusal(directory) == f"{directory} lacks tensor {gone}"


def test_an_index_that_names_a_file_that_is_not_there(directory):
    names = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    index = {"weight_map": dict.fromkeys(names, "model-00001.safetensors")}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00001.safetensors is missing, truncated or damaged" in refusal(directory)


def test_heads_of_an_odd_size():
    with pytest.raises(ModelError, match="head_dim must be even for rotary positions, not 15"):
        dataclasses.replace(TINY_CONFIG, head_dim=15)
