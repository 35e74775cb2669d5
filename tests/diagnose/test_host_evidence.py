"""What the host probe adds to the verdicts."""

import pytest

from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.errors import SourceError
from diagnose.observation import Observation, observe
from probes.host_profile import HostProfile, encode_host
from probes.recording import Entry
from tests.builders import START_UNIX
from tests.diagnose import cases
from tests.diagnose.cases import look, texts, verdict


def alone(profile: HostProfile) -> Diagnosis:
    """A process and nothing else: a server without a metrics page."""
    observation = Observation("process 1", host=profile)
    return judge(observation, None, (), is_live=True, target="process 1")


@pytest.mark.parametrize(
    ("frontend", "starved", "expected"),
    [
        (0.97, 0.6, "supported"),
        (0.97, 0.05, "refuted"),  # busy, and the engine has all the work that it can do
        (0.30, 0.9, "refuted"),  # an engine without work
        (0.97, 0.2, "undetermined"),
        (0.65, 0.6, "undetermined"),
    ],
)
def test_a_frontend_matters_while_the_engine_waits_for_it(frontend, starved, expected):
    diagnosis = alone(cases.host(frontend=frontend, starved=starved))
    assert verdict(diagnosis, "frontend_bottleneck") == expected, texts(diagnosis, "frontend_bottleneck")


def test_it_says_what_the_busy_thread_does():
    said = texts(alone(cases.host(frontend=0.97, starved=0.6)), "frontend_bottleneck")
    assert "the busiest frontend thread, MainThread, is on a core or waits for one 98 % of the time" in said
    assert "tokenising 68 %, serialising 29 %" in said


def test_without_a_look_at_the_host_it_is_not_judged():
    diagnosis = look(cases.quiet())
    assert verdict(diagnosis, "frontend_bottleneck") == "undetermined"
    assert "--pid PID" in texts(diagnosis, "frontend_bottleneck")


@pytest.mark.parametrize(("scheduling", "expected"), [(0.6, "supported"), (0.02, "refuted"), (0.2, "undetermined")])
def test_stacks_of_the_loop_speak_where_no_step_does(scheduling, expected):
    diagnosis = alone(cases.host(scheduling=scheduling))
    assert verdict(diagnosis, "scheduler_contention") == expected
    assert "of the time on host work: scheduling" in texts(diagnosis, "scheduler_contention")


def test_lock_and_run_queue_are_evidence():
    said = texts(alone(cases.host(delay=0.4, gil=0.8)), "scheduler_contention")
    assert "the engine loop was ready and had no core 40 % of the time" in said
    assert "the interpreter lock was held 80 % of the time: EngineCore 80 %, MainThread 10 %" in said


def test_shares_are_signals():
    signals = alone(cases.host(delay=0.4, gil=0.8)).case.signals
    assert (signals.last("host_delay_share"), signals.last("host_gil_held_share")) == (0.4, 0.8)
    assert signals.length_seconds == 20.0


def test_a_recording_keeps_the_look():
    body = encode_host(cases.host(frontend=0.97, starved=0.6))
    observation = observe("x.rec", [Entry(START_UNIX, "host", body)])
    assert observation.host is not None
    assert observation.host.threads[1].name == "EngineCore"
    with pytest.raises(SourceError, match="not a host profile"):
        observe("x.rec", [Entry(START_UNIX, "host", "{}")])


def test_what_could_not_be_measured_is_a_warning():
    profile = HostProfile(pid=1, seconds=1.0, threads=(), limits=("stacks were not sampled: because",))
    observation = observe("x.rec", [Entry(START_UNIX, "host", encode_host(profile))])
    assert observation.warnings == ["host probe: stacks were not sampled: because"]
