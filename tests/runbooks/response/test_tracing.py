"""One span per run, its steps as children; a receiver that is down, slow or refuses costs the spans and nothing else."""

import builtins
import signal
import threading
import time

import pytest
import urllib3

from runbooks.errors import ConfigError
from runbooks.response import tracing as tracing_module
from runbooks.response.journal import Journal
from runbooks.response.tracing import ATTEMPTS, Tracing, make_export
from tests.probes.otlp_receiver import attributes, receiving
from tests.runbooks.response.fake_admin import FakeAdmin
from tests.runbooks.response.scenes import ACT, Scene, alert, better, make_scene, slow, write_config
from tests.runbooks.response.test_command import serve
from tests.runbooks.response.test_receiver import PAYLOAD

S = 10**9


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """The SDK's exporter tries a failing receiver again for as long as this; ours waits that long between two tries."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    monkeypatch.setattr(tracing_module, "_RETRY_SECONDS", 0.05)


@pytest.fixture
def admin():
    with FakeAdmin() as server:
        yield server


def traced(scene: Scene, url: str, lines: list[str]) -> Tracing:
    return Tracing(make_export(url, "journal-1"), scene.journal, scene.clock, lines.append)


def carry(scene: Scene, tracing: Tracing, number: int) -> None:
    """To its end, with the conductor telling `tracing` of it."""
    for _ in range(1000):
        conductor = scene.conductor(tracing.send)
        while conductor.advance(number):
            pass
        if scene.journal.incident(number).closed is not None:
            return
        scene.clock.sleep(5)


def test_a_run_is_a_span_and_its_steps_are_its_children(tmp_path, admin):
    with receiving() as receiver:
        here, lines = make_scene(tmp_path, admin.url, [slow(400), better(80)]), list[str]()
        tracing = traced(here, receiver.url, lines)
        (number,) = here.receive(alert())
        carry(here, tracing, number)
        tracing.close()
    done = here.journal.incident(number)
    assert done.closed is not None
    run, *steps = receiver.spans
    assert (run.name, run.parent_span_id, run.status.code) == ("runbook slow", b"", 0)
    assert (run.start_time_unix_nano, run.end_time_unix_nano) == (round(done.opened * S), round(done.closed * S))
    found = attributes(run)
    assert (found["stallscope.target"], found["stallscope.alerts"]) == ("chat", ["InterTokenLatencySlow"])
    assert found["stallscope.incident.outcome"] == done.outcome
    assert [step.name for step in steps] == ["look", "decide", "act", "verify", "undo"]
    for span, row in zip(steps, done.steps, strict=True):
        assert (span.trace_id, span.parent_span_id) == (run.trace_id, run.span_id)
        assert row.ended is not None
        assert (span.start_time_unix_nano, span.end_time_unix_nano) == (round(row.began * S), round(row.ended * S))
    act, verify, undo = (attributes(step) for step in steps[2:])
    assert (act["stallscope.step.status"], act["stallscope.step.text"]) == ("done", "max_batched_tokens is 256")
    assert verify["stallscope.step.helped"] is True
    assert undo["stallscope.step.why"] == "its time to live is over"
    assert receiver.resources[0]["service.instance.id"] == "journal-1"
    assert lines == []


def test_the_same_run_sent_twice_is_the_same_spans(tmp_path, admin):
    with receiving() as receiver:
        here = make_scene(tmp_path, admin.url, [better()])
        (number,) = here.receive(alert())
        here.carry_to_end(number)
        tracing = traced(here, receiver.url, [])
        tracing.send(number)
        tracing.send(number)
        tracing.close()
    ids = [(span.trace_id, span.span_id) for span in receiver.spans]
    assert len(ids) == 6 and ids[:3] == ids[3:]
    assert len(set(ids[:3])) == 3


def test_what_stays_in_force_and_what_failed_are_errors(tmp_path, admin):
    with receiving() as receiver:
        here = make_scene(tmp_path, admin.url, [slow(400), slow(400)])
        (number,) = here.receive(alert())
        here.carry(number)
        admin.lies = True
        tracing = traced(here, receiver.url, [])
        carry(here, tracing, number)
        tracing.close()
    run, *steps = receiver.spans
    assert run.status.code == run.status.STATUS_CODE_ERROR
    assert run.status.message.startswith("NOT UNDONE after 20 attempts")
    assert [step.status.code for step in steps if step.name == "undo"] == [run.status.STATUS_CODE_ERROR] * 20


def test_approvals_notes_and_resolved_alerts_are_events(tmp_path, admin):
    def fail(title, text):
        raise OSError("the mail server is gone")

    with receiving() as receiver:
        here = make_scene(tmp_path, admin.url, [slow(400), better(80)], acts=ACT.replace('"auto"', '"approve"'))
        here.on_send = fail
        (number,) = here.receive(alert())
        here.carry(number)
        here.journal.answer(number, approved=True, who="ada", now=here.clock.unix())
        tracing = traced(here, receiver.url, [])
        here.receive(alert("resolved"))
        carry(here, tracing, number)
        tracing.close()
    events = [event.name for event in receiver.spans[0].events]
    assert "approved by ada" in events
    assert "resolved: InterTokenLatencySlow" in events
    assert "notification by list failed: OSError: the mail server is gone" in events


@pytest.mark.parametrize("trouble", ["nobody listens", "it refuses", "it hangs"])
def test_a_receiver_in_trouble_costs_the_spans_and_not_the_run(tmp_path, admin, trouble):
    with receiving() as receiver:
        receiver.status = 400 if trouble == "it refuses" else 200
        if trouble == "it hangs":
            receiver.let_go.clear()
        url = "http://127.0.0.1:1" if trouble == "nobody listens" else receiver.url
        here, lines = make_scene(tmp_path, admin.url, [slow(400), better(80)]), list[str]()
        tracing = traced(here, url, lines)
        (number,) = here.receive(alert())
        carry(here, tracing, number)
        assert "helped" in (here.journal.incident(number).outcome or "")
        while not lines:
            time.sleep(0.01)
        receiver.let_go.set()
        tracing.close()
    (line,) = lines
    assert line.startswith(f"incident {number}: its spans could not be sent: DeliveryFailed: ")
    notes = [step.intent["text"] for step in here.journal.incident(number).steps if step.kind == "note"]
    assert notes == [line.partition(": ")[2]]
    assert trouble != "it refuses" or receiver.asked == ATTEMPTS


def test_incidents_that_wait_for_a_hung_receiver_are_bounded(tmp_path, admin, monkeypatch):
    monkeypatch.setattr(tracing_module, "_WAITING", 2)
    started, let_go = threading.Event(), threading.Event()

    class Hung:
        def export(self, incident):
            started.set()
            let_go.wait(30)

        def close(self):
            """Nothing."""

    here, lines = make_scene(tmp_path, admin.url, [better()]), list[str]()
    (number,) = here.receive(alert())
    tracing = Tracing(Hung(), here.journal, here.clock, lines.append)
    tracing.send(number)
    assert started.wait(10)
    for _ in range(3):
        tracing.send(number)
    assert lines == [f"incident {number}: its spans are dropped: 2 others wait for the OTLP receiver"]
    let_go.set()
    tracing.close()


def test_without_opentelemetry_the_extra_is_named(tmp_path, monkeypatch):
    real = builtins.__import__

    def missing(name, *rest, **others):
        if name == "runbooks.response.spans":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"stallscope\[otel\]"):
        make_export("http://127.0.0.1:4318", "x")


def test_an_endpoint_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"receiver.otlp_endpoint = 'collector:4318' is not http://HOST:PORT"):
        write_config(tmp_path, "http://h:1", otlp_endpoint="collector:4318")


@pytest.mark.slow
def test_the_receiver_sends_spans_as_its_configuration_says(tmp_path):
    """The whole process: an alert of a dead target, its run, its spans, and an end by SIGTERM."""
    with receiving() as receiver:
        write_config(tmp_path, "http://127.0.0.1:1", otlp_endpoint=receiver.url)
        process, url = serve(tmp_path)
        try:
            headers = {"Authorization": "Bearer hook"}
            assert urllib3.request("POST", f"{url}/alerts", json=PAYLOAD, headers=headers, timeout=30).status == 200
            deadline = time.monotonic() + 60
            while not receiver.spans and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in err
    (incident,) = Journal(tmp_path / "runbooks.db", create=False).incidents(10)
    assert attributes(receiver.spans[0])["stallscope.incident.outcome"] == incident.outcome
    assert [span.name for span in receiver.spans] == ["runbook slow", "look", "decide"]
