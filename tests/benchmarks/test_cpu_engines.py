"""The comparison of engines runs end to end on the tiny model, says who is not there, and its figures are right."""

import json
import sys
from pathlib import Path

import pytest

from tests.benchmarks import cpu_engines, cpu_online
from tests.benchmarks.cpu_engines import Line, Shape


@pytest.mark.slow
def test_a_run_without_peers_measures_ours_and_says_who_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    target = tmp_path / "out.json"
    arguments = ["--model", "tiny", "--rounds", "2", "--offline", "4x60:60", "--online", "2", "--json", str(target)]
    missing = ["--transformers", str(tmp_path / "none"), "--vllm", str(tmp_path / "no-vllm")]
    assert cpu_engines.main([*arguments, *missing]) == 0
    shown = capsys.readouterr().out
    assert "transformers  not there: no " in shown and "vllm          not there: no " in shown
    results = json.loads(target.read_text())
    (offline,), (online,) = results["offline"], results["online"]
    assert len(offline["seconds"]["ours"]) == 2 and not offline["failed"]
    assert all(spent > 0 for spent in offline["cpu_seconds"]["ours"]), "enough for the 10 ms in which the system counts"
    assert len(online["rounds"]["ours"]) == 2 and not online["failed"]
    assert all(one["itl_p99"] >= one["itl_p50"] > 0 for one in online["rounds"]["ours"])


@pytest.mark.slow
def test_an_engine_that_does_not_load_is_named_with_its_reason(tmp_path: Path):
    subject = cpu_engines.start("ours", Path(sys.executable), tmp_path / "no-model", 1)
    assert "ModelError" in subject.why


def test_shapes_are_read_and_their_prompts_are_the_same_every_time():
    shape = Shape.parse("8x128:32")
    assert (shape, str(shape)) == (Shape(8, 128, 32), "8 x 128 -> 32")
    prompts = shape.prompts(1000)
    assert [len(prompt) for prompt in prompts] == [128] * 8
    assert prompts == shape.prompts(1000)


def test_ratios_are_taken_within_a_round():
    wall, cpu = {"ours": [1.0, 4.0, 2.0], "vllm": [2.0, 4.0, 3.0]}, {"ours": [2.0, 2.0, 2.0], "vllm": [5.0, 5.0, 5.0]}
    line = Line("1 x 8 -> 4", wall, cpu, {"vllm": 0.75})
    shown = "\n".join(cpu_engines.offline_table([line], ["vllm"], 1))
    assert "1.50 (1.00-2.00)" in shown
    assert "2.50 (2.50-2.50)" in shown
    assert "2.00     2.00        2.0" in shown  # median wall and CPU seconds, then 4 tokens in them
    assert "vllm 75%" in shown


def test_equal_tokens_are_counted_by_position():
    assert cpu_engines.share_equal([[1, 2], [3, 4]], [[1, 2], [3, 5]]) == 0.75


def test_stream_figures_come_from_arrival_times():
    streams = [cpu_online.Stream("", [], 0.0), cpu_online.Stream("", [], 0.0)]
    streams[0].sent, streams[0].arrived = 10.0, [10.5, 10.6, 10.7]
    streams[1].sent, streams[1].arrived = 11.0, [12.5, 12.6, 14.0]
    found = cpu_online.summarise(streams)
    assert found.itl_p50 == pytest.approx(0.1)
    assert found.itl_p99 == pytest.approx(0.1 + 0.97 * 1.3)
    assert found.ttft_p50 == pytest.approx(1.0)
    assert found.tokens_per_second == pytest.approx(2 * cpu_online.TOKENS / 4.0)
