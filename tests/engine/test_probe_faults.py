"""Whatever breaks inside a probe, the engine serves the same tokens, and the faults are counted and shown."""

from typing import Any

import pytest

from probes.prometheus import EngineCollector, exposition
from tests.engine.fakes import Harness, make_request, make_thread


def serve(harness: Harness) -> list[Any]:
    for number in range(3):
        harness.add(make_request(f"r{number}", prompt=range(5 + number), max_tokens=6))
    harness.run()
    return [(output.request.request_id, output.token_id, output.finish_reason) for output in harness.outputs]


def break_recorder(harness: Harness) -> None:
    counters: Any = harness.recorder.counters
    for name in ("schedule", "queue_time", "time_to_first_token", "finished"):
        setattr(counters, name, None)


def break_lock(harness: Harness) -> None:
    harness.lock.waiters.add("nobody that could be told of a hold")  # type: ignore[arg-type]


@pytest.mark.parametrize("break_it", [break_recorder, break_lock])
def test_the_engine_outlives_its_probes(break_it):
    sound = serve(Harness())
    harness = Harness()
    break_it(harness)
    assert serve(harness) == sound
    faults = harness.recorder.counters.probe_errors + harness.lock.probe_errors
    assert faults > 10
    assert not harness.lock.raw.locked()


def test_faults_are_shown():
    harness = Harness()
    harness.recorder.on_failure([])  # type: ignore[arg-type]
    harness.lock.probe_errors += 2
    collector = EngineCollector(harness.recorder, harness.lock, make_thread(harness).snapshot)
    assert "stallscope_probe_errors_total 3.0" in exposition(collector).decode()
