"""Logits to token ids, for all rows of a batch together, on whatever device the logits are.

    logits -> penalties, bias -> best token                                             temperature 0
                              -> temperature -> min_p -> top_k -> top_p -> draw         otherwise

Rows are told apart on the host, from their requests; what a row does not ask for is not computed for it.
"""

import random
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Tensor

from engine.request import Request
from engine.runner.base import TokenLogprobs
from engine.runner.penalties import LogitAdjuster

_MIN_TEMPERATURE = 1e-5
"""Below this a draw is the argmax for any pair of distinct float32 logits, and the division would overflow."""
_BLOCK = 256
"""Weights are summed in blocks of this many tokens; only the block that a draw falls into is looked at one by one."""
_CANDIDATES = (256, 8192)
"""top_p looks at this many best tokens; only a flatter distribution pays for more, at last for sorting the vocabulary."""
_GROUP = 16
_UNIFORM_BYTES = 6
_MAX_FRACTION = 1.0 - 2.0**-40


class Sampled(NamedTuple):
    token_ids: list[int]
    """One per row."""
    logprobs: list[TokenLogprobs | None] | None
    """One per row, None for rows that did not ask; None as a whole when none did."""


class _Scratch:
    """Memory for two float32 tensors the size of a batch's logits, kept from step to step: fresh pages for them would
    cost a CPU more than the work that is done in them."""

    def __init__(self) -> None:
        self._weights = torch.empty(0)
        self._mask = torch.empty(0)

    def weights(self, num_rows: int, size: int, device: torch.device) -> Tensor:
        """[num_rows, size], its contents undefined; valid until the next call."""
        if self._weights.numel() < num_rows * size:
            self._weights = torch.empty(num_rows * size, dtype=torch.float32, device=device)
        return self._weights[: num_rows * size].view(num_rows, size)

    def mask_like(self, weights: Tensor) -> Tensor:
        """As `weights`."""
        if self._mask.numel() < weights.numel():
            self._mask = torch.empty(weights.numel(), dtype=torch.float32, device=weights.device)
        return self._mask[: weights.numel()].view(weights.shape)


class Sampler:
    """One per runner: it keeps what penalised requests have seen. Called by the engine thread alone."""

    def __init__(self) -> None:
        self._adjuster = LogitAdjuster()
        self._scratch = _Scratch()

    def sample(self, logits: Tensor, requests: Sequence[Request]) -> Sampled:
        """One token id per row of logits [n, vocab], chosen as `requests[row].params` says.

        A seeded request's randomness is a function of (seed, index of the output token) alone, so it does not depend on
        the other requests of the batch. The logits themselves can differ in the last bits between batches, as with any
        engine. Log probabilities are those of the logits as they came. Raises ArithmeticError when a draw meets logits
        that are not finite.
        """
        if not requests:
            return Sampled([], None)
        adjusted = self._adjuster.apply(logits, requests)
        drawn = [row for row, request in enumerate(requests) if request.params.temperature >= _MIN_TEMPERATURE]
        if len(drawn) == len(requests):
            tokens = _draw(adjusted, requests, self._scratch)
        else:
            tokens = _argmax(adjusted)
            if drawn:
                at = torch.tensor(drawn, device=logits.device)
                tokens.index_copy_(0, at, _draw(adjusted[at], [requests[row] for row in drawn], self._scratch))
        token_ids: list[int] = tokens.tolist()
        if min(token_ids) < 0:
            raise ArithmeticError("cannot sample: the logits are not finite")
        return Sampled(token_ids, _logprobs(logits, tokens, requests))


def _argmax(logits: Tensor) -> Tensor:
    """The first best token of each row, [n]."""
    num_rows, vocab_size = logits.shape
    block = next((size for size in (256, 128, 64) if vocab_size % size == 0), None)
    if block is None or not logits.is_cpu:
        return logits.argmax(dim=-1)
    # torch's argmax reads one number at a time on a CPU; amax is 15 times as fast and leaves little to search.
    blocks = logits.view(num_rows, -1, block)
    best = blocks.amax(dim=-1).argmax(dim=-1)
    within = blocks[torch.arange(num_rows), best].argmax(dim=-1)
    return best * block + within


def _uniform(request: Request) -> float:
    """In [0, 1): 48 bits, so that its product with a sum of float64 stays below that sum."""
    seed = request.params.seed
    if seed is None:
        return random.getrandbits(8 * _UNIFORM_BYTES) * 0.5 ** (8 * _UNIFORM_BYTES)
    text = f"{seed}/{len(request.output_token_ids)}"
    digest = blake2b(text.encode(), digest_size=_UNIFORM_BYTES).digest()
    return int.from_bytes(digest, "big") * 0.5 ** (8 * _UNIFORM_BYTES)


def _draw(logits: Tensor, requests: Sequence[Request], scratch: _Scratch) -> Tensor:
    """Tokens [n], drawn from logits [n, vocab]; -1 where those are not finite."""
    params = [request.params for request in requests]
    vocab_size = logits.shape[-1]
    # All numbers of the step in one transfer.
    staged = torch.tensor(
        [
            [_uniform(request) for request in requests],
            [one.temperature for one in params],
            [one.top_p for one in params],
            [one.min_p for one in params],
        ],
        dtype=torch.float64,
    ).to(logits.device)
    uniform, temperature, top_p, min_p = staged
    weights = _weights(logits, temperature.float(), scratch)
    floored = [row for row, one in enumerate(params) if one.min_p > 0.0]
    if len(floored) == len(params):
        _drop_below(weights, min_p, scratch)
    elif floored:
        at = torch.tensor(floored, device=logits.device)
        weights.index_copy_(0, at, _drop_below(weights[at], min_p[at], scratch))
    limits = [one.top_k if one.top_k < vocab_size else 0 for one in params]
    narrowed = [row for row, one in enumerate(params) if limits[row] or one.top_p < 1.0]
    if not narrowed:
        return _draw_from_all(weights, uniform)
    if len(narrowed) == len(params):
        return _draw_from_best(weights, limits, top_p, uniform)
    tokens = _draw_from_all(weights, uniform)
    at = torch.tensor(narrowed, device=logits.device)
    best = _draw_from_best(weights[at], [limits[row] for row in narrowed], top_p[at], uniform[at])
    return tokens.index_copy_(0, at, best)


def _weights(logits: Tensor, temperature: Tensor, scratch: _Scratch) -> Tensor:
    """Unnormalised probabilities, 1 for the best token: float32 [n, vocab rounded up to a multiple of _BLOCK]."""
    num_rows, vocab_size = logits.shape
    weights = scratch.weights(num_rows, -(-vocab_size // _BLOCK) * _BLOCK, logits.device)
    weights[:, vocab_size:] = float("-inf")
    torch.sub(logits.float(), logits.amax(dim=-1, keepdim=True).float(), out=weights[:, :vocab_size])
    return weights.div_(temperature.unsqueeze(-1)).exp_()


def _drop_below(weights: Tensor, min_p: Tensor, scratch: _Scratch) -> Tensor:
    """Zeroes, in place, what weighs less than min_p [n] of the best token, which weighs 1."""
    # A mask of floats and a product: several times as fast on a CPU as masked_fill_ or where.
    return weights.mul_(torch.ge(weights, min_p.float().unsqueeze(-1), out=scratch.mask_like(weights)))


def _block_masses(weights: Tensor) -> Tensor:
    """float64 [n, blocks]; summed in float32 within a block, which loses nothing that matters and is far faster."""
    return weights.view(weights.shape[0], -1, _BLOCK).sum(dim=-1).double()


def _draw_from_all(weights: Tensor, uniform: Tensor) -> Tensor:
    """Inverts the cumulative distribution, first by blocks, then within one: tokens [n], -1 for weights that are NaN."""
    blocks = weights.view(weights.shape[0], -1, _BLOCK)
    masses = _block_masses(weights)
    cumulative = masses.cumsum(dim=-1)
    total = cumulative[:, -1:]
    target = uniform.unsqueeze(-1) * total
    block = torch.searchsorted(cumulative, target, right=True).clamp_max_(cumulative.shape[-1] - 1)
    mass = masses.gather(1, block)
    within = blocks.gather(1, block.unsqueeze(-1).expand(-1, -1, _BLOCK)).squeeze(1).cumsum(dim=-1, dtype=torch.float64)
    # As a share of the block, because the two sums of its weights may differ in the last bit.
    share = ((target - (cumulative.gather(1, block) - mass)) / mass).clamp_(0.0, _MAX_FRACTION)
    token = block * _BLOCK + torch.searchsorted(within, share * within[:, -1:], right=True).clamp_max_(_BLOCK - 1)
    return torch.where(total > 0.0, token, -1).squeeze(-1)


def _draw_from_best(weights: Tensor, limits: list[int], top_p: Tensor, uniform: Tensor) -> Tensor:
    """Tokens [n] for rows with top_k (`limits`, 0: none) or top_p, from as few of the best tokens as settle it."""
    tokens = torch.empty(len(limits), dtype=torch.int64, device=weights.device)
    pending = list(range(len(limits)))
    for width in (*(size for size in _CANDIDATES if size < weights.shape[-1]), weights.shape[-1]):
        rows = [row for row in pending if limits[row] <= width]
        if not rows:
            continue
        if len(rows) == len(limits):
            drawn, settled = _draw_from_candidates(weights, limits, top_p, uniform, width)
            tokens = drawn
        else:
            at = torch.tensor(rows, device=weights.device)
            own_limits = [limits[row] for row in rows]
            drawn, settled = _draw_from_candidates(weights[at], own_limits, top_p[at], uniform[at], width)
            tokens.index_copy_(0, at, drawn)
        unsettled = {row for row, done in zip(rows, settled, strict=True) if not done}
        pending = [row for row in pending if row in unsettled or limits[row] > width]
        if not pending:
            break
    return tokens


def _draw_from_candidates(
    weights: Tensor, limits: list[int], top_p: Tensor, uniform: Tensor, width: int
) -> tuple[Tensor, list[bool]]:
    """Tokens drawn from the `width` best, and for which rows those were enough."""
    all_limited = all(limits)
    values, ids = _best(weights, max(limits) if all_limited else width)
    limit = torch.tensor(limits, device=weights.device)
    beyond = torch.arange(values.shape[-1], device=weights.device) >= limit.unsqueeze(-1)
    values = values.masked_fill_(beyond & (limit > 0).unsqueeze(-1), 0.0)
    cumulative = values.cumsum(dim=-1, dtype=torch.float64)
    mass = cumulative[:, -1]
    # What top_k leaves is everything for top_p.
    total = mass if all_limited else torch.where(limit > 0, mass, _block_masses(weights).sum(dim=-1))
    nucleus = (top_p * total).unsqueeze(-1)
    kept = cumulative - values < nucleus
    kept[:, 0] = True
    cumulative = values.masked_fill_(~kept, 0.0).cumsum(dim=-1, dtype=torch.float64)
    kept_mass = cumulative[:, -1:]
    place = torch.searchsorted(cumulative, uniform.unsqueeze(-1) * kept_mass, right=True)
    token = ids.gather(1, place.clamp_max_(ids.shape[-1] - 1))
    tokens = torch.where(kept_mass > 0.0, token, -1).squeeze(-1)
    if all_limited or width == weights.shape[-1]:
        return tokens, [True] * len(limits)
    settled: list[bool] = ((limit > 0) | ~(mass < nucleus.squeeze(-1))).tolist()
    return tokens, settled


def _best(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row of values [n, size], largest first, and where they are."""
    num_rows, size = values.shape
    if count == size:
        return values.sort(dim=-1, descending=True)
    num_groups = size // _GROUP
    if size % _GROUP or count * 4 > num_groups:
        return values.topk(count, dim=-1)
    # Group g is g, g + num_groups, g + 2 num_groups..: the best are in the groups with the largest maxima.
    maxima = values.view(num_rows, _GROUP, num_groups).amax(dim=1)
    groups = maxima.topk(count, dim=-1, sorted=False).indices
    members = torch.arange(0, size, num_groups, device=values.device).view(1, _GROUP, 1)
    ids = (groups.unsqueeze(1) + members).view(num_rows, -1)
    best, at = values.gather(1, ids).topk(count, dim=-1)
    return best, ids.gather(1, at)


def _logprobs(logits: Tensor, tokens: Tensor, requests: Sequence[Request]) -> list[TokenLogprobs | None] | None:
    """Logs of softmax(logits) at the chosen tokens [n] and at each row's best ones, for the rows that ask."""
    wanted = [(row, one.params.logprobs) for row, one in enumerate(requests) if one.params.logprobs is not None]
    if not wanted:
        return None
    at = torch.tensor([row for row, _ in wanted], device=logits.device)
    raw = logits if len(wanted) == len(requests) else logits[at]
    if raw.dtype is not torch.float64:
        raw = raw.float()
    normaliser = raw.logsumexp(dim=-1, keepdim=True)
    best, ids = _best(raw, min(max(count for _, count in wanted), raw.shape[-1]))
    values = (torch.cat((raw.gather(1, tokens[at].unsqueeze(-1)), best), dim=-1) - normaliser).tolist()
    logprobs: list[TokenLogprobs | None] = [None] * len(requests)
    for (row, count), (chosen, *top), top_ids in zip(wanted, values, ids.tolist(), strict=True):
        logprobs[row] = TokenLogprobs(chosen, top_ids[:count], top[:count])
    return logprobs
