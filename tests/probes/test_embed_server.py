"""The two endpoints of an engine without a web server of its own."""

import socket
import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from probes.embed_server import ProbeServer
from probes.wire import decode_steps
from tests.probes.test_embed import Clock, make_probes, run_step


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read(), "utf-8")


def test_the_endpoints_are_those_that_stallscope_reads():
    probes = make_probes(facts={"weight_bytes": 7, "device": "cpu"})
    server = ProbeServer(probes)
    try:
        probes.arrived("a", 5)
        for _ in range(3):
            run_step(probes, Clock(), prefills={"a": 1}, emitted=["a"])
        page = fetch(server.url + "/metrics")
        assert 'weight_bytes="7"' in page
        names = {family.name for family in text_string_to_metric_families(page)}
        assert {"stallscope_step_duration_seconds", "stallscope_tokens", "stallscope_engine_info"} <= names
        header, steps = decode_steps(fetch(server.url + "/debug/steps?since=1&limit=1"))
        assert ([record.step_id for record in steps], header.next_id) == ([1], 2)
        for path, status in (("/debug/steps?since=x", 400), ("/nothing", 404)):
            with pytest.raises(urllib.error.HTTPError) as error:
                fetch(server.url + path)
            with error.value as answer:
                assert answer.code == status
    finally:
        server.close()


def test_a_port_in_use_is_named():
    server = ProbeServer(make_probes())
    try:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"):
            ProbeServer(make_probes(), port=port)
    finally:
        server.close()


def test_a_scraper_that_goes_away_leaves_no_traceback_in_the_engines_log(capfd, monkeypatch):
    gone = threading.Event()

    def slowly(*_: object) -> object:
        gone.wait(10)
        return b"x" * 10_000_000, "text/plain"

    monkeypatch.setattr("probes.embed_server.negotiated", slowly)
    server = ProbeServer(make_probes())
    try:
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as scraper:
            scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        gone.set()
        fetch(server.url + "/debug/steps")
    finally:
        server.close()
    assert "Traceback" not in capfd.readouterr().err
