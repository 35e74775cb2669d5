"""What becomes of cached blocks: how long they stay, how soon they are used again, and what is missed once it is gone."""

from collections.abc import Callable, Sequence
from itertools import groupby
from time import perf_counter_ns

from engine.ghost_list import GhostList
from engine.working_set import WorkingSet
from probes.catalog import BLOCK_AGE_BOUNDS_NS
from probes.locks import Histogram
from probes.snapshot import ReuseSnapshot

GHOSTS_PER_BLOCK = 2
"""Of a generation, of which there are two."""
FOLLOWED_BLOCKS = 1 << 12
"""A pool of up to so many blocks is followed whole; of a larger one such a share is that no more than these are. So ghosts
take up to 2 MB, and reach equally far back, in pools, whatever the size of the pool."""


class BlockReuse:
    """Implements `engine.block_pool.PoolObserver`, and hears from the prefix binding what blocks contain.

    Figures only grow, but for the working set. O(1) per block and event; one memory move inside, see WorkingSet.

    Ghosts of pools above FOLLOWED_BLOCKS are a sample: one content in `weight` is followed, chosen by its identity (spatial
    sampling, as in SHARDS), and each of its ghost hits counts as `weight` of them. The standard error of G ghost hits of
    different contents is sqrt((weight - 1) / G) of them.
    """

    def __init__(self, num_blocks: int, clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        self.residency = Histogram(BLOCK_AGE_BOUNDS_NS)
        """From when a block's content was first cached to its eviction, ns."""
        self.reuse = Histogram(BLOCK_AGE_BOUNDS_NS)
        """From when a cached block was given back by its last holder to when it was hit again, ns."""
        self.ghost_age = Histogram(BLOCK_AGE_BOUNDS_NS)
        """From the eviction of content to when it was asked for again, ns; its count is that of the ghost hits."""
        self.working_set = WorkingSet(num_blocks, clock_ns)
        self.weight = 1
        while num_blocks > self.weight * FOLLOWED_BLOCKS:
            self.weight *= 2
        self._followed_below = 2**64 // self.weight - 2**63
        self._ghosts = GhostList(GHOSTS_PER_BLOCK * num_blocks // self.weight)
        self._clock_ns = clock_ns
        self._identity_of = [0] * num_blocks
        self._cached_ns = [0] * num_blocks

    def snapshot(self) -> ReuseSnapshot:
        return ReuseSnapshot(
            residency=self.residency.copy(),
            reuse=self.reuse.copy(),
            ghost_age=self.ghost_age.copy(),
            num_ghosts=len(self._ghosts) * self.weight,
            working_set_blocks=self.working_set.blocks(),
            working_set_window_seconds=self.working_set.window_seconds,
        )

    # From the prefix binding.

    def cached(self, block_ids: Sequence[int], identities: Sequence[int]) -> None:
        """The prefix index finds this content in these blocks from now on."""
        now_ns = self._clock_ns()
        identity_of, cached_ns = self._identity_of, self._cached_ns
        for block_id, identity in zip(block_ids, identities, strict=True):
            identity_of[block_id] = identity
            cached_ns[block_id] = now_ns
        # It may have come back without having been asked for, as the output of another request. The working set's sample,
        # 2,048 blocks of a pool, is a part of those that are followed.
        followed = self._followed(identities)
        if followed:
            self._ghosts.take(followed)
            self.working_set.forget(followed)

    def missed(self, identities: Sequence[int], in_use: int) -> int:
        """A request that starts did not find these; returns how many were here and were evicted: the ghost hits."""
        # The working set remembers further back than the ghost list.
        self.working_set.asked(identities, in_use)
        evicted_ns = self._ghosts.take(self._followed(identities))
        if evicted_ns:
            _observe_ages(self.ghost_age, evicted_ns, self._clock_ns(), self.weight)
        return len(evicted_ns) * self.weight

    # From the pool.

    def reclaimable(self, block_ids: Sequence[int]) -> None:
        identity_of = self._identity_of
        self.working_set.used([identity_of[block_id] for block_id in block_ids])

    def revived(self, block_ids: Sequence[int], released_ns: Sequence[int], now_ns: int, in_use: int) -> None:
        _observe_ages(self.reuse, released_ns, now_ns)
        identity_of = self._identity_of
        self.working_set.asked([identity_of[block_id] for block_id in block_ids], in_use)

    def evicted(self, block_ids: Sequence[int], now_ns: int) -> None:
        identity_of, cached_ns = self._identity_of, self._cached_ns
        if self.weight > 1:
            below = self._followed_below
            block_ids = [block_id for block_id in block_ids if identity_of[block_id] < below]
        if block_ids:
            _observe_ages(self.residency, [cached_ns[block_id] for block_id in block_ids], now_ns, self.weight)
            self._ghosts.add(identity_of, block_ids, now_ns)

    def dropped(self) -> None:
        self._ghosts.clear()
        self.working_set.clear()

    def _followed(self, identities: Sequence[int]) -> Sequence[int]:
        if self.weight == 1:
            return identities
        below = self._followed_below
        return [identity for identity in identities if identity < below]


def _observe_ages(histogram: Histogram, since_ns: Sequence[int], now_ns: int, weight: int = 1) -> None:
    """Blocks of one chain mostly share their stamps, and equal neighbours cost one observation."""
    if since_ns.count(since_ns[0]) == len(since_ns):
        histogram.observe(now_ns - since_ns[0], len(since_ns) * weight)
        return
    for since, run in groupby(since_ns):
        histogram.observe(now_ns - since, len(list(run)) * weight)
