"""What of a prompt's KV goes to a decode instance after each chunk: whole blocks, as soon as they are full.

chunk ends at 508, blocks of 16     |==31 blocks shipped==|....|     12 tokens held in a block that is not full
chunk ends at 1016                  |.....................|==32 blocks: the held tokens go with them==|....|
the prompt ends                     what is left goes, its last block full or not
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from engine.config import check_bounds


class Shipment(NamedTuple):
    """Blocks first_block..end_block-1 of a prompt, which hold its KV up to position `num_tokens`."""

    first_block: int
    end_block: int
    num_tokens: int
    """KV positions that the receiver has once this has arrived, those that it had before included."""
    is_last: bool

    @property
    def num_blocks(self) -> int:
        return self.end_block - self.first_block


class Shipping:
    """Books what has been shipped of one prompt. `first_block`: the receiver has the blocks before it."""

    def __init__(self, num_prompt_tokens: int, block_size: int, first_block: int = 0) -> None:
        check_bounds("block_size", block_size)
        check_bounds("num_prompt_tokens", num_prompt_tokens)
        if not 0 <= first_block <= (num_prompt_tokens - 1) // block_size:
            raise ValueError(f"a receiver with {first_block} blocks needs none of {num_prompt_tokens} tokens")
        self.num_prompt_tokens = num_prompt_tokens
        self.block_size = block_size
        self._next_block = first_block
        self._is_done = False

    def computed(self, num_tokens: int) -> Shipment | None:
        """The prompt is computed up to `num_tokens`; None when no further block is full.

        A preempted prompt may be computed again: what was shipped is not shipped twice.
        """
        if self._is_done:
            return None
        is_last = num_tokens >= self.num_prompt_tokens
        end = -(-self.num_prompt_tokens // self.block_size) if is_last else num_tokens // self.block_size
        if end <= self._next_block:
            return None
        self._is_done = is_last
        first, self._next_block = self._next_block, end
        return Shipment(first, end, self.num_prompt_tokens if is_last else end * self.block_size, is_last)


@dataclass(slots=True, eq=False)
class Outbound:
    """A prompt that is computed here for another instance: the engine thread hands each shipment's bytes to `send`."""

    shipping: Shipping
    send: Callable[[Shipment, memoryview], None]
    """With the shipment's blocks, one after the other. Must return at once: the engine waits."""
    fail: Callable[[str], None]
    """The blocks could not be read; says why."""
