"""Bodies are decoded strictly, and what is refused is named."""

from typing import Any

import msgspec
import pytest

from engine.request import SamplingParams
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
        ("logprobs", -1),
        ("logprobs", 21),
        ("logprobs", True),
        ("presence_penalty", 2.1),
        ("presence_penalty", "1"),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e9),
        ("min_p", 1.1),
        ("min_p", -0.1),
        ("top_k", -2),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"1": None}),
        ("logit_bias", [1]),
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
        ("logprobs", 1),
        ("top_logprobs", 21),
        ("top_logprobs", -1),
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


@pytest.mark.parametrize(
    ("field", "value", "bounds"),
    [
        ("presence_penalty", 3, ">= -2 and <= 2"),
        ("repetition_penalty", 0, ">= 0.01 and <= 100"),
        ("min_p", 2, ">= 0 and <= 1"),
        ("top_p", 0, "> 0 and <= 1"),
        ("logprobs", 21, ">= 0 and <= 20"),
        ("top_k", -2, ">= -1"),
    ],
)
def test_a_refusal_says_both_bounds(field: str, value: float, bounds: str):
    with pytest.raises(ApiError) as caught:
        completion(**{field: value})
    assert f"({field} must be {bounds})" in caught.value.message


def test_what_is_not_asked_for_is_off():
    assert completion().sampling_params(5, 259) == SamplingParams(max_tokens=5, temperature=1.0)
    assert chat().sampling_params(5, 259) == SamplingParams(max_tokens=5, temperature=1.0)


def test_options_reach_the_sampler():
    body = completion(
        temperature=0.5,
        top_p=0.9,
        top_k=-1,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=-2,
        frequency_penalty=2,
        logit_bias={"258": -100, "0": 1.5},
        logprobs=0,
        seed=3,
        stop="x",
        ignore_eos=True,
    )
    assert body.sampling_params(7, 259) == SamplingParams(
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        logit_bias=((258, -100.0), (0, 1.5)),
        logprobs=0,
        seed=3,
        stop=("x",),
        ignore_eos=True,
    )


@pytest.mark.parametrize("name", ["259", "-1", "01", "1.0", "x", "", "\u0661", "9" * 5000])
def test_bias_names_tokens_of_the_vocabulary(name: str):
    with pytest.raises(ApiError, match="token ids are 0 to 258") as caught:
        completion(logit_bias={name: 1}).sampling_params(1, 259)
    assert caught.value.param == "logit_bias"


def test_bias_is_bounded_in_number():
    with pytest.raises(ApiError, match="301 tokens, at most 300"):
        completion(logit_bias={str(index): 1 for index in range(301)}).sampling_params(1, 1000)


def test_log_probabilities_of_a_chat():
    assert chat().num_logprobs() is None
    assert chat(logprobs=False, top_logprobs=0).num_logprobs() is None
    assert chat(logprobs=True).num_logprobs() == 0
    assert chat(logprobs=True, top_logprobs=20).num_logprobs() == 20
    with pytest.raises(ApiError, match="needs logprobs") as caught:
        chat(top_logprobs=2).num_logprobs()
    assert caught.value.param == "top_logprobs"


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
