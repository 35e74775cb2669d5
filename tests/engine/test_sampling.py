"""Draws: their distribution, their repeatability, and their limits."""

from collections import Counter

import pytest
import torch

from engine.request import Request, SamplingParams
from engine.runner.sampling import sample

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


def test_unseeded_draws_vary():
    logits = make_logits().expand(64, -1)
    assert len(set(sample(logits, [make_request(temperature=1.0) for _ in range(64)]))) > 1


def test_logits_that_are_not_numbers_are_an_error():
    with pytest.raises(ArithmeticError, match="not finite"):
        sample(torch.full((1, 4), float("nan")), [make_request(temperature=1.0, seed=1)])
