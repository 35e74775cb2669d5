"""The GPU check itself, without a GPU: its sections run on a device that is the CPU, on toys; its verdicts add up."""

import json
from collections.abc import Iterator

import pytest
import torch

from engine.runner.attention.backends import BACKENDS
from engine.runner.attention.paged import StepAttention
from tests.engine.fake_device import LOOPS, FakeDevice
from tests.gpu import check, engine_checks, kernel_checks
from tests.gpu.engine_checks import Load
from tests.gpu.kernel_checks import Shape
from tests.gpu.models import LLAMA_1B, LLAMA_8B_4_LAYERS, llama, random_model
from tests.gpu.report import Row, Section, table

torch.set_num_threads(1)

TOY = llama(num_layers=2, hidden=64, intermediate=128, query_heads=4, kv_heads=2, vocab=300, tied=True)
LOAD = Load(requests=4, prompt_tokens=24, output_tokens=12, max_batched_tokens=48)


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the backend that can be replayed here."""
    monkeypatch.setattr("engine.runner.attention.backends.BACKENDS", {"loops": LOOPS})


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_so_in_one_line_and_exits_2(capsys, tmp_path):
    assert check.main(["--json", str(tmp_path / "out.json")]) == 2
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and out.startswith("gpu-check needs an NVIDIA GPU: ")
    assert not (tmp_path / "out.json").exists()


def test_the_whole_script_runs_dry(capsys, tmp_path):
    """Its limits are a device's and its times a toy's, so that only what it does is looked at."""
    assert check.main(["--dry", "--json", str(tmp_path / "out.json")]) in (0, 1)
    sections = json.loads((tmp_path / "out.json").read_text())["sections"]
    assert [section["error"] for section in sections] == [None] * len(sections)
    (drill,) = (section for section in sections if section["name"].startswith("drill: "))
    assert len([row for row in drill["rows"] if "p99" in row["what"]]) == 3  # quiet, disturbed, chunked
    assert drill["rows"][-1]["what"] == "interference is what the diagnosis names"
    assert "fake device" in capsys.readouterr().out


def test_kernels_are_held_against_float32():
    shapes = [Shape(4, 2, 16, 5), Shape(2, 2, 16, 16)]
    rows = list(kernel_checks.correctness(FakeDevice(), shapes, [1, 9, 30], [(0, 1), (7, 20)]))
    assert len(rows) == 6  # three types, two shapes, the torch backend
    assert all(row.is_ok and row.value is not None for row in rows), table([Section("kernels", rows)])


def test_a_wrong_kernel_is_seen(monkeypatch):
    broken = BACKENDS["torch"]._replace(build=lambda spec: Scaled(BACKENDS["torch"].build(spec)))
    monkeypatch.setattr(kernel_checks, "BACKENDS", {"torch": broken})
    rows = list(kernel_checks.correctness(FakeDevice(), [Shape(4, 2, 16, 5)], [9], [(7, 20)]))
    assert rows and not any(row.is_ok for row in rows)


class Scaled:
    """An attention whose output is 5 % too large."""

    def __init__(self, inner: StepAttention) -> None:
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def attend(self, *arguments):
        return self.inner.attend(*arguments) * 1.05


def test_kernel_speed_has_a_rate_and_a_share():
    rows = [
        *kernel_checks.decode_speed(FakeDevice(), 1e9, 2, 40),
        *kernel_checks.prefill_speed(FakeDevice(), 1e9, 5, 20),
    ]
    assert [row.unit for row in rows] == ["us", "GB/s", "us", "TFLOP/s"]
    assert all(row.value and row.value > 0 for row in rows)


def test_the_engine_sections_run(loops):
    model = random_model("toy", TOY, torch.device("cpu"), torch.float32)
    rows = [
        *engine_checks.chunked_against_whole(FakeDevice(), model, 40, 9),
        *engine_checks.serving(FakeDevice(), model, LOAD),
        *engine_checks.probe_cost(FakeDevice(), model, LOAD, rounds=1),
    ]
    section = Section("engine", rows)
    assert section.is_ok, table([section])
    text = table([section])
    for what in (
        "graphs on: output",
        "graphs off: output",
        "MBU of decode steps, device time",
        "MFU of prefill",
        "cost of",
    ):
        assert what in text


def sections(ran: list[str]) -> dict[str, object]:
    def good() -> Iterator[Row]:
        ran.append("good")
        yield Row("speed", 3.0, "GB/s")

    def bad() -> Iterator[Row]:
        yield Row("error", 0.1, "", 0.5)
        raise RuntimeError("illegal memory access\nlong trace")

    def off() -> Iterator[Row]:
        ran.append("off")
        yield Row("error", float("nan"), "", 0.5)

    return {"bad": bad, "good": good, "off": off}


def test_a_section_that_fails_is_reported_and_the_others_run(capsys):
    ran: list[str] = []
    results = check.run_sections(sections(ran))  # type: ignore[arg-type]
    assert ran == ["good", "off"]
    assert [section.is_ok for section in results] == [False, True, False]
    assert results[0].error == "RuntimeError: illegal memory access" and len(results[0].rows) == 1
    text = table(results)
    assert "FAILED: RuntimeError: illegal memory access" in text
    assert "nan" in text and "[FAILED, limit 0.5]" in text
    assert json.loads(json.dumps([section.as_json() for section in results]))[1]["ok"] is True


def test_sections_beyond_the_time_limit_are_left_out_and_said():
    results = check.run_sections(sections([]), time_limit=-1.0)  # type: ignore[arg-type]
    assert all(section.error and "left out" in section.error for section in results)


def test_geometries_are_those_of_the_models_they_stand_for():
    def parameters(config) -> int:
        per_layer = config.hidden_size * (2 * config.query_size + 2 * config.kv_size + 3 * config.intermediate_size)
        tables = config.vocab_size * config.hidden_size * (1 if config.tie_embeddings else 2)
        return int(config.num_layers * per_layer + tables)

    assert 1.2e9 < parameters(LLAMA_1B) < 1.3e9
    assert (parameters(LLAMA_8B_4_LAYERS) - 2 * 128256 * 4096) / 4 == pytest.approx(218e6, rel=0.01)
