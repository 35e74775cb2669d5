from collections import OrderedDict
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.block_pool import BlockPool
from engine.errors import ConfigError, InvariantViolation, OutOfBlocks
from probes.records import BlockCensus
from tests.requirements import covers


def cached_chain(pool: BlockPool, length: int) -> list[int]:
    """A chain of blocks that some request computed, cached and gave back."""
    blocks = pool.allocate(length)
    pool.mark_cached(blocks)
    pool.release(blocks)
    return blocks


def test_a_new_pool_is_all_free_and_every_block_is_usable():
    pool = BlockPool(4, 16)
    assert pool.census() == BlockCensus(active=0, reclaimable=0, free=4)
    assert sorted(pool.allocate(4)) == [0, 1, 2, 3], "there is no null block"


@covers("S3.15")
@pytest.mark.parametrize("size", [0, -1])
def test_sizes_must_be_positive(size: int):
    with pytest.raises(ConfigError, match=f"block_size must be positive, got {size}"):
        BlockPool(4, size)
    with pytest.raises(ConfigError, match=f"num_blocks must be positive, got {size}"):
        BlockPool(size, 16)


@covers("S3.26", "S9.2")
def test_a_hit_makes_reclaimable_blocks_active_without_allocating():
    pool = BlockPool(200, 16)
    chain = cached_chain(pool, 156)
    assert pool.census() == BlockCensus(active=0, reclaimable=156, free=44)
    allocations = pool.allocations
    pool.touch(chain)
    assert pool.census() == BlockCensus(active=156, reclaimable=0, free=44)
    assert pool.allocations == allocations
    assert all(pool.ref_count(block) == 1 for block in chain)


@covers("S3.27")
def test_pressure_takes_free_blocks_first_and_then_the_tail_of_the_oldest_chain():
    evicted: list[int] = []
    pool = BlockPool(200, 16, on_evict=evicted.extend)
    chain = cached_chain(pool, 156)
    taken = pool.allocate(60)
    assert pool.census() == BlockCensus(active=60, reclaimable=140, free=0)
    assert evicted == chain[:-17:-1], "the last 16 blocks, the very last first"
    assert taken[44:] == evicted
    assert pool.evictions == 16


def test_recency_is_exact_across_chains():
    evicted: list[int] = []
    pool = BlockPool(6, 16, on_evict=evicted.extend)
    first, second = cached_chain(pool, 3), cached_chain(pool, 3)
    pool.touch(first[:2])
    pool.release(first[:2])
    pool.allocate(6)
    assert evicted == [first[2], *reversed(second), first[1], first[0]]


@covers("S3.25")
def test_active_blocks_are_never_handed_out_and_too_few_is_an_error_that_takes_nothing():
    pool = BlockPool(10, 16)
    active = pool.allocate(6)
    cached_chain(pool, 3)
    assert not pool.can_allocate(5)
    with pytest.raises(OutOfBlocks, match=r"5 blocks asked for, 1 free \+ 3 reclaimable of 10"):
        pool.allocate(5)
    assert pool.census() == BlockCensus(active=6, reclaimable=3, free=1)
    assert set(pool.allocate(4)).isdisjoint(active)


def test_a_block_stays_active_until_its_last_holder_lets_go():
    pool = BlockPool(2, 16)
    block = cached_chain(pool, 1)
    pool.touch(block)
    pool.touch(block)
    pool.release(block)
    assert pool.census().active == 1
    pool.release(block)
    assert pool.census().reclaimable == 1


def test_uncached_blocks_become_free():
    pool = BlockPool(3, 16)
    blocks = pool.allocate(3)
    pool.mark_cached(blocks[:1])
    pool.release(blocks)
    assert pool.census() == BlockCensus(active=0, reclaimable=1, free=2)


def test_dropping_reclaimable_blocks_is_not_an_eviction():
    forgotten: list[int] = []
    pool = BlockPool(8, 16, on_evict=forgotten.extend)
    cached_chain(pool, 5)
    assert pool.drop_reclaimable() == 5
    assert pool.census() == BlockCensus(active=0, reclaimable=0, free=8)
    assert len(forgotten) == 5
    assert pool.evictions == 0


def test_misuse_is_an_error():
    pool = BlockPool(2, 16)
    with pytest.raises(ValueError, match="block 1 is free"):
        pool.touch([1])
    with pytest.raises(ValueError, match="block 0 was released more often"):
        pool.release([0])
    with pytest.raises(ValueError, match="block 1 is not active"):
        pool.mark_cached([1])
    with pytest.raises(ValueError, match="cannot allocate -1 blocks"):
        pool.allocate(-1)


def test_broken_books_are_reported_with_the_numbers():
    pool = BlockPool(4, 16)
    pool.allocate(1)
    pool._free.append(0)
    with pytest.raises(InvariantViolation, match=r"active 1 \+ reclaimable 0 \+ free 4 != total 4"):
        pool.check_invariants()


def broken_pool() -> BlockPool:
    """Of 6 blocks: 0 and 1 are held, 2 and 3 reclaimable, 4 and 5 free."""
    pool = BlockPool(6, 16)
    pool.allocate(2)
    cached_chain(pool, 2)
    pool.check_invariants()
    return pool


def freed_twice(pool: BlockPool) -> None:
    pool._free.append(4)


def not_counted(pool: BlockPool) -> None:
    pool._num_reclaimable += 1


def torn(pool: BlockPool) -> None:
    pool._older[2] = 5


def free_and_reclaimable(pool: BlockPool) -> None:
    pool._free[pool._free.index(4)] = 2


def held_and_free(pool: BlockPool) -> None:
    pool._free[pool._free.index(4)] = 0
    pool._held[4] = pool._held[5] = 0


def held_below_nought(pool: BlockPool) -> None:
    pool._held[5] = -2


def without_content(pool: BlockPool) -> None:
    pool._held[3] = 0


def free_with_content(pool: BlockPool) -> None:
    pool._held[5] = 1


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (freed_twice, "1 blocks are on the free list twice"),
        (not_counted, "2 blocks in line for eviction, 3 were counted"),
        (torn, "the line for eviction reads differently backwards"),
        (free_and_reclaimable, r"blocks \[2\] are both free and reclaimable"),
        (held_and_free, "block 0 has 1 references but is not active"),
        (held_below_nought, "block 5 has -1 references but is not active"),
        (without_content, "block 3 is reclaimable without cached content"),
        (free_with_content, "block 5 is free but still marked as cached"),
    ],
)
def test_every_kind_of_damage_is_told(damage: Callable[[BlockPool], None], told: str):
    pool = broken_pool()
    damage(pool)
    with pytest.raises(InvariantViolation, match=told):
        pool.check_invariants()


@given(st.integers(1, 40), st.lists(st.integers(0, 8)))
def test_blocks_are_handed_out_once(num_blocks: int, requests: list[int]):
    pool = BlockPool(num_blocks, 16)
    out: list[int] = []
    for count in requests:
        if pool.can_allocate(count):
            out += pool.allocate(count)
    assert len(set(out)) == len(out)
    assert pool.census() == BlockCensus(active=len(out), reclaimable=0, free=num_blocks - len(out))


@covers("S3.24")
class PoolMachine(RuleBasedStateMachine):
    """Against a slow, obvious model: reference counts, and one list in the order of eviction."""

    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks: int) -> None:
        self.evicted: list[int] = []
        self.pool = BlockPool(num_blocks, 4, on_evict=self.evicted.extend)
        self.refs = [0] * num_blocks
        self.cached: set[int] = set()
        self.reclaimable: OrderedDict[int, None] = OrderedDict()
        self.chains: list[list[int]] = []

    @rule(count=st.integers(0, 6))
    def allocate(self, count: int) -> None:
        free = sum(self.refs[block] == 0 and block not in self.reclaimable for block in range(self.pool.num_blocks))
        if count > free + len(self.reclaimable):
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(count)
            return
        expected = list(self.reclaimable)[: max(0, count - free)]
        self.evicted.clear()
        blocks = self.pool.allocate(count)
        assert self.evicted == expected
        for block in expected:
            del self.reclaimable[block]
            self.cached.discard(block)
        for block in blocks:
            assert self.refs[block] == 0
            self.refs[block] = 1
        self.chains.append(blocks)

    @rule(data=st.data())
    def cache_part(self, data: st.DataObject) -> None:
        if self.chains:
            chain = data.draw(st.sampled_from(self.chains))
            part = chain[: data.draw(st.integers(0, len(chain)))]
            self.pool.mark_cached(part)
            self.cached.update(part)

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        usable = sorted(self.cached)
        if usable:
            chain = data.draw(st.lists(st.sampled_from(usable), unique=True))
            self.pool.touch(chain)
            for block in chain:
                self.refs[block] += 1
                self.reclaimable.pop(block, None)
            self.chains.append(chain)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.chains:
            chain = self.chains.pop(data.draw(st.integers(0, len(self.chains) - 1)))
            self.pool.release(chain)
            for block in reversed(chain):
                self.refs[block] -= 1
                if self.refs[block] == 0 and block in self.cached:
                    self.reclaimable[block] = None

    @rule()
    def drop(self) -> None:
        assert self.pool.drop_reclaimable() == len(self.reclaimable)
        self.cached -= self.reclaimable.keys()
        self.reclaimable.clear()

    @invariant()
    def books_add_up(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check_invariants()
            active = sum(count > 0 for count in self.refs)
            free = self.pool.num_blocks - active - len(self.reclaimable)
            assert self.pool.census() == BlockCensus(active, len(self.reclaimable), free)
            assert self.pool.census().total == self.pool.num_blocks
            assert self.pool.num_cached == len(self.cached)


TestPool = PoolMachine.TestCase
