"""A stand-in for KV memory: every slot remembers of which prefix it holds the KV, so that wrong reuse cannot hide."""

import struct
from typing import NamedTuple

from engine.request import ReceivedKv, Request
from engine.step import ScheduledStep


class Content(NamedTuple):
    salt: str
    scope: int
    prefix: int
    """Hash of the tokens up to and including this position."""


class ShadowKv:
    """Does the copies and writes of a step as a runner would, once it has seen that what is attended to is there."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.scope = 0
        self._slots: dict[int, Content] = {}
        self._parcels: list[list[Content]] = []

    def computed_elsewhere(self, request: Request, first_block: int) -> ReceivedKv:
        """KV of the whole prompt under the present scope, as a prefill instance sends it."""
        contents = [self._content(request, position) for position in range(len(request.prompt_token_ids))]
        parcels = [contents[start : start + self.block_size] for start in range(0, len(contents), self.block_size)]
        numbers = range(len(self._parcels) + first_block, len(self._parcels) + len(parcels))
        self._parcels += parcels
        return ReceivedKv(first_block, len(contents), [memoryview(struct.pack("<I", number)) for number in numbers])

    def forward(self, step: ScheduledStep, admitted: list[Request]) -> None:
        for block_id, number in step.imports:
            for offset, content in enumerate(self._parcels[struct.unpack("<I", number)[0]]):
                self._slots[block_id * self.block_size + offset] = content
        for copy in step.copies:
            for offset in range(copy.num_tokens):
                source = self._slots[copy.source * self.block_size + offset]
                self._slots[copy.target * self.block_size + offset] = source
        for request, start, num_tokens, _, _ in step.decodes + step.prefills:
            self._check_history(request, start, fresh=any(one is request for one in admitted))
            for position in range(start, start + num_tokens):
                self._slots[self._slot(request, position)] = self._content(request, position)

    def scribble(self, step: ScheduledStep) -> None:
        """What a forward pass that raised may have left behind."""
        for request, start, num_tokens, _, _ in step.decodes + step.prefills:
            if request.block_ids:
                for position in range(start, start + num_tokens):
                    self._slots[self._slot(request, position)] = Content("?", -1, -1)

    def _check_history(self, request: Request, start: int, fresh: bool) -> None:
        for position in range(start):
            held, wanted = self._slots[self._slot(request, position)], self._content(request, position)
            assert (held.salt, held.prefix) == (wanted.salt, wanted.prefix), (
                f"{request.request_id} reads {held} at position {position}, wants {wanted}"
            )
            # One that was running when the scope changed goes on with what it has; nobody else may start from that.
            assert not fresh or held.scope == self.scope, f"{request.request_id} hit KV of scope {held.scope}"

    def _slot(self, request: Request, position: int) -> int:
        return request.block_ids[position // self.block_size] * self.block_size + position % self.block_size

    def _content(self, request: Request, position: int) -> Content:
        return Content(request.cache_salt, self.scope, hash(tuple(request.tokens_between(0, position + 1))))
