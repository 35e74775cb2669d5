"""Penalties against their definition, their books across steps, and rows that change hands."""

from typing import Any

import pytest
import torch

from engine.request import Request, RequestState, SamplingParams
from engine.runner.penalties import LogitAdjuster

VOCAB = 50


def make_request(name: str = "r", prompt: tuple[int, ...] = (1, 2, 2), **params) -> Request:
    return Request(name, list(prompt), SamplingParams(**params), arrival_ns=0)


def expected(row: torch.Tensor, request: Request) -> torch.Tensor:
    """The definition, token by token."""
    params, adjusted = request.params, row.clone()
    for token_id in set(request.prompt_token_ids) | set(request.output_token_ids):
        value = adjusted[token_id]
        adjusted[token_id] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    for token_id in set(request.output_token_ids):
        count = request.output_token_ids.count(token_id)
        adjusted[token_id] -= params.presence_penalty + count * params.frequency_penalty
    for token_id, bias in params.logit_bias:
        adjusted[token_id] += bias
    return adjusted


def check(adjuster: LogitAdjuster, requests: list[Request], step: int = 0) -> None:
    logits = torch.randn((len(requests), VOCAB), generator=torch.Generator().manual_seed(step))
    kept = logits.clone()
    adjusted = adjuster.apply(logits, requests)
    assert torch.equal(logits, kept), "log probabilities are taken from these afterwards"
    for row, request in enumerate(requests):
        torch.testing.assert_close(adjusted[row], expected(kept[row], request))


REPEATS: dict[str, Any] = {"repetition_penalty": 1.5}
COUNTS: dict[str, Any] = {"presence_penalty": 0.7, "frequency_penalty": -0.3}
ALL: dict[str, Any] = REPEATS | COUNTS | {"logit_bias": ((0, 2.5), (3, -4.0))}


def test_who_asks_for_nothing_gets_the_very_logits():
    logits = torch.zeros(2, VOCAB)
    assert LogitAdjuster().apply(logits, [make_request("a"), make_request("b", temperature=1.0)]) is logits


@pytest.mark.parametrize("params", [REPEATS, COUNTS, ALL, {"logit_bias": ((49, 100.0),)}])
def test_each_step_follows_the_definition(params):
    """Token 0 is what unused places of the tables name; it must take its own penalty only."""
    adjuster = LogitAdjuster()
    requests = [
        make_request("a", **params),
        make_request("plain"),
        make_request("b", (5, 0, 0, 7, 9, 11), **params),
    ]
    for step, token_ids in enumerate([(4, 4, 4), (4, 4, 0), (2, 4, 0), (30, 1, 31)]):
        check(adjuster, requests, step)
        for request, token_id in zip(requests, token_ids, strict=True):
            request.output_token_ids.append(token_id)
    check(adjuster, requests[::-1], 9)


def test_a_request_may_miss_steps():
    """It was preempted, or the batch was full: all its new tokens are counted when it is sampled again."""
    adjuster = LogitAdjuster()
    request, other = make_request("a", **ALL), make_request("b", **ALL)
    check(adjuster, [request, other])
    request.output_token_ids += [6, 6, 1, 0]
    check(adjuster, [other])
    check(adjuster, [request, other])


def test_tables_grow_with_requests_and_with_what_they_have_seen():
    adjuster = LogitAdjuster()
    requests = [make_request(str(index), (*range(index % 7), 1), **ALL) for index in range(20)]
    for step in range(3):
        check(adjuster, requests[: 5 + 7 * step], step)
        for request in requests:
            request.output_token_ids += [step * 7 % VOCAB, 3]
    vast = make_request("vast", tuple(range(40)) * 20, **ALL)
    vast.output_token_ids = list(range(VOCAB)) * 9
    check(adjuster, [*requests, vast], 7)
    check(adjuster, [vast, *requests], 8)


def test_rows_of_finished_requests_are_used_again():
    adjuster = LogitAdjuster()
    for generation in range(30):
        request = make_request(f"r{generation}", (generation, 1), **ALL)
        request.output_token_ids = [generation, generation]
        check(adjuster, [request], generation)
        request.state = RequestState.FINISHED
    assert adjuster.num_rows == 8


def test_an_id_that_comes_again_is_another_request():
    adjuster = LogitAdjuster()
    first = make_request("same", (1, 2), **ALL)
    first.output_token_ids = [9, 9]
    check(adjuster, [first])
    check(adjuster, [make_request("same", (3,), **ALL)])


def test_double_logits_are_not_changed_in_place():
    logits = torch.randn(1, VOCAB, dtype=torch.float64)
    kept = logits.clone()
    LogitAdjuster().apply(logits, [make_request(**ALL)])
    assert torch.equal(logits, kept)
