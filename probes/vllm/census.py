"""The block census of a vLLM pool, kept as its blocks come and go: O(1) to read, O(blocks moved) to keep.

vLLM's free queue holds every block with ref_cnt 0, those with cached content among them. What it does not know is how many
those are: `PoolCensus` counts blocks with a hash as they enter and leave the queue.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from probes.records import BlockCensus


class Block(Protocol):
    """Of vLLM's KVCacheBlock."""

    @property
    def block_hash(self) -> bytes | None: ...
    @property
    def ref_cnt(self) -> int: ...
    @property
    def is_null(self) -> bool: ...


class FreeQueue(Protocol):
    @property
    def num_free_blocks(self) -> int: ...


class Pool(Protocol):
    """Of vLLM's BlockPool. One block, the null block, is never handed out and never counted."""

    @property
    def num_gpu_blocks(self) -> int: ...
    @property
    def blocks(self) -> Sequence[Any]: ...
    @property
    def free_block_queue(self) -> FreeQueue: ...


Identity = Callable[[bytes], bytes]
"""A block's hash key to the hash that requests ask by."""


class PoolCensus:
    """Counts of one pool. Its `on_*` methods are called as the pool's free queue changes, on the engine's thread.

    The ghost list holds the newest `num_gpu_blocks` evictions: what was evicted earlier counts as new content when it is
    asked for again, so that ghost hits are a lower bound.
    """

    def __init__(self, pool: Pool, identity: Identity | None) -> None:
        """`identity` None: requests do not ask by the pool's block hashes, so that ghost hits cannot be told."""
        self.total = pool.num_gpu_blocks - 1
        self.evictions = 0
        self._queue = pool.free_block_queue
        self._pool = pool
        self._identity = identity
        self._ghosts: dict[bytes, None] = {}
        self._reclaimable = self.scan().reclaimable
        self.published = self.census()
        """As it was last published: what other threads read, since the counts move one after the other."""

    def census(self) -> BlockCensus:
        available = self._queue.num_free_blocks
        return BlockCensus(self.total - available, self._reclaimable, available - self._reclaimable)

    def publish(self) -> BlockCensus:
        self.published = self.census()
        return self.published

    def scan(self) -> BlockCensus:
        """The same from the blocks themselves, O(blocks): at the start, and to check the counts."""
        blocks = [block for block in self._pool.blocks if not block.is_null]
        active = sum(block.ref_cnt > 0 for block in blocks)
        reclaimable = sum(block.ref_cnt == 0 and block.block_hash is not None for block in blocks)
        return BlockCensus(active, reclaimable, len(blocks) - active - reclaimable)

    def ghost_hits(self, hashes: Iterable[bytes]) -> int | None:
        """Those of `hashes` that were evicted not long ago; they are ghosts no longer. None when it cannot be told."""
        if self._identity is None:
            return None
        if not self._ghosts:
            return 0
        found = [name for name in hashes if name in self._ghosts]
        for name in found:
            self._ghosts.pop(name, None)
        return len(found)

    # Into the queue: the last holder let go.

    def on_append(self, _: None, block: Block) -> None:
        self._reclaimable += block.block_hash is not None

    def on_append_n(self, _: None, blocks: Sequence[Block]) -> None:
        self._reclaimable += sum(block.block_hash is not None for block in blocks)

    # Out of the queue: a hit takes a block with its content, an allocation takes it without.

    def on_remove(self, _: None, block: Block) -> None:
        self._reclaimable -= block.block_hash is not None

    def on_popleft(self, block: Block) -> None:
        self._take([block])

    def on_popleft_n(self, blocks: Sequence[Block], _: int) -> None:
        self._take(blocks)

    def _take(self, blocks: Sequence[Block]) -> None:
        evicted = [key for block in blocks if (key := block.block_hash) is not None]
        if evicted:
            self._reclaimable -= len(evicted)
            self._evict(evicted)

    def _evict(self, keys: Sequence[bytes]) -> None:
        self.evictions += len(keys)
        if self._identity is None:
            return
        ghosts = self._ghosts
        for key in keys:
            ghosts[self._identity(key)] = None
        for _ in range(len(ghosts) - self.total):
            del ghosts[next(iter(ghosts))]

    # Content given up without the block being taken.

    def before_evict_blocks(self, block_ids: Iterable[int]) -> None:
        waiting = [block for index in block_ids if (block := self._pool.blocks[index]).ref_cnt == 0]
        keys = [block.block_hash for block in waiting if block.block_hash is not None and not block.is_null]
        self._reclaimable -= len(keys)
        self._evict(keys)

    def after_reset_prefix_cache(self, was_reset: bool) -> None:
        """Not counted as evictions: an operator asked for it. The pool resets only when nothing is active."""
        if was_reset:
            self._reclaimable = 0
            self._ghosts.clear()
            self.publish()
