"""Bodies are decoded strictly, and what is refused is named."""

from typing import Any

import msgspec
import pytest

from engine.server.errors import ApiError
from engine.server.schemas import ChatBody, CompletionBody, decode_body

HELLO = [{"role": "user", "content": "hello"}]


def completion(**fields: Any) -> CompletionBody:
    return decode_body(msgspec.json.encode({"prompt": "x"} | fields), CompletionBody)


def chat(**fields: Any) -> ChatBody:
    return decode_body(msgspec.json.encode({"messages": HELLO} | fields), ChatBody)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", False),
        ("temperature", "0"),
        ("temperature", -0.1),
        ("temperature", 2.5),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", 1.5),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("seed", "1"),
        ("seed", 2**64),
        ("stream", 1),
        ("stop", [1]),
        ("prompt", None),
        ("prompt", 7),
        ("cache_salt", 1),
        ("n", 0),
        ("n", 17),
        ("n", True),
        ("n", 1.5),
        ("best_of", 2),
        ("echo", True),
        ("suffix", "x"),
        ("logprobs", 0),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("logit_bias", {"1": 5}),
        ("unheard_of", 1),
    ],
)
def test_a_completion_field_is_refused_by_name(field: str, value: Any):
    with pytest.raises(ApiError) as caught:
        completion(**{field: value})
    assert (caught.value.status, caught.value.param) == (400, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", []),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "tool", "content": "x"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("functions", [{}]),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]),
        ("reasoning_effort", "high"),
        ("service_tier", "priority"),
        ("store", True),
        ("max_completion_tokens", -1),
        ("prompt", "x"),
    ],
)
def test_a_chat_field_is_refused_by_name(field: str, value: Any):
    with pytest.raises(ApiError) as caught:
        chat(**{field: value})
    assert (caught.value.status, caught.value.param) == (400, field)


def test_fields_that_ask_for_nothing_are_accepted():
    completion(n=1, best_of=1, echo=False, suffix=None, logprobs=None, presence_penalty=0, logit_bias={}, user="me")
    chat(n=1, logprobs=False, tools=[], tool_choice="auto", response_format={"type": "text"}, metadata={"a": "b"})


def test_an_answer_can_be_sent_back_as_history():
    answer = {"role": "assistant", "content": "hi", "refusal": None, "tool_calls": None, "annotations": None}
    body = chat(
        messages=[
            *HELLO,
            answer,
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]
    )
    assert [message.as_template() for message in body.messages][1:] == [
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "ab"},
    ]


def test_developer_messages_are_system_messages():
    body = chat(messages=[{"role": "developer", "content": "be brief"}])
    assert body.messages[0].as_template() == {"role": "system", "content": "be brief"}


def test_stop_strings_are_bounded():
    assert completion(stop="x").stop_strings() == ("x",)
    assert completion().stop_strings() == ()
    for stop in ([""], ["x" * 257], ["x"] * 17):
        with pytest.raises(ApiError) as caught:
            completion(stop=stop).stop_strings()
        assert caught.value.param == "stop"


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"nul", b"\xff", b"[" * 100_000])
def test_what_is_no_json_object_is_a_400(raw: bytes):
    with pytest.raises(ApiError) as caught:
        decode_body(raw, CompletionBody)
    assert caught.value.status == 400
