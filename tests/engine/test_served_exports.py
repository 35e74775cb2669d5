"""A serving process that records itself and sends to an OTLP receiver: all of it arrives, and failures hold up no request."""

import json
import re
import resource
import signal
import time
from pathlib import Path

import urllib3

from diagnose.observation import observe
from probes.recording import read_recording
from tests.engine.serving import Serving, serving
from tests.probes.otlp_receiver import attributes, receiving

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def complete(server: Serving, tokens: int = 5, **headers: str) -> None:
    body = json.dumps({"prompt": "hello", "max_tokens": tokens, "ignore_eos": True}).encode()
    with urllib3.PoolManager(retries=False, timeout=30) as pool:
        response = pool.request("POST", f"{server.url}/v1/completions", body=body, headers=headers)
        assert response.status == 200
        assert response.json()["usage"]["completion_tokens"] == tokens


def metric(server: Serving, name: str, **labels: str) -> float:
    with urllib3.PoolManager(retries=False, timeout=30) as pool:
        page = pool.request("GET", f"{server.url}/metrics").data.decode()
    inner = ",".join(f'{key}="{value}"' for key, value in labels.items())
    found = re.search(rf"^stallscope_{name}{{{inner}}} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0.0


def await_metric(server: Serving, name: str, at_least: float, **labels: str) -> None:
    deadline = time.monotonic() + 30
    while metric(server, name, **labels) < at_least:
        assert time.monotonic() < deadline, f"{name} did not reach {at_least}"
        time.sleep(0.05)


def test_spans_and_metrics_reach_the_receiver_at_the_latest_at_the_end():
    """The intervals are longer than the test: it is the flush at shutdown that brings them."""
    with receiving() as receiver, serving("--model", "tiny", "--otlp-endpoint", receiver.url) as server:
        complete(server, traceparent=TRACEPARENT)
        complete(server)
        server.send(signal.SIGTERM)
        assert server.wait(20) == 0
    continued, own = receiver.spans
    assert (continued.trace_id.hex(), continued.parent_span_id.hex()) == tuple(TRACEPARENT.split("-")[1:3])
    assert own.parent_span_id == b""
    assert attributes(own)["gen_ai.usage.output_tokens"] == 5
    assert attributes(own)["gen_ai.operation.name"] == "text_completion"
    (metrics,) = receiver.metrics
    finished = metrics["stallscope_requests_finished_total"].sum.data_points
    assert sum(point.as_double or point.as_int for point in finished) == 2


def test_a_receiver_that_is_gone_holds_up_nothing(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with serving("--model", "tiny") as server:
        complete(server, 50)
        for exporter in ("otlp_spans", "otlp_metrics"):
            await_metric(server, "export_failures_total", 2, exporter=exporter)
        complete(server, 50)
        server.send(signal.SIGTERM)
        assert server.wait(20) == 0


def test_an_engine_records_itself_while_its_disk_fails_and_comes_back(tmp_path: Path):
    path = tmp_path / "engine.rec"
    with serving("--model", "tiny", "--record", str(path)) as server:
        complete(server)
        await_metric(server, "export_items_total", 2, exporter="recording")
        steps_before = metric(server, "step_duration_seconds_count", kind="decode")
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (path.stat().st_size + 100, resource.RLIM_INFINITY))
        await_metric(server, "export_failures_total", 1, exporter="recording")
        complete(server, 50)
        assert metric(server, "step_duration_seconds_count", kind="decode") >= steps_before + 49
        await_metric(server, "export_lost_total", 2, exporter="recording", reason="disk")
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        delivered = metric(server, "export_items_total", exporter="recording")
        await_metric(server, "export_items_total", delivered + 1, exporter="recording")
        complete(server)
        server.send(signal.SIGTERM)
        assert server.wait(20) == 0
    recording = read_recording(path.read_bytes())
    assert recording.damaged > 0, "the write that was cut short, skipped"
    observation = observe(recording.target, recording.entries)
    assert observation.steps[-1].step_id > steps_before + 49
    finished = observation.scrapes[-1].page.samples["stallscope_requests_finished_total"]
    assert sum(finished.values()) == 3
