"""KV blocks in three disjoint buckets, and who holds them. Knows ids and counts only: no tensors, no tokens, no hashes.

    allocate                      release, cached           allocate, nothing free
free ---------> active (refs > 0) -------------> reclaimable ---------> (evicted) active
  ^                |       ^                          |
  |---- release ---|       |---------- touch ---------|

Every move is O(1) per block whatever the size of the pool. Eviction is metadata only: the memory stays where it is, and
its bytes stay what they are until the new owner writes them.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from time import perf_counter_ns
from typing import Protocol

from engine.config import check_bounds
from engine.errors import InvariantViolation, OutOfBlocks
from probes.records import BlockCensus

_CACHED, _REFERENCE = 1, 2
"""What a block's place in `BlockPool._held` adds up from."""


class PoolObserver(Protocol):
    """Is told of moves in and out of the reclaimable bucket, several blocks at a time and never none."""

    def reclaimable(self, block_ids: Sequence[int]) -> None:
        """They became reclaimable, the first of them being the next to be evicted."""
        ...

    def revived(self, block_ids: Sequence[int], released_ns: Sequence[int], now_ns: int, in_use: int) -> None:
        """They are active again; `in_use` blocks were active before."""
        ...

    def evicted(self, block_ids: Sequence[int], now_ns: int) -> None: ...

    def dropped(self) -> None:
        """The reclaimable content was given up on purpose, which is no eviction."""
        ...


class BlockPool:
    """Block ids 0..num_blocks-1. Not thread-safe: its owner holds the lock.

    `on_evict` is called with the ids of blocks whose content is given up, the least recently used first, before they get
    a new owner.
    Counters only ever grow; readers take differences.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        on_evict: Callable[[Sequence[int]], None] | None = None,
        clock_ns: Callable[[], int] = perf_counter_ns,
        observer: PoolObserver | None = None,
    ) -> None:
        check_bounds("num_blocks", num_blocks)
        check_bounds("block_size", block_size)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.allocations = 0
        """Blocks handed out."""
        self.evictions = 0
        """Reclaimable blocks that were taken for something else; a reset is not an eviction."""
        self._on_evict = on_evict
        self._observer = observer
        self._clock_ns = clock_ns
        # Twice the references of a block, and one more if it is cached: one place, as each is a cache miss in a large pool.
        self._held = [0] * num_blocks
        # A stack, lowest id on top.
        self._free = list(range(num_blocks - 1, -1, -1))
        # Reclaimable blocks are those that are cached and have no reference. They are linked by id, in a ring through one
        # more place, the end: `_newer[end]` is the next to be evicted. Lists, since ids are dense: a dict of a large pool
        # costs cache misses per block, and several of them when it keeps an order.
        self._end = num_blocks
        self._older = [0] * num_blocks + [self._end]
        self._newer = [0] * num_blocks + [self._end]
        self._released_ns = [0] * num_blocks
        self._num_reclaimable = 0

    @property
    def num_available(self) -> int:
        """Free plus reclaimable blocks: what `allocate` can hand out."""
        return len(self._free) + self._num_reclaimable

    @property
    def num_cached(self) -> int:
        """Blocks with content known to the prefix index, active or reclaimable. O(num_blocks)."""
        return sum(held & _CACHED for held in self._held)

    def census(self) -> BlockCensus:
        reclaimable, free = self._num_reclaimable, len(self._free)
        return BlockCensus(active=self.num_blocks - reclaimable - free, reclaimable=reclaimable, free=free)

    def ref_count(self, block_id: int) -> int:
        return self._held[block_id] // _REFERENCE

    def is_cached(self, block_id: int) -> bool:
        return bool(self._held[block_id] & _CACHED)

    def can_allocate(self, num_blocks: int) -> bool:
        return num_blocks <= self.num_available

    def allocate(self, num_blocks: int) -> list[int]:
        """Hands out blocks with one reference each: free ones first, then the least recently used reclaimable ones.

        Raises ValueError for a negative count and OutOfBlocks, with nothing taken, when there are too few.
        """
        if num_blocks < 0:
            raise ValueError(f"cannot allocate {num_blocks} blocks")
        free = self._free
        num_evicted = num_blocks - len(free)
        if num_evicted > self._num_reclaimable:
            raise OutOfBlocks(
                f"{num_blocks} blocks asked for, {len(free)} free + {self._num_reclaimable} reclaimable"
                f" of {self.num_blocks}"
            )
        split = max(0, len(free) - num_blocks)
        blocks = free[split:]
        del free[split:]
        blocks.reverse()
        held = self._held
        for block_id in blocks:
            held[block_id] = _REFERENCE
        if num_evicted > 0:
            blocks += self._evict(num_evicted)
        self.allocations += num_blocks
        return blocks

    def touch(self, block_ids: Iterable[int]) -> None:
        """Adds a reference to blocks with valid content; reclaimable ones are active again, with nothing copied."""
        held, older, newer = self._held, self._older, self._newer
        revived: list[int] = []
        try:
            for block_id in block_ids:
                state = held[block_id]
                if state < _REFERENCE:
                    if state != _CACHED:
                        raise ValueError(f"block {block_id} is free: it has no content to share")
                    before, after = older[block_id], newer[block_id]
                    newer[before] = after
                    older[after] = before
                    revived.append(block_id)
                held[block_id] = state + _REFERENCE
        finally:
            self._num_reclaimable -= len(revived)
        if revived and self._observer is not None:
            released_ns = self._released_ns
            released = [released_ns[block_id] for block_id in revived]
            self._observer.revived(revived, released, self._clock_ns(), self.census().active - len(revived))

    def release(self, block_ids: Sequence[int]) -> None:
        """Gives back one reference of each block of a chain, first block first.

        What nobody holds any more becomes reclaimable if cached and free otherwise. The tail of the chain is lined up
        for eviction before its head: a head without its tail still serves shorter prefixes, a tail without its head
        serves nothing.
        """
        held, free = self._held, self._free
        reclaimable: list[int] = []
        try:
            for block_id in reversed(block_ids):
                state = held[block_id] - _REFERENCE
                if state < 0:
                    raise ValueError(f"block {block_id} was released more often than it was taken")
                held[block_id] = state
                if state < _REFERENCE:
                    (reclaimable if state else free).append(block_id)
        finally:
            self._line_up(reclaimable)
        if reclaimable and self._observer is not None:
            self._observer.reclaimable(reclaimable)

    def _line_up(self, block_ids: list[int]) -> None:
        """They come behind all that is reclaimable already, in this order."""
        older, newer, released_ns, end = self._older, self._newer, self._released_ns, self._end
        now = self._clock_ns()
        newest = older[end]
        for block_id in block_ids:
            newer[newest], older[block_id] = block_id, newest
            released_ns[block_id] = now
            newest = block_id
        newer[newest], older[end] = end, newest
        self._num_reclaimable += len(block_ids)

    def mark_cached(self, block_ids: Iterable[int]) -> None:
        """Notes that the prefix index knows these active blocks, so that their content outlives their holders."""
        held, alone, alone_and_cached = self._held, _REFERENCE, _REFERENCE | _CACHED
        for block_id in block_ids:
            state = held[block_id]
            if state == alone:  # as a rule: `|` takes as long as all the rest
                held[block_id] = alone_and_cached
            elif state < _REFERENCE:
                raise ValueError(f"block {block_id} is not active: nothing in it can be newly cached")
            else:
                held[block_id] = state | _CACHED

    def drop_reclaimable(self) -> int:
        """Gives up the content of every reclaimable block; returns how many became free. Not counted as evictions."""
        dropped = self._forget(self._num_reclaimable, held_then=0)
        self._free += dropped
        if self._observer is not None:
            self._observer.dropped()
        return len(dropped)

    def _evict(self, num_blocks: int) -> list[int]:
        evicted = self._forget(num_blocks, held_then=_REFERENCE)
        self.evictions += num_blocks
        if self._observer is not None:
            self._observer.evicted(evicted, self._clock_ns())
        return evicted

    def _forget(self, num_blocks: int, *, held_then: int) -> list[int]:
        """Takes the next ones to be evicted out of the bucket, their content given up; `held_then`: see `_held`."""
        newer, held, end = self._newer, self._held, self._end
        blocks: list[int] = []
        block_id = newer[end]
        for _ in range(num_blocks):
            blocks.append(block_id)
            held[block_id] = held_then
            block_id = newer[block_id]
        newer[end], self._older[block_id] = block_id, end
        self._num_reclaimable -= num_blocks
        if self._on_evict is not None and blocks:
            self._on_evict(blocks)
        return blocks

    def _line(self) -> list[int]:
        """The reclaimable blocks, the next to be evicted first."""
        line: list[int] = []
        block_id = self._newer[self._end]
        while block_id != self._end and len(line) <= self.num_blocks:
            line.append(block_id)
            block_id = self._newer[block_id]
        return line

    def check_invariants(self) -> None:
        """Counts everything again, O(num_blocks). Raises InvariantViolation with the numbers."""
        line = self._line()
        free, reclaimable = set(self._free), set(line)
        active = sum(held >= _REFERENCE for held in self._held)
        if len(free) != len(self._free):
            raise InvariantViolation(f"{len(self._free) - len(free)} blocks are on the free list twice")
        if not len(line) == len(reclaimable) == self._num_reclaimable:
            raise InvariantViolation(f"{len(line)} blocks in line for eviction, {self._num_reclaimable} were counted")
        if any(self._older[after] != before for before, after in pairwise([self._end, *line, self._end])):
            raise InvariantViolation("the line for eviction reads differently backwards")
        if active + len(reclaimable) + len(free) != self.num_blocks:
            raise InvariantViolation(
                f"active {active} + reclaimable {len(reclaimable)} + free {len(free)} != total {self.num_blocks}"
            )
        if overlap := free & reclaimable:
            raise InvariantViolation(f"blocks {sorted(overlap)} are both free and reclaimable")
        for block_id, held in enumerate(self._held):
            count, cached = divmod(held, _REFERENCE)
            if count < 0 or (count > 0 and (block_id in free or block_id in reclaimable)):
                raise InvariantViolation(f"block {block_id} has {count} references but is not active")
            if block_id in reclaimable and not cached:
                raise InvariantViolation(f"block {block_id} is reclaimable without cached content")
            if block_id in free and cached:
                raise InvariantViolation(f"block {block_id} is free but still marked as cached")
