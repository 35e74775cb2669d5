"""The HTTP surface over real sockets, on a runner whose tokens can be foretold (the byte after n is n + 1)."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from probes.wire import decode_steps
from tests.engine.fakes import FakeRunner, Harness
from tests.engine.http_server import Client, http_server, wait_until

Server = tuple[Client, Harness]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with http_server() as pair:
        yield pair


@pytest.fixture
def client(server: Server) -> Client:
    return server[0]


def test_a_completion(client: Client):
    status, answer = client.post("/v1/completions", {"model": "fake", "prompt": "a", "max_tokens": 3})
    assert status == 200
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": "bcd", "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 3,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_prompt_of_token_ids(client: Client):
    for prompt in ([97], [[97]], ["a"]):
        status, answer = client.post("/v1/completions", {"prompt": prompt, "max_tokens": 2})
        assert (status, answer["choices"][0]["text"]) == (200, "bc")


def test_a_chat(client: Client):
    body = {"model": "alias", "messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 2}
    status, answer = client.post("/v1/chat/completions", body)
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "bc", "refusal": None}


def test_a_chat_without_a_limit_may_fill_the_context(client: Client):
    body = {"messages": [{"role": "user", "content": "a"}], "stop": "z"}
    _, answer = client.post("/v1/chat/completions", body)
    assert answer["choices"][0]["message"]["content"] == "bcdefghijklmnopqrstuvwxy"
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_log_probabilities_of_a_completion(client: Client):
    body = {"prompt": "a", "max_tokens": 3, "logprobs": 2}
    _, answer = client.post("/v1/completions", body)
    expected = {
        "tokens": ["b", "c", "d"],
        "token_logprobs": [-0.25] * 3,
        "top_logprobs": [{"b": -0.25, "c": -0.5}, {"c": -0.25, "d": -0.5}, {"d": -0.25, "e": -0.5}],
        "text_offset": [0, 1, 2],
    }
    assert answer["choices"][0]["logprobs"] == expected
    events = [event["choices"][0]["logprobs"] for event in client.events("/v1/completions", body)[:-1]]
    assert {key: [one for event in events if event for one in event[key]] for key in expected} == expected
    _, answer = client.post("/v1/completions", body | {"logprobs": 0})
    assert answer["choices"][0]["logprobs"] == expected | {"top_logprobs": None}


def test_log_probabilities_of_a_chat(client: Client):
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "logprobs": True, "top_logprobs": 1}
    expected = [
        {
            "token": char,
            "logprob": -0.25,
            "bytes": [ord(char)],
            "top_logprobs": [{"token": char, "logprob": -0.25, "bytes": [ord(char)]}],
        }
        for char in "bc"
    ]
    _, answer = client.post("/v1/chat/completions", body)
    assert answer["choices"][0]["logprobs"] == {"content": expected, "refusal": None}
    choices = [event["choices"][0] for event in client.events("/v1/chat/completions", body)[:-1]]
    assert [one for choice in choices if choice["logprobs"] for one in choice["logprobs"]["content"]] == expected
    _, answer = client.post("/v1/chat/completions", body | {"top_logprobs": 0})
    assert [one["top_logprobs"] for one in answer["choices"][0]["logprobs"]["content"]] == [[], []]


def test_log_probabilities_of_several_choices(client: Client):
    _, answer = client.post("/v1/completions", {"prompt": "a", "max_tokens": 2, "n": 3, "logprobs": 0})
    assert [choice["logprobs"]["tokens"] for choice in answer["choices"]] == [["b", "c"]] * 3


def test_log_probabilities_end_where_a_stop_string_begins(client: Client):
    body = {"prompt": "a", "max_tokens": 20, "stop": "efg", "logprobs": 0}
    _, answer = client.post("/v1/completions", body)
    assert (answer["choices"][0]["text"], answer["choices"][0]["logprobs"]["tokens"]) == ("bcd", ["b", "c", "d"])
    events = [event["choices"][0]["logprobs"] for event in client.events("/v1/completions", body)[:-1]]
    assert [token for event in events if event for token in event["tokens"]] == ["b", "c", "d"]


def test_part_of_a_character_is_spelled_out_in_bytes(client: Client):
    """The prompt's last byte is the one before the first of a three-byte character."""
    body = {"prompt": [0xE1], "max_tokens": 1, "logprobs": 1}
    _, answer = client.post("/v1/completions", body)
    assert answer["choices"][0]["logprobs"]["tokens"] == ["bytes:\\xe2"]
    assert answer["choices"][0]["logprobs"]["top_logprobs"] == [{"bytes:\\xe2": -0.25}]


def test_completion_events_come_in_order(client: Client):
    body = {"prompt": "a", "max_tokens": 4, "stream_options": {"include_usage": True}}
    events = client.events("/v1/completions", body)
    assert events[-1] == "[DONE]"
    *texts, finish, usage = events[:-1]
    assert "".join(event["choices"][0]["text"] for event in texts) == "bcde"
    assert all(event["usage"] is None and event["choices"][0]["finish_reason"] is None for event in texts)
    assert finish["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert len({event["id"] for event in events[:-1]}) == 1


def test_chat_events_come_in_order(client: Client):
    events = client.events("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2})
    assert events[-1] == "[DONE]"
    role, *texts, finish = (event["choices"][0] for event in events[:-1])
    assert role["delta"]["role"] == "assistant"
    assert "".join(choice["delta"]["content"] for choice in texts) == "bc"
    assert (finish["delta"], finish["finish_reason"]) == ({}, "length")
    assert all("usage" not in event for event in events[:-1])


def test_the_second_identical_prompt_is_cached(client: Client):
    body = {"prompt": "the second identical prompt " * 3, "max_tokens": 1}
    hits = [
        client.post("/v1/completions", body)[1]["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)
    ]
    assert hits == [0, 80]
    salted = client.post("/v1/completions", body | {"cache_salt": "tenant"})[1]
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_stop_strings_cross_chunk_borders(client: Client):
    """Every token is one character here, so that each stop string crosses a border."""
    body = {"prompt": "a", "max_tokens": 20, "stop": ["xyz", "efg"]}
    events = client.events("/v1/completions", body)
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "bcd"
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert client.post("/v1/completions", body)[1]["choices"][0]["text"] == "bcd"


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/completions", {"prompt": "a", "temperature": False}, 400, "temperature"),
        ("/v1/completions", {"prompt": "a", "n": 17}, 400, "n"),
        ("/v1/completions", {"prompt": "a", "nonsense": 1}, 400, "nonsense"),
        ("/v1/completions", {"prompt": ["a", "b"]}, 400, "prompt"),
        ("/v1/completions", {"prompt": [[1], [2]]}, 400, "prompt"),
        ("/v1/completions", {"prompt": [1, True]}, 400, "prompt"),
        ("/v1/completions", {"prompt": [259]}, 400, "prompt"),
        ("/v1/completions", {"prompt": [-1]}, 400, "prompt"),
        ("/v1/completions", {"prompt": ""}, 400, "prompt"),
        ("/v1/completions", {"prompt": []}, 400, "prompt"),
        ("/v1/completions", {"prompt": "a" * 3000}, 400, "prompt"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 5000}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "stop": [""]}, 400, "stop"),
        ("/v1/completions", {"prompt": "a", "min_p": 1.5}, 400, "min_p"),
        ("/v1/completions", {"prompt": "a", "repetition_penalty": 0}, 400, "repetition_penalty"),
        ("/v1/completions", {"prompt": "a", "presence_penalty": 3}, 400, "presence_penalty"),
        ("/v1/completions", {"prompt": "a", "frequency_penalty": -3}, 400, "frequency_penalty"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"259": 1}}, 400, "logit_bias"),
        ("/v1/completions", {"prompt": "a", "logprobs": 21}, 400, "logprobs"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "logprobs": 2}, 400, "logprobs"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2},
            400,
            "top_logprobs",
        ),
        ("/v1/completions", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/v1/completions", b"{", 400, None),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": ""}]}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, 400, "tools"),
        ("/v1/nothing", {}, 404, None),
        ("/health", {}, 405, None),
    ],
)
def test_refusals_have_openai_shape(client: Client, path: str, body: Any, status: int, param: str | None):
    got, answer = client.post(path, body)
    assert got == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["param"] == param
    assert answer["error"]["message"]


def test_a_body_too_large_is_a_413(client: Client):
    with socket.create_connection((client.host, client.port), timeout=10) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_body_of_unknown_length_is_cut_off_at_the_limit(client: Client):
    with socket.create_connection((client.host, client.port), timeout=10) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        try:
            for _ in range(10):
                connection.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            return  # answered and closed before all was sent
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


def test_models(client: Client):
    status, answer = client.get("/v1/models")
    assert status == 200
    assert [card["id"] for card in answer["data"]] == ["fake"]
    assert client.get("/v1/models/fake")[1] == answer["data"][0]
    assert client.get("/v1/models/other")[0] == 404


def test_step_records_can_be_followed(server: Server):
    client, harness = server
    first, _ = decode_steps(client.get("/debug/steps")[1])
    client.post("/v1/completions", {"prompt": "a", "max_tokens": 3})
    wait_until(lambda: harness.recorder.next_id == first.next_id + 3)  # a record follows its tokens
    header, records = decode_steps(client.get(f"/debug/steps?since={first.next_id}")[1])
    assert [record.step_id for record in records] == [first.next_id + i for i in range(3)]
    assert (header.engine_id, header.lost, header.next_id) == ("engine", 0, first.next_id + 3)
    assert abs(header.unix_ns / 1e9 - time.time()) < 60
    header, records = decode_steps(client.get(f"/debug/steps?since={first.next_id}&limit=2")[1])
    assert (len(records), header.next_id) == (2, first.next_id + 2)
    for query, param in (("since=-1", "since"), ("limit=0", "limit"), ("since=x", "since")):
        status, answer = client.get(f"/debug/steps?{query}")
        assert (status, answer["error"]["param"]) == (400, param)


def test_the_census_says_what_free_means(client: Client):
    status, census = client.get("/debug/census")
    assert status == 200
    assert census["active"] + census["reclaimable"] + census["free"] == census["total"] == 256
    assert census["free_includes_reclaimable"] is False
    assert census["block_size"] == 16


def test_health_version_and_metrics(client: Client):
    assert client.get("/health") == (200, {"status": "ok"})
    assert client.get("/version") == (200, {"version": "1"})
    status, text = client.get("/metrics")
    assert status == 200
    assert 'stallscope_kv_blocks{state="free"}' in text


def test_concurrent_streams_do_not_mix(client: Client):
    bodies = [{"prompt": chr(97 + i), "max_tokens": 8, "stream": True} for i in range(8)]
    connections = [client.open_raw("/v1/completions", body) for body in bodies]
    for index, connection in enumerate(connections):
        with connection:
            data = b""
            while b"[DONE]" not in data:
                data += connection.recv(65536)
        lines = [line for line in data.decode().splitlines() if line.startswith("data: {")]
        text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines)
        assert text == "".join(chr(98 + index + i) for i in range(8))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_gives_its_blocks_back(stream: bool):
    with http_server(FakeRunner(seconds=0.005)) as (client, harness):
        connection = client.open_raw("/v1/completions", {"prompt": "a" * 40, "max_tokens": 1500, "stream": stream})
        wait_until(lambda: harness.scheduler.census().active > 0 and harness.recorder.next_id > 3)
        connection.close()
        wait_until(lambda: harness.scheduler.census().active == 0)
        assert harness.recorder.next_id < 1000
        wait_until(lambda: dict(harness.recorder.counters.finished) == {"abort": 1})


def test_a_forward_error_is_told_to_the_client(caplog: pytest.LogCaptureFixture):
    calls: list[int] = []

    def fail_on(_: object) -> None:
        calls.append(1)
        if len(calls) in (3, 4):
            raise RuntimeError("boom")

    with http_server(FakeRunner(fail_on)) as (client, _):
        events = client.events("/v1/completions", {"prompt": "a", "max_tokens": 9})
        assert events[-1]["error"]["code"] == "engine_error"
        status, answer = client.post("/v1/completions", {"prompt": "a"})
        assert (status, answer["error"]["type"]) == (500, "server_error")
        assert client.post("/v1/completions", {"prompt": "a"})[0] == 200


def test_a_dead_engine_is_unhealthy(caplog: pytest.LogCaptureFixture):
    def fail(_: object) -> None:
        raise RuntimeError("boom")

    with http_server(FakeRunner(fail)) as (client, _):
        assert [client.post("/v1/completions", {"prompt": "a"})[0] for _ in range(3)] == [500, 500, 500]
        wait_until(lambda: client.get("/health")[0] == 503)
        status, health = client.get("/health")
        assert health == {"status": "dead", "reason": "3 forward passes in a row failed"}
        status, answer = client.post("/v1/completions", {"prompt": "a"})
        assert (status, answer["error"]["code"]) == (503, "engine_dead")
        assert 'stallscope_failures_total{kind="engine_dead"} 1.0' in client.get("/metrics")[1]
