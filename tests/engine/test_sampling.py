"""Draws: their distribution, their repeatability, and their limits."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine.request import Request, SamplingParams
from engine.runner.sampling import Sampler

torch.set_num_threads(1)

# Probabilities 0.4, 0.3, 0.2, 0.1 at ids 2, 0, 3, 1; every other id is impossible in practice.
PROBABILITIES = {2: 0.4, 0: 0.3, 3: 0.2, 1: 0.1}


def make_logits(vocab: int = 6) -> torch.Tensor:
    logits = torch.full((vocab,), -1e4)
    for token_id, probability in PROBABILITIES.items():
        logits[token_id] = torch.tensor(probability).log()
    return logits


def make_request(num_output: int = 0, **params) -> Request:
    request = Request("r", [1], SamplingParams(**params), arrival_ns=0)
    request.output_token_ids = [0] * num_output
    return request


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> list[int]:
    return Sampler().sample(logits, requests).token_ids


def shares(num_draws: int = 4000, **params) -> dict[int, float]:
    logits = make_logits().expand(num_draws, -1)
    requests = [make_request(index, seed=7, **params) for index in range(num_draws)]
    counts = Counter(sample(logits, requests))
    return {token_id: count / num_draws for token_id, count in counts.items()}


def test_greedy_takes_the_best_of_each_row():
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])
    assert sample(logits, [make_request(), make_request()]) == [1, 0]


def test_no_rows():
    assert sample(torch.empty(0, 8), []) == []


def test_temperature_one_follows_the_model():
    assert shares(temperature=1.0) == pytest.approx(PROBABILITIES, abs=0.03)


def test_temperature_sharpens():
    squared = {token_id: p * p / 0.3 for token_id, p in PROBABILITIES.items()}
    assert shares(temperature=0.5) == pytest.approx(squared, abs=0.03)


@pytest.mark.parametrize("temperature", [1e-3, 1e-6, 1e-300])
def test_temperature_to_zero_is_greedy(temperature):
    assert shares(num_draws=50, temperature=temperature) == {2: 1.0}


def test_top_k_keeps_the_best():
    assert shares(temperature=1.0, top_k=2) == pytest.approx({2: 4 / 7, 0: 3 / 7}, abs=0.03)


def test_top_k_beyond_the_vocabulary_keeps_all():
    assert shares(temperature=1.0, top_k=1000) == pytest.approx(PROBABILITIES, abs=0.03)


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.35, {2}), (0.5, {2, 0}), (0.69, {2, 0}), (0.75, {2, 0, 3}), (0.0, {2}), (0.999, {2, 0, 3, 1})],
)
def test_top_p_keeps_the_smallest_sufficient_set(top_p, kept):
    mass = sum(PROBABILITIES[token_id] for token_id in kept)
    expected = {token_id: PROBABILITIES[token_id] / mass for token_id in kept}
    assert shares(temperature=1.0, top_p=top_p) == pytest.approx(expected, abs=0.03)


def test_top_p_applies_to_what_top_k_left():
    # Renormalised after top_k=2: 4/7 and 3/7, so that 0.5 keeps one.
    assert shares(num_draws=200, temperature=1.0, top_k=2, top_p=0.5) == {2: 1.0}


def test_top_p_of_a_flat_distribution_looks_beyond_the_first_candidates():
    """A uniform distribution over 1000 tokens: the nucleus of 0.9 is 900 tokens, more than the shortcut holds."""
    logits = torch.zeros(2000, 1000)
    requests = [make_request(index, seed=1, temperature=1.0, top_p=0.9) for index in range(2000)]
    assert 700 < len(set(sample(logits, requests))) <= 900


def test_seeded_draws_depend_on_seed_and_index_alone():
    logits = make_logits(32).expand(12, -1)
    seeded = [make_request(index, temperature=1.0, seed=3) for index in range(12)]
    together = sample(logits, seeded)
    alone = [sample(logits[:1], [request])[0] for request in seeded]
    others = [make_request(temperature=0.0), make_request(temperature=2.0), *seeded]
    mixed = sample(make_logits(32).expand(14, -1), others)[2:]
    assert together == alone == mixed
    assert len(set(together)) > 1
    assert together != sample(logits, [make_request(index, temperature=1.0, seed=4) for index in range(12)])


@pytest.mark.parametrize(("min_p", "kept"), [(0.3, {2, 0, 3}), (0.6, {2, 0}), (0.8, {2}), (1.0, {2})])
def test_min_p_keeps_what_is_near_the_best(min_p, kept):
    """Relative to the best token's 0.4: 1, 0.75, 0.5, 0.25."""
    mass = sum(PROBABILITIES[token_id] for token_id in kept)
    expected = {token_id: PROBABILITIES[token_id] / mass for token_id in kept}
    assert shares(temperature=1.0, min_p=min_p) == pytest.approx(expected, abs=0.03)


def test_top_p_applies_to_what_min_p_left():
    # Renormalised after min_p: 4/9, 3/9, 2/9, so that 0.7 keeps two.
    assert set(shares(num_draws=500, temperature=1.0, min_p=0.3, top_p=0.7)) == {2, 0}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.0, "top_k": 5000},
    {"temperature": 1.5, "top_p": 0.9},
    {"temperature": 0.3, "top_p": 0.5},
    {"temperature": 1.0, "top_k": 3000, "top_p": 0.99},
    {"temperature": 1.0, "min_p": 0.02},
    {"temperature": 1.0, "min_p": 0.001, "top_k": 40, "top_p": 0.8},
    {"repetition_penalty": 1.3},
    {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": 0.5, "top_p": 0.9},
    {"temperature": 1.0, "logit_bias": ((7, 5.0), (9, -5.0))},
]


@pytest.mark.parametrize("vocab", [9000, 49152])
def test_every_mix_of_options_draws_as_each_row_alone(vocab: int):
    """Rows are handled in groups; no group may change what a seeded request gets."""
    logits = torch.randn((len(OPTIONS) * 2, vocab), generator=torch.Generator().manual_seed(5)) * 2.5
    requests = [make_request(index, seed=index, **OPTIONS[index % len(OPTIONS)]) for index in range(logits.shape[0])]
    together = sample(logits, requests)
    assert together == [sample(logits[row : row + 1], [request])[0] for row, request in enumerate(requests)]
    assert sample(logits.flip(0), requests[::-1]) == together[::-1]


@pytest.mark.parametrize("options", OPTIONS[2:9])
def test_draws_stay_inside_the_allowed_set(options):
    """Against filters written row by row over the sorted distribution."""
    row = torch.randn(6000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3
    order = row.argsort(descending=True)
    weights = ((row[order] - row.max()) / options["temperature"]).exp()
    allowed = weights >= options.get("min_p", 0.0)
    allowed &= torch.arange(6000) < (options.get("top_k") or 6000)
    weights = weights * allowed
    allowed &= (weights.cumsum(0) - weights) / weights.sum() < options.get("top_p", 1.0)
    requests = [make_request(index, seed=9, **options) for index in range(600)]
    drawn = set(sample(row.float().expand(600, -1), requests))
    assert drawn <= set(order[allowed].tolist())
    assert len(drawn) > min(int(allowed.sum()), 600) * 0.2 or len(drawn) > 5


def test_half_precision_logits_are_drawn_in_full_precision():
    """In bfloat16 a distance of 100.5 to the best would be rounded before it is divided by the temperature."""
    row = torch.tensor([100.0, 99.5, 0.0], dtype=torch.bfloat16)
    requests = [make_request(index, seed=1, temperature=1.0) for index in range(2000)]
    counts = Counter(sample(row.expand(2000, -1), requests))
    assert counts[0] / 2000 == pytest.approx(1 / (1 + torch.tensor(-0.5).exp().item()), abs=0.04)


def test_unseeded_draws_vary():
    logits = make_logits().expand(64, -1)
    assert len(set(sample(logits, [make_request(temperature=1.0) for _ in range(64)]))) > 1


@pytest.mark.parametrize("options", [{}, {"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.1}])
def test_logits_that_are_not_numbers_are_an_error(options):
    with pytest.raises(ArithmeticError, match="not finite"):
        sample(torch.full((1, 4), float("nan")), [make_request(temperature=1.0, seed=1, **options)])


# ---- log probabilities


def test_log_probabilities_are_those_of_the_raw_logits():
    """Temperature, filters, penalties and bias change what is drawn, never what is reported."""
    logits = torch.randn((3, 500), generator=torch.Generator().manual_seed(2)) * 4
    options: dict[str, Any] = {"temperature": 0.5, "top_k": 3, "repetition_penalty": 2.0, "logit_bias": ((3, 50.0),)}
    requests = [make_request(seed=1, logprobs=4, **options), make_request(), make_request(logprobs=0)]
    sampled = Sampler().sample(logits, requests)
    assert sampled.logprobs is not None
    reported, none, chosen_only = sampled.logprobs
    expected = logits.double().log_softmax(-1)
    assert none is None
    assert reported is not None and chosen_only is not None
    assert reported.logprob == pytest.approx(expected[0, sampled.token_ids[0]].item(), abs=1e-5)
    best = expected[0].topk(4)
    assert reported.top_token_ids == best.indices.tolist()
    assert reported.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-5)
    assert chosen_only.logprob == pytest.approx(expected[2].max().item(), abs=1e-5)
    assert chosen_only.top_token_ids == []


def test_nothing_is_reported_unasked():
    assert Sampler().sample(make_logits().view(1, -1), [make_request(temperature=1.0)]).logprobs is None
