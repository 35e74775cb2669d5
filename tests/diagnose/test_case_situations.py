"""Public incidents whose numbers are those of a fleet, a host or a trace, as situations with these numbers."""

from pathlib import Path

import pytest

from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.slo import parse_reported
from diagnose.sources.files import read_files
from probes.records import BlockCensus
from tests.builders import Machine, make_signals, make_steps, watch
from tests.diagnose import cases
from tests.diagnose.cases import look, texts, verdict
from tests.traces import Trace, steady


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([(250.0, 0.0)] * 2 + [(0.0, 0.0)] * 6, "supported"),
        ([(160.0, 0.0)] * 2 + [(60.0, 0.0)] * 6, "refuted"),
        ([(120.0, 40.0)] * 2 + [(8.0, 0.0)] * 6, "supported"),
        ([(3.0, 0.0)] * 2 + [(0.0, 0.0)] * 6, "refuted"),
    ],
    ids=["llm-d/llm-d#355: two of eight hold all", "uneven", "#298: some have a queue", "little work for eight"],
)
def test_66_replicas_that_idle_beside_others(loads, expected):
    diagnosis = cases.replicas(*loads)
    assert verdict(diagnosis, "replica_imbalance") == expected, texts(diagnosis, "replica_imbalance")


def traced(tmp_path: Path, **over: float) -> Diagnosis:
    path = Trace().run(steady(80, **over)).write(tmp_path / "t.json")
    observation = read_files([str(path)], None).observation()
    return judge(observation, None, (), is_live=False, target="t")


@pytest.mark.parametrize(("bubble_us", "expected"), [(5_000, "supported"), (13_000, "supported"), (2, "refuted")])
def test_44_a_bubble_between_steps_is_the_host_s(tmp_path, bubble_us, expected):
    """vllm-project/vllm#6854: 5 to 13 ms before each step."""
    diagnosis = traced(tmp_path, idle_us=bubble_us)
    assert verdict(diagnosis, "scheduler_contention") == expected
    assert verdict(diagnosis, "bandwidth_saturation") != "supported"


@pytest.mark.parametrize(("base_us", "expected"), [(200_000, "refuted"), (20_000, "supported")])
def test_53_nine_milliseconds_of_the_host_matter_by_the_step_they_are_in(base_us, expected):
    """vllm-project/vllm#4261: 11 ms of scheduling cost under 5 % where steps were long."""
    machine = Machine(base_us=base_us, schedule_us=11_000)
    assert verdict(look(watch(make_steps(120, machine=machine))), "scheduler_contention") == expected


def test_50_a_tokenizer_that_starves_the_engine():
    """vllm-project/vllm#10635: the engine idles while prompts of 256K tokens are tokenised one after the other."""
    diagnosis = look(cases.looked_at(cases.host(frontend=0.98, starved=0.9)))
    assert verdict(diagnosis, "frontend_bottleneck") == "supported"
    idle = look(watch([], show_records=False, num_running=0, census=BlockCensus(0, 60, 40)))
    assert not [f.name for f in idle.findings if f.is_supported], "the engine's own figures alone name nobody"


@pytest.mark.parametrize(("ttft", "expected"), [("64.8ms", "supported"), ("16.9ms", "refuted")])
def test_52_a_layer_above_the_engine(ttft, expected):
    """ray-project/ray#59681: 16.9 ms by the bare engine, 64.8 ms through the proxy layer."""
    signals = make_signals(histograms={"time_to_first_token": {0.0169: 500}, "inter_token_latency": {0.02: 900}})
    diagnosis = diagnose("t", signals, reported=parse_reported(f"ttft_p50={ttft}"), is_live=True)
    assert verdict(diagnosis, "client_artifact") == expected
    assert verdict(diagnosis, "queue_overload") != "supported"
