"""The front end measures how late it is and what it cuts off; a drill that blocks or cuts is seen by both."""

import pytest
import urllib3

from engine.server.drill_fault import parse_fault
from engine.server.frontend_fault import make_faulty_app
from tests.engine.fakes import FakeRunner
from tests.engine.http_server import http_server, wait_until

BODY = {"model": "fake", "prompt": "abc", "max_tokens": 40, "ignore_eos": True}


def faulty(text: str):
    return lambda app: make_faulty_app(parse_fault(text, "1"), app)


def test_every_step_that_hands_tokens_out_is_measured():
    with http_server() as (client, harness):
        client.events("/v1/completions", BODY)
        delay = harness.recorder.counters.frontend_delay
        assert delay.count == 40
        assert delay.sum_ns > 0
        status, page = client.get("/metrics")
        assert status == 200 and "stallscope_frontend_delay_seconds_count 40.0" in page


def test_a_blocked_event_loop_keeps_tokens_waiting():
    """They wait for half a block on average; a busy machine only makes that longer."""
    with http_server(FakeRunner(seconds=0.005), wrap=faulty("frontend=60ms")) as (client, harness):
        assert client.events("/v1/completions", BODY)[-1] == "[DONE]"
        delay = harness.recorder.counters.frontend_delay
        assert delay.sum_ns / delay.count > 5_000_000


def test_a_stream_that_the_server_cuts_off_has_no_end_and_is_counted():
    with http_server(FakeRunner(seconds=0.002), wrap=faulty("drop=2requests")) as (client, harness):
        assert client.events("/v1/completions", BODY)[-1] == "[DONE]"
        with pytest.raises(urllib3.exceptions.ProtocolError):
            client.events("/v1/completions", BODY)
        wait_until(lambda: harness.recorder.counters.failures == {"connection_dropped": 1})
        wait_until(lambda: not harness.scheduler.requests)
        assert client.events("/v1/completions", BODY)[-1] == "[DONE]"
        assert client.get("/health")[0] == 200


def test_answers_that_are_no_streams_are_left_alone():
    with http_server(wrap=faulty("drop=1requests")) as (client, harness):
        assert client.post("/v1/completions", BODY)[0] == 200
        assert not harness.recorder.counters.failures


def test_a_client_that_leaves_is_no_failure_of_the_server():
    with http_server(FakeRunner(seconds=0.002)) as (client, harness):
        connection = client.open_raw("/v1/completions", BODY | {"stream": True, "max_tokens": 1000})
        assert connection.recv(64).startswith(b"HTTP/1.1 200")
        connection.close()
        wait_until(lambda: harness.recorder.counters.finished["abort"] == 1)
        assert not harness.recorder.counters.failures


def test_a_fault_of_the_engine_leaves_the_application_as_it_is():
    async def app(_scope: object, _receive: object, _send: object) -> None:
        raise AssertionError

    assert make_faulty_app(parse_fault("host=5ms", "1"), app) is app
