"""Several choices of one prompt, over HTTP."""

from collections import Counter
from typing import Any

import pytest

from tests.engine.fakes import FakeRunner
from tests.engine.http_server import http_server, wait_until


def test_choices_share_one_prompt_and_are_paid_for_one_by_one():
    with http_server() as (client, harness):
        status, answer = client.post("/v1/completions", {"prompt": "a" * 40, "n": 3, "max_tokens": 5})
        assert status == 200
        assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(i, "bcdef") for i in range(3)]
        assert answer["usage"] == {
            "prompt_tokens": 40,
            "completion_tokens": 15,
            "total_tokens": 55,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        # Counted by the engine's thread when the answer has been handed out.
        wait_until(lambda: dict(harness.recorder.counters.finished) == {"length": 3})
        wait_until(lambda: harness.recorder.counters.tokens["prefill"] == 40)


def test_streamed_choices_carry_their_index_and_end_one_by_one():
    with http_server() as (client, _):
        body = {"prompt": "a", "n": 3, "max_tokens": 4, "stream_options": {"include_usage": True}}
        *chunks, usage, done = client.events("/v1/completions", body)
        assert done == "[DONE]"
        assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 13)
        choices = [chunk["choices"][0] for chunk in chunks]
        assert len({chunk["id"] for chunk in chunks}) == 1
        for index in range(3):
            own = [choice for choice in choices if choice["index"] == index]
            assert "".join(choice["text"] for choice in own) == "bcde"
            assert [choice["finish_reason"] for choice in own][-1] == "length"
            assert sum(choice["finish_reason"] is not None for choice in own) == 1


def test_every_chat_choice_starts_with_its_role():
    with http_server() as (client, _):
        body = {"messages": [{"role": "user", "content": "a"}], "n": 2, "max_tokens": 2}
        events = client.events("/v1/chat/completions", body)
        first = [event["choices"][0] for event in events[:2]]
        assert [(choice["index"], choice["delta"]["role"]) for choice in first] == [(0, "assistant"), (1, "assistant")]


def test_a_stop_string_ends_its_own_choice_only():
    """The leader is stopped in mid-stream by its stop string, in the hand-out of the engine; the others are, too, but each
    by its own."""
    with http_server() as (client, harness):
        status, answer = client.post("/v1/completions", {"prompt": "a", "n": 4, "max_tokens": 50, "stop": "e"})
        assert status == 200
        assert [(c["text"], c["finish_reason"]) for c in answer["choices"]] == [("bcd", "stop")] * 4
        wait_until(lambda: not harness.scheduler.has_work)
        assert harness.scheduler.census().active == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("slots", [8, 2])
def test_a_client_that_leaves_frees_every_choice(stream: bool, slots: int):
    with http_server(FakeRunner(seconds=0.005), max_sequences=slots) as (client, harness):
        connection = client.open_raw(
            "/v1/completions", {"prompt": "a" * 40, "n": 4, "max_tokens": 1500, "stream": stream}
        )
        wait_until(lambda: harness.scheduler.census().active > 0 and harness.recorder.next_id > 3)
        connection.close()
        wait_until(lambda: harness.scheduler.census().active == 0 and not harness.scheduler.has_work)
        wait_until(lambda: dict(harness.recorder.counters.finished) == {"abort": 4})


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_of_one_choice_is_the_answer_and_ends_the_others(stream: bool, caplog: pytest.LogCaptureFixture):
    calls: Counter[str] = Counter()

    def fail_once(_: Any) -> None:
        calls["steps"] += 1
        if calls["steps"] == 3:
            raise RuntimeError("boom")

    with http_server(FakeRunner(fail_once)) as (client, harness):
        body = {"prompt": "a", "n": 3, "max_tokens": 9}
        if stream:
            assert client.events("/v1/completions", body)[-1]["error"]["code"] == "engine_error"
        else:
            status, answer = client.post("/v1/completions", body)
            assert (status, answer["error"]["code"]) == (500, "engine_error")
        wait_until(lambda: not harness.scheduler.has_work)
        assert harness.scheduler.census().active == 0


def test_more_choices_than_slots_are_served_one_after_the_other():
    with http_server(max_sequences=3) as (client, _):
        status, answer = client.post("/v1/completions", {"prompt": "a" * 40, "n": 16, "max_tokens": 3})
        assert status == 200
        assert [choice["text"] for choice in answer["choices"]] == ["bcd"] * 16
