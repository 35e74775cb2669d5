"""Penalties on tokens that were there before, and logit bias: what changes logits before a token is chosen.

Each penalised request has a row of two tables that hold the distinct tokens it has seen, in order of appearance:

    token_ids   | 17 | 4 | 960 | 5 |  -  |  -  |        prompt tokens (for repetition_penalty), then new output tokens
    counts      |  0 | 2 |   0 | 1 |  -  |  -  |        how often each is in the output; 0: in the prompt only

A step adds one token per row and touches what the request has seen, never the vocabulary and never the whole context.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.request import Request, RequestState

_FIRST_ROWS = 8
_FIRST_COLUMNS = 256


@dataclass(slots=True)
class _History:
    """One request's row: `columns` maps a token to its place; the first `num_counted` output tokens are in."""

    request: Request
    row: int
    columns: dict[int, int]
    num_counted: int = 0


class LogitAdjuster:
    """Belongs to one runner. Tables live where the logits do and grow with need; none exists until somebody asks."""

    def __init__(self) -> None:
        self._histories: dict[str, _History] = {}
        self._free_rows: list[int] = []
        self._token_ids = torch.empty((0, 0), dtype=torch.int64)
        self._counts = torch.empty((0, 0), dtype=torch.float32)
        self._adjusted = torch.empty(0, dtype=torch.float32)

    @property
    def num_rows(self) -> int:
        """Requests the tables have room for."""
        return self._counts.shape[0]

    def apply(self, logits: Tensor, requests: Sequence[Request]) -> Tensor:
        """logits [n, vocab], one row per request: themselves when nobody asks for a change, else a float32 copy,
        valid until the next call."""
        penalised = [row for row, request in enumerate(requests) if request.params.has_penalties]
        biased = [row for row, request in enumerate(requests) if request.params.logit_bias]
        if not penalised and not biased:
            return logits
        # Kept from step to step: fresh pages cost a CPU more than the copy.
        if self._adjusted.numel() < logits.numel():
            self._adjusted = torch.empty(logits.numel(), dtype=torch.float32, device=logits.device)
        adjusted = self._adjusted[: logits.numel()].view(logits.shape).copy_(logits)
        if penalised:
            self._penalise(adjusted, penalised, [requests[row] for row in penalised])
        if biased:
            _add_bias(adjusted, biased, requests)
        return adjusted

    def _penalise(self, logits: Tensor, rows: list[int], requests: list[Request]) -> None:
        """The positive logit of a seen token is divided by its repetition penalty, a negative one multiplied; then the
        output's counts are charged with the frequency penalty, and their being above 0 with the presence penalty."""
        histories = [self._history_of(request, logits.device) for request in requests]
        self._count_new_tokens(histories)
        params = [request.params for request in requests]
        staged = torch.tensor(
            [
                rows,
                [history.row for history in histories],
                [len(history.columns) for history in histories],
                [one.repetition_penalty for one in params],
                [one.presence_penalty for one in params],
                [one.frequency_penalty for one in params],
            ],
            dtype=torch.float64,
        ).to(logits.device)
        places, lengths = staged[:2].long(), staged[2]
        repetition, presence, frequency = staged[3:].float().unsqueeze(-1)
        width = max(len(history.columns) for history in histories)
        counts = self._counts[places[1], :width]
        at = places[0].unsqueeze(-1) * logits.shape[-1] + self._token_ids[places[1], :width]
        before = logits.view(-1)[at]
        after = torch.where(before > 0, before / repetition, before * repetition)
        after = after - frequency * counts - presence * (counts > 0)
        # Unused places name token 0 as well: adding 0 to it does no harm where writing a value would.
        unused = torch.arange(width, device=logits.device) >= lengths.unsqueeze(-1)
        change = (after - before).masked_fill_(unused, 0.0)
        logits.view(-1).scatter_add_(0, at.view(-1), change.view(-1))

    def _history_of(self, request: Request, device: torch.device) -> _History:
        history = self._histories.get(request.request_id)
        if history is not None and history.request is request:
            return history
        self._forget_finished(request.request_id)
        # Presence and frequency are about the output alone.
        seen = dict.fromkeys(request.prompt_token_ids) if request.params.repetition_penalty != 1.0 else {}
        if not self._free_rows:
            first = self._counts.shape[0]
            self._resize(max(_FIRST_ROWS, 2 * first), self._counts.shape[1], device)
            self._free_rows = list(range(first, self._counts.shape[0]))
        row = self._free_rows.pop()
        history = _History(request, row, {token_id: column for column, token_id in enumerate(seen)})
        self._histories[request.request_id] = history
        self._reserve_columns(len(seen), device)
        self._counts[row] = 0.0
        self._token_ids[row] = 0
        self._token_ids[row, : len(seen)] = torch.tensor(list(seen), dtype=torch.int64, device=device)
        return history

    def _forget_finished(self, request_id: str) -> None:
        """Rows of requests that have ended, and of an earlier one with this id, can be used again."""
        for name, history in list(self._histories.items()):
            if name == request_id or history.request.state is RequestState.FINISHED:
                self._free_rows.append(self._histories.pop(name).row)

    def _count_new_tokens(self, histories: list[_History]) -> None:
        rows, columns, token_ids = [], [], []
        for history in histories:
            for token_id in history.request.output_token_ids[history.num_counted :]:
                rows.append(history.row)
                columns.append(history.columns.setdefault(token_id, len(history.columns)))
                token_ids.append(token_id)
            history.num_counted = len(history.request.output_token_ids)
        if not rows:
            return
        device = self._counts.device
        self._reserve_columns(max(columns) + 1, device)
        row, column, token_id_at = torch.tensor([rows, columns, token_ids], dtype=torch.int64).to(device)
        self._token_ids[row, column] = token_id_at
        self._counts.index_put_((row, column), torch.ones_like(row, dtype=torch.float32), accumulate=True)

    def _reserve_columns(self, num_columns: int, device: torch.device) -> None:
        if num_columns > self._counts.shape[1]:
            self._resize(self._counts.shape[0], max(_FIRST_COLUMNS, 2 * num_columns), device)

    def _resize(self, num_rows: int, num_columns: int, device: torch.device) -> None:
        old_ids, old_counts = self._token_ids, self._counts
        self._token_ids = torch.zeros((num_rows, num_columns), dtype=torch.int64, device=device)
        self._counts = torch.zeros((num_rows, num_columns), dtype=torch.float32, device=device)
        kept = (slice(old_counts.shape[0]), slice(old_counts.shape[1]))
        self._token_ids[kept] = old_ids.to(device)
        self._counts[kept] = old_counts.to(device)


def _add_bias(logits: Tensor, rows: list[int], requests: Sequence[Request]) -> None:
    vocab_size = logits.shape[-1]
    at, values = [], []
    for row in rows:
        for token_id, bias in requests[row].params.logit_bias:
            at.append(row * vocab_size + token_id)
            values.append(bias)
    places = torch.tensor(at, device=logits.device)
    logits.view(-1).index_add_(0, places, torch.tensor(values, dtype=torch.float32, device=logits.device))
