"""Requests whose prompt another instance computes, until their KV is here.

            begin                 end                        admitted
    waiting ------> transferring ------> waiting, KV at hand --------> decodes
                         |                    ^
                         |------ end, failed -|  and computes its prompt itself

Such a request holds no block and no place in the queue: whatever becomes of the transfer, nothing has to be given back.
It comes back as if it had arrived with its KV. No step can contain it before that.
"""

from collections.abc import Iterator
from typing import NamedTuple

from engine import forks
from engine.prefix_binding import PrefixBinding
from engine.request import ReceivedKv, Request, RequestState
from engine.runner.base import TokenLogprobs
from engine.waiting import WaitingQueue
from probes.recorder import TransferTrace
from probes.records import DeferralReason


class TransferEvent(NamedTuple):
    """What became known of a transfer. Its last event has `ended`."""

    request_id: str
    asked_ns: int
    """When the prefill instance was asked."""
    first_token: int | None = None
    """The token that follows the prompt."""
    first_logprobs: TokenLogprobs | None = None
    ended: TransferTrace | None = None
    received: ReceivedKv | None = None
    """With `ended`: None when the transfer failed."""


class Transfers:
    """Not thread-safe: part of the scheduler. `numbers` gives the order of arrival."""

    def __init__(self, waiting: WaitingQueue, prefixes: PrefixBinding, numbers: Iterator[int]) -> None:
        self._waiting = waiting
        self._prefixes = prefixes
        self._numbers = numbers
        self._requests: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def begin(self, request: Request, min_tokens: int, use_cache: bool) -> int | None:
        """A request that waits lets another instance compute its prompt, from the block on whose number is returned.

        None, and nothing has changed, when fewer than `min_tokens` of the prompt are not cached here.
        """
        first_block = self._prefixes.num_cached_blocks(request, use_cache)
        if len(request.prompt_token_ids) - first_block * self._prefixes.block_size < min_tokens:
            return None
        self._waiting.remove(request)
        request.state = RequestState.TRANSFERRING
        request.deferral = DeferralReason.KV_TRANSFER
        self._requests[request.request_id] = request
        return first_block

    def first_token(self, request_id: str, token_id: int, now_ns: int) -> Request | None:
        """The prefill side's token becomes the request's own; None when it has ended, or shares its prompt with others.

        Choices of one prompt draw their first tokens from the same logits, which only the decode side can do for all.
        """
        request = self._requests.get(request_id)
        if request is None or request.siblings or request.output_token_ids:
            return None
        request.output_token_ids.append(token_id)
        request.first_token_ns = request.last_token_ns = now_ns
        return request

    def end(self, request_id: str, received: ReceivedKv | None) -> Request | None:
        """Its KV is here, or (None) will never be: it queues as what arrived last. None when it has ended meanwhile."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            request.received = received
            self._queue(request)
        return request

    def leave(self, request: Request) -> None:
        """It ends. Who asked for more answers to its prompt goes on without it, and computes the prompt here."""
        del self._requests[request.request_id]
        if request.siblings:
            self._queue(forks.promote_heir(request))

    def _queue(self, request: Request) -> None:
        for one in (request, *request.siblings):
            one.sequence_number = next(self._numbers)
        request.state = RequestState.WAITING
        request.deferral = None
        self._waiting.append(request)
