"""Logits to token ids: greedy, temperature, top-k, top-p, seed."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.request import Request, SamplingParams

_MIN_TEMPERATURE = 1e-5
"""Below this a draw is the argmax for any pair of distinct float32 logits, and the division would overflow."""
_TOP_P_CANDIDATES = 256
"""top_p first looks at this many best tokens; only a flatter distribution pays for sorting the vocabulary."""


def sample(logits: Tensor, requests: Sequence[Request]) -> list[int]:
    """One token id per row of logits [n, vocab], drawn as `requests[row].params` says.

    A seeded request's randomness is a function of (seed, index of the output token) alone, so it does not depend on the
    other requests of the batch. The logits themselves can differ in the last bits between batches, as with any engine.
    """
    if not requests:
        return []
    # One argmax serves all greedy rows; rows that draw overwrite theirs.
    token_ids: list[int] = logits.argmax(dim=-1).tolist()
    for row, request in enumerate(requests):
        if request.params.temperature >= _MIN_TEMPERATURE:
            uniform = _uniform(request.params.seed, len(request.output_token_ids))
            token_ids[row] = _draw(logits[row], request.params, uniform)
    return token_ids


def _uniform(seed: int | None, index: int) -> float:
    if seed is None:
        return random.random()
    return random.Random(f"{seed}/{index}").random()


def _draw(logits: Tensor, params: SamplingParams, uniform: float) -> int:
    """Inverse-CDF draw from logits [vocab]: top_k is applied first, then top_p to what is left."""
    scaled = (logits.float() - logits.max()) / params.temperature
    ids = None
    if params.top_k and params.top_k < scaled.numel():
        scaled, ids = scaled.topk(params.top_k)
    probabilities = scaled.softmax(dim=-1)
    if params.top_p < 1.0:
        probabilities, order = _nucleus(probabilities, params.top_p, is_sorted=ids is not None)
        ids = order if ids is None else ids[order]
    cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    total = float(cumulative[-1])
    if not total > 0.0:
        raise ArithmeticError("cannot sample: the logits are not finite")
    index = int(torch.searchsorted(cumulative, uniform * total, right=True))
    index = min(index, cumulative.numel() - 1)
    return index if ids is None else int(ids[index])


def _nucleus(probabilities: Tensor, top_p: float, *, is_sorted: bool) -> tuple[Tensor, Tensor]:
    """The smallest set of best tokens whose mass reaches top_p (at least one): their probabilities and positions."""
    if is_sorted:
        values, order = probabilities, torch.arange(probabilities.numel(), device=probabilities.device)
    else:
        values, order = probabilities.topk(min(_TOP_P_CANDIDATES, probabilities.numel()))
        if float(values.sum()) < top_p:
            values, order = probabilities.sort(descending=True)
    mass_before = values.cumsum(dim=-1) - values
    count = max(1, int((mass_before < top_p).sum()))
    return values[:count], order[:count]
