"""The admin surface: closed without the token, bounded, repeatable."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.fakes import FakeRunner, Harness
from tests.engine.http_server import Client, http_server, wait_until

Server = tuple[Client, Harness]
VERBS = ("limits", "prefix_cache", "prefix_cache/reset", "drain", "resume")


@pytest.fixture
def server() -> Iterator[Server]:
    with http_server() as pair:
        yield pair


@pytest.fixture
def client(server: Server) -> Client:
    return server[0]


def state(client: Client) -> dict[str, Any]:
    status, answer = client.get("/admin/state", Authorization="Bearer s3cret")
    assert status == 200
    assert isinstance(answer, dict)
    return answer


def test_without_a_token_file_there_is_no_admin_surface():
    with http_server(admin=False) as (client, _):
        assert client.get("/admin/state")[0] == 404
        assert all(client.admin(f"/admin/{verb}", {})[0] == 404 for verb in VERBS)


def test_a_wrong_token_changes_nothing(client: Client):
    before = state(client)
    for verb in VERBS:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic s3cret"},
            {"Authorization": "s3cret"},
        ):
            status, answer = client.post(f"/admin/{verb}", {"max_batched_tokens": 1, "enabled": False}, **headers)
            assert (status, answer["error"]["code"]) == (401, "invalid_admin_token")
    assert client.get("/admin/state")[0] == 401
    assert state(client) == before


def test_the_token_is_checked_before_the_body_is_read(client: Client):
    with socket.create_connection((client.host, client.port), timeout=10) as connection:
        connection.sendall(b"POST /admin/limits HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 401")


def test_limits_answer_with_the_new_state(client: Client):
    for body in ({"max_batched_tokens": 128}, {"max_batched_tokens": 128}):
        status, answer = client.admin("/admin/limits", body)
        assert status == 200
        assert answer["max_batched_tokens"] == 128
        assert answer == state(client)
    status, answer = client.admin("/admin/limits", {"max_batched_tokens": 64, "max_sequences": 3})
    assert (answer["max_batched_tokens"], answer["max_sequences"]) == (64, 3)
    assert "stallscope_max_batched_tokens 64.0" in client.get("/metrics")[1]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_batched_tokens": 0}, "max_batched_tokens"),
        ({"max_batched_tokens": -5, "max_sequences": 4}, "max_batched_tokens"),
        ({"max_batched_tokens": 128, "max_sequences": 0}, "max_sequences"),
        ({"max_batched_tokens": 10**9}, "max_batched_tokens"),
        ({"max_sequences": 10**9}, "max_sequences"),
        ({"max_batched_tokens": 1.5}, "max_batched_tokens"),
        ({"max_batched_tokens": True}, "max_batched_tokens"),
        ({"max_batched_tokens": "128"}, "max_batched_tokens"),
        ({"budget": 128}, "budget"),
        ({}, "max_batched_tokens"),
        (b"", None),
    ],
)
def test_limits_out_of_bounds_change_nothing(client: Client, body: Any, param: str | None):
    before = state(client)
    status, answer = client.admin("/admin/limits", body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert state(client) == before


def test_a_large_admin_body_is_refused(client: Client):
    assert client.admin("/admin/limits", b" " * 5000)[0] == 413


def test_the_prefix_cache_can_be_switched_and_reset(client: Client):
    body = {"prompt": "x" * 64, "max_tokens": 1}

    def cached() -> int:
        return int(client.post("/v1/completions", body)[1]["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached(), cached()] == [0, 63]
    assert client.admin("/admin/prefix_cache/reset")[0] == 200
    assert [cached(), cached()] == [0, 63]
    assert client.admin("/admin/prefix_cache", {"enabled": False})[1]["prefix_cache_enabled"] is False
    assert cached() == 0
    assert client.admin("/admin/prefix_cache", {"enabled": True})[1]["prefix_cache_enabled"] is True
    assert cached() == 63
    assert client.admin("/admin/prefix_cache", {"enabled": 1})[0] == 400


def test_drain_and_resume():
    with http_server(FakeRunner(seconds=0.005)) as (client, harness):
        with client.open_raw("/v1/completions", {"prompt": "a", "max_tokens": 400}) as running:
            wait_until(lambda: harness.scheduler.num_running == 1)
            assert client.admin("/admin/drain")[1]["status"] == "draining"
            assert client.admin("/admin/drain")[0] == 200
            status, answer = client.post("/v1/completions", {"prompt": "a"})
            assert (status, answer["error"]["code"]) == (503, "draining")
            assert client.get("/health")[0] == 503
            assert running.recv(65536).startswith(b"HTTP/1.1 200")
        wait_until(lambda: state(client)["status"] == "drained", seconds=15)
        assert client.admin("/admin/resume")[1]["status"] == "ok"
        assert client.post("/v1/completions", {"prompt": "a"})[0] == 200
        assert client.get("/health")[0] == 200
