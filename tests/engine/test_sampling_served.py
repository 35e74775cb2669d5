"""Sampling options through the whole engine, on a model whose answers a dense decoder checks; and its longest requests."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.model.registry import LoadedModel, load_model
from engine.model.tiny import TINY_CONFIG, RandomSource
from engine.model.weights import assemble
from engine.request import Request, SamplingParams, choice_seed
from engine.runner.cpu import CpuRunner
from tests.engine.fakes import Harness
from tests.engine.http_server import Client, http_server
from tests.engine.model_helpers import dense_logits, make_prompt, tiny

LIMITS: dict[str, Any] = {
    "kv_blocks": 64,
    "block_size": 16,
    "max_batched_tokens": 32,
    "max_model_len": 256,
    "max_sequences": 8,
}
CONTEXT = 64


def make_harness(model: LoadedModel) -> Harness:
    runner = CpuRunner(model, threads=1)
    runner.allocate_kv(LIMITS["kv_blocks"], LIMITS["block_size"])
    return Harness(runner, **LIMITS)


def submit(harness: Harness, name: str, prompt: list[int], **params: Any) -> Request:
    params = {"max_tokens": 12, "ignore_eos": True} | params
    return harness.add(Request(name, prompt, SamplingParams(**params), arrival_ns=0))


def test_log_probabilities_equal_those_of_a_dense_decoder():
    """In a mixed batch, with a chunked prompt, whatever else was asked for."""
    model = tiny("float32")
    harness = make_harness(model)
    asked = [
        submit(harness, "greedy", make_prompt(40, seed=1), logprobs=5),
        submit(harness, "drawn", make_prompt(9, seed=2), logprobs=2, temperature=1.5, seed=4, top_p=0.9),
        submit(harness, "penalised", make_prompt(17, seed=3), logprobs=0, repetition_penalty=1.4, presence_penalty=1.0),
    ]
    submit(harness, "unasked", make_prompt(5, seed=5))
    harness.run()
    assert all(output.logprobs is None for output in harness.outputs if output.request.request_id == "unasked")
    for request in asked:
        count = request.params.logprobs
        sequence = request.prompt_token_ids + request.output_token_ids
        reference = dense_logits(load_model("tiny", "float64"), sequence[:-1])[-len(request.output_token_ids) :]
        own = [output for output in harness.outputs if output.request is request]
        assert len(own) == 12
        for output, expected in zip(own, reference.log_softmax(-1), strict=True):
            assert output.logprobs is not None and output.token_id is not None
            assert output.logprobs.logprob == pytest.approx(expected[output.token_id].item(), abs=1e-5)
            assert output.logprobs.top_logprobs == pytest.approx(expected.topk(count).values.tolist(), abs=1e-5)
            found = expected[torch.tensor(output.logprobs.top_token_ids, dtype=torch.int64)]
            assert found.tolist() == pytest.approx(output.logprobs.top_logprobs, abs=1e-5)


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.8, "seed": 2, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.2, "seed": 3, "min_p": 0.02, "frequency_penalty": 0.5},
    {"temperature": 1.0, "seed": 4, "repetition_penalty": 1.2, "logit_bias": ((65, 3.0),)},
    {"repetition_penalty": 1.5, "presence_penalty": 0.5},
]


def test_answers_do_not_depend_on_the_batch():
    """Each request alone, then all together with strangers, in float64, where sums do not blur the draws."""
    model = tiny("float64")
    alone = []
    for index, options in enumerate(OPTIONS):
        harness = make_harness(model)
        request = submit(harness, "alone", make_prompt(20, seed=index), **options)
        harness.run()
        alone.append(request.output_token_ids)
    harness = make_harness(model)
    submit(harness, "stranger", make_prompt(50, seed=90), temperature=2.0)
    together = [
        submit(harness, f"r{index}", make_prompt(20, seed=index), **options) for index, options in enumerate(OPTIONS)
    ]
    submit(harness, "greedy", make_prompt(30, seed=91))
    harness.run()
    assert [request.output_token_ids for request in together] == alone


def test_choices_of_one_prompt_have_books_of_their_own():
    """Forks share blocks, never what they have said: each is as if it had been asked for alone."""
    model = tiny("float64")
    options: dict[str, Any] = {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "logprobs": 1}

    def ask(choice: int) -> Request:
        params = SamplingParams(max_tokens=12, ignore_eos=True, seed=choice_seed(5, choice), **options)
        return Request(f"r{choice}", make_prompt(37), params, arrival_ns=0)

    together = make_harness(model)
    choices = [ask(choice) for choice in range(3)]
    together.scheduler.add(choices[0], choices[1:])
    together.run()
    assert all(output.logprobs is not None for output in together.outputs)
    assert len({tuple(choice.output_token_ids) for choice in choices}) == 3
    for index, choice in enumerate(choices):
        alone = make_harness(model)
        assert alone.add(ask(index)).output_token_ids == []
        alone.run()
        assert [output.token_id for output in alone.outputs] == choice.output_token_ids


def test_penalties_survive_preemption():
    """The pool is too small for all: who is computed again goes on with the counts it had."""
    model = tiny("float64")
    options: dict[str, Any] = {"repetition_penalty": 1.5, "frequency_penalty": 0.8, "max_tokens": 60}

    def answers(num_blocks: int) -> list[list[int]]:
        runner = CpuRunner(model, threads=1)
        runner.allocate_kv(num_blocks, 16)
        harness = Harness(runner, **(LIMITS | {"kv_blocks": num_blocks}))
        requests = [submit(harness, f"r{index}", make_prompt(20, seed=index), **options) for index in range(4)]
        harness.run()
        assert (num_blocks > 12) == (not any(request.num_preemptions for request in requests))
        return [request.output_token_ids for request in requests]

    assert answers(10) == answers(64)


# ---- the model's limit


@pytest.fixture(scope="module")
def short_context() -> Iterator[Client]:
    """A model of 64 positions, all of which may be used."""
    config = replace(TINY_CONFIG, max_position=CONTEXT)
    model = replace(tiny("float32"), config=config, weights=assemble(config, RandomSource(config, 0), torch.float32))
    runner = CpuRunner(model, threads=1)
    runner.allocate_kv(16, 16)
    with http_server(runner, kv_blocks=16, max_model_len=CONTEXT, max_batched_tokens=24) as (client, _):
        yield client


@pytest.mark.parametrize("num_prompt", [1, 40, CONTEXT - 1])
def test_a_request_may_fill_the_context(short_context: Client, num_prompt: int):
    body = {"prompt": make_prompt(num_prompt), "max_tokens": CONTEXT - num_prompt, "ignore_eos": True, "logprobs": 0}
    status, answer = short_context.post("/v1/completions", body)
    assert status == 200, answer
    assert answer["usage"]["total_tokens"] == CONTEXT
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == CONTEXT - num_prompt


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "param", "message"),
    [
        (
            40,
            CONTEXT - 39,
            "max_tokens",
            "40 prompt tokens + max_tokens 25 exceed the context of 64; at most 24 output",
        ),
        (CONTEXT, 1, "prompt", "the prompt has 64 tokens; with 1 output token that exceeds the context of 64"),
    ],
)
def test_a_request_beyond_the_context_is_a_400(
    short_context: Client, num_prompt: int, max_tokens: int, param: str, message: str
):
    status, answer = short_context.post(
        "/v1/completions", {"prompt": make_prompt(num_prompt), "max_tokens": max_tokens}
    )
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, param, "context_length_exceeded")
    assert message in answer["error"]["message"]


def test_a_chat_without_a_limit_ends_with_the_context(short_context: Client):
    body = {"messages": [{"role": "user", "content": "x" * 50}], "ignore_eos": True}
    status, answer = short_context.post("/v1/chat/completions", body)
    assert (status, answer["usage"]["total_tokens"]) == (200, CONTEXT)
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_chat_beyond_the_context_is_a_400(short_context: Client):
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "x" * CONTEXT}]}
    status, answer = short_context.post("/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, "messages")
    body = {"messages": [{"role": "user", "content": "x" * 10}], "max_completion_tokens": CONTEXT}
    status, answer = short_context.post("/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, "max_completion_tokens")
