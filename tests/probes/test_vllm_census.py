"""The census of a vLLM pool: always what a scan of its blocks says, whatever the pool does."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from probes.records import BlockCensus
from probes.vllm.census import PoolCensus
from probes.vllm.engine import hook_pool
from probes.vllm.hooks import Hooks
from tests.probes.vllm_fakes import FakeBlock, FakePool

NUM_BLOCKS = 12


def identity(key: bytes) -> bytes:
    return key


class PoolMachine(RuleBasedStateMachine):
    """Requests take, fill, share and give back blocks; an operator evicts and resets."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = FakePool(NUM_BLOCKS)
        self.census = PoolCensus(self.pool, identity)
        self.hooks = Hooks()
        hook_pool(self.hooks, self.pool, self.census)
        self.held: list[list[FakeBlock]] = []
        self.fresh_hash = 0
        self.evicted = 0

    def cached(self) -> list[FakeBlock]:
        return [block for block in self.pool.blocks if block.block_hash is not None]

    @rule(count=st.integers(1, 4))
    def allocate(self, count: int) -> None:
        available = self.pool.free_block_queue.num_free_blocks
        if count > available:
            return
        before = len(self.cached())
        self.held.append(self.pool.get_new_blocks(count))
        self.evicted += before - len(self.cached())

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        for block in data.draw(st.sampled_from(self.held)):
            if block.block_hash is None:
                block.block_hash = str(self.fresh_hash).encode()
                self.fresh_hash += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        self.pool.free_blocks(reversed(self.held.pop(index)))

    @precondition(lambda self: self.cached())
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.cached()), min_size=1, max_size=3, unique=True))
        self.pool.touch(blocks)
        self.held.append(blocks)

    @rule(ids=st.sets(st.integers(1, NUM_BLOCKS - 1), max_size=3))
    def invalidate(self, ids: set[int]) -> None:
        self.evicted += sum(block.block_id in ids and block.ref_cnt == 0 for block in self.cached())
        self.pool.evict_blocks(ids)

    @rule()
    def reset(self) -> None:
        self.pool.reset_prefix_cache()

    @invariant()
    def counts_are_what_the_blocks_say(self) -> None:
        assert self.hooks.off_reason is None
        assert self.census.census() == self.census.scan()
        assert self.census.census().total == NUM_BLOCKS - 1

    @invariant()
    def evictions_are_contents_given_up(self) -> None:
        assert self.census.evictions == self.evicted


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase


def test_a_pool_that_is_in_use_is_counted_from_its_blocks():
    """Attached late, the census starts from a scan."""
    pool = FakePool(9)
    first, second = pool.get_new_blocks(2), pool.get_new_blocks(3)
    for number, block in enumerate(first):
        block.block_hash = bytes([number])
    pool.free_blocks(first)
    assert PoolCensus(pool, identity).census() == BlockCensus(active=3, reclaimable=2, free=3)
    assert second[0].ref_cnt == 1


def test_ghosts_are_blocks_that_were_evicted_and_are_asked_for_again():
    pool = FakePool(5)
    census, hooks = PoolCensus(pool, identity), Hooks()
    hook_pool(hooks, pool, census)
    blocks = pool.get_new_blocks(4)
    for block, name in zip(blocks, (b"a", b"b", b"c", b"d"), strict=True):
        block.block_hash = name
    pool.free_blocks(blocks)
    pool.get_new_blocks(2)
    assert census.ghost_hits([b"a", b"b", b"c", b"x"]) == 2
    assert census.ghost_hits([b"a"]) == 0, "a ghost is hit once"


def test_the_ghost_list_is_bounded_by_the_pool():
    pool = FakePool(3)
    census, hooks = PoolCensus(pool, identity), Hooks()
    hook_pool(hooks, pool, census)
    for name in (b"a", b"b", b"c", b"d"):
        taken = pool.get_new_blocks(2)
        taken[0].block_hash = name
        pool.free_blocks(taken)
    pool.get_new_blocks(2)
    assert census.evictions == 4
    assert census.ghost_hits([b"a", b"b"]) == 0
    assert census.ghost_hits([b"c", b"d"]) == 2


def test_ghosts_cannot_be_told_where_requests_ask_by_other_hashes():
    pool = FakePool(3)
    census = PoolCensus(pool, None)
    assert census.ghost_hits([b"a"]) is None
