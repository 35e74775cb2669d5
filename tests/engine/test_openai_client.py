"""The official OpenAI client against a real server process."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.engine.serving import Serving, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving("--model", "tiny", "--kv-blocks", "128") as running:
        yield running


@pytest.fixture
def client(server: Serving) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=30) as made:
        yield made


def test_models(client: Any):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "stallscope"


def test_a_completion(client: Any):
    answers = [
        client.completions.create(
            model="tiny", prompt="hello " * 10, max_tokens=6, temperature=0, extra_body={"ignore_eos": True}
        )
        for _ in range(2)
    ]
    assert answers[0].choices[0].text == answers[1].choices[0].text
    assert answers[0].choices[0].finish_reason == "length"
    usages = [answer.usage for answer in answers]
    assert all(usage is not None and (usage.prompt_tokens, usage.completion_tokens) == (60, 6) for usage in usages)
    details = [usage.prompt_tokens_details for usage in usages if usage is not None]
    assert [detail and detail.cached_tokens for detail in details] == [0, 48]


def test_a_streamed_completion_equals_the_whole_one(client: Any):
    def ask(**more: Any):
        return client.completions.create(
            model="tiny", prompt="stream", max_tokens=12, temperature=0, extra_body={"ignore_eos": True}, **more
        )

    with ask(stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == ask().choices[0].text
    assert chunks[-1].usage.completion_tokens == 12
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "length"


def test_a_chat(client: Any):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]

    def ask(**more: Any):
        return client.chat.completions.create(
            model="tiny",
            messages=messages,
            max_tokens=12,
            temperature=0,
            seed=7,
            extra_body={"ignore_eos": True},
            **more,
        )

    whole = ask()
    assert whole.choices[0].message.role == "assistant"
    with ask(stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_a_seed_makes_sampling_repeatable(client: Any):
    def ask(seed: int) -> str:
        answer = client.completions.create(
            model="tiny", prompt="seed", max_tokens=16, temperature=1, top_p=0.95, seed=seed
        )
        return str(answer.choices[0].text)

    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in range(4)}) > 1


def test_errors_arrive_as_the_clients_own(client: Any):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="a", n=17)
    assert refused.value.param == "n"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-4", prompt="a")
    assert unknown.value.code == "model_not_found"


def test_three_choices(client: Any):
    """The prompt is computed and paid for once; seeds make each choice repeatable, and different from the others."""

    def ask(**more: Any):
        return client.completions.create(
            model="tiny", prompt="three of them", n=3, max_tokens=8, seed=5, extra_body={"ignore_eos": True}, **more
        )

    whole = ask()
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts = [choice.text for choice in whole.choices]
    assert len(set(texts)) == 3
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (13, 24, 37)
    with ask(stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    pieces = [(chunk.choices[0].index, chunk.choices[0].text) for chunk in chunks if chunk.choices]
    assert ["".join(text for index, text in pieces if index == choice) for choice in range(3)] == texts
    ends = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert ends == ["length"] * 3
    assert chunks[-1].usage.completion_tokens == 24
    alone = client.completions.create(
        model="tiny", prompt="three of them", max_tokens=8, seed=5, extra_body={"ignore_eos": True}
    )
    assert alone.choices[0].text == texts[0], "the first of several is the only one of one"


def test_chat_choices(client: Any):
    messages = [{"role": "user", "content": "hello"}]

    def ask(**more: Any):
        return client.chat.completions.create(
            model="tiny", messages=messages, n=3, max_tokens=6, seed=1, extra_body={"ignore_eos": True}, **more
        )

    whole = ask()
    with ask(stream=True) as stream:
        chunks = [chunk.choices[0] for chunk in stream]
    for index, choice in enumerate(whole.choices):
        own = [chunk.delta for chunk in chunks if chunk.index == index]
        assert own[0].role == "assistant"
        assert "".join(delta.content or "" for delta in own) == choice.message.content


def test_log_probabilities_of_a_completion(client: Any):
    """Greedy, so that the chosen token is the best of the alternatives; streamed and whole agree."""

    def ask(**more: Any):
        return client.completions.create(
            model="tiny",
            prompt="log",
            max_tokens=8,
            temperature=0,
            logprobs=3,
            extra_body={"ignore_eos": True, "repetition_penalty": 1.0},
            **more,
        )

    whole = ask().choices[0].logprobs
    assert len(whole.tokens) == len(whole.token_logprobs) == len(whole.top_logprobs) == len(whole.text_offset) == 8
    for token, logprob, top in zip(whole.tokens, whole.token_logprobs, whole.top_logprobs, strict=True):
        assert len(top) == 3
        assert top[token] == logprob == max(top.values()) <= 0
    with ask(stream=True) as stream:
        parts = [chunk.choices[0].logprobs for chunk in stream if chunk.choices and chunk.choices[0].logprobs]
    assert [token for part in parts for token in part.tokens] == whole.tokens
    assert [value for part in parts for value in part.token_logprobs] == pytest.approx(whole.token_logprobs, abs=1e-5)
    assert [at for part in parts for at in part.text_offset] == whole.text_offset


def test_log_probabilities_of_a_chat(client: Any):
    def ask(**more: Any):
        return client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=6,
            temperature=0.7,
            seed=3,
            logprobs=True,
            top_logprobs=2,
            presence_penalty=0.5,
            frequency_penalty=0.5,
            logit_bias={"258": -100},
            extra_body={"ignore_eos": True, "min_p": 0.01, "top_k": 100},
            **more,
        )

    whole = ask().choices[0].logprobs.content
    assert len(whole) == 6
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in whole)
    assert all(bytes(entry.bytes).decode("utf-8", "replace") == entry.token for entry in whole)
    with ask(stream=True) as stream:
        parts = [chunk.choices[0].logprobs for chunk in stream if chunk.choices[0].logprobs]
    streamed = [entry for part in parts for entry in part.content or []]
    assert [entry.bytes for entry in streamed] == [entry.bytes for entry in whole]
    assert [entry.logprob for entry in streamed] == pytest.approx([entry.logprob for entry in whole], abs=1e-5)


def test_penalties_keep_tokens_from_coming_again(client: Any):
    answer = client.completions.create(
        model="tiny",
        prompt="again and again",
        max_tokens=60,
        temperature=0,
        frequency_penalty=2,
        presence_penalty=2,
        logprobs=0,
        extra_body={"ignore_eos": True, "repetition_penalty": 100},
    )
    tokens = answer.choices[0].logprobs.tokens
    assert len(set(tokens)) > 55


@pytest.mark.model
@pytest.mark.slow
def test_the_real_model_knows_paris():
    with (
        serving("--model", "smollm2", "--kv-blocks", "128", seconds_to_ready=240) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120) as made,
    ):
        client: Any = made  # the overloads of `create` are too many for keyword dictionaries
        question = [{"role": "user", "content": "What is the capital of France?"}]
        answer = client.chat.completions.create(model="smollm2", messages=question, max_tokens=24, temperature=0)
        assert "Paris" in answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop"
        with client.chat.completions.create(
            model="smollm2", messages=question, max_tokens=24, temperature=0, stream=True
        ) as stream:
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert "".join(pieces) == answer.choices[0].message.content
        assert len([piece for piece in pieces if piece]) > 3
