"""The tree: what is found in it, how it branches, in which order it gives way. Alone, and under a real pool."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.block_pool import BlockPool
from engine.errors import ConfigError, InvariantViolation
from engine.prefix_cache import CacheScope, HashChainIndex, PartialBlock, pack_tokens
from engine.radix_index import RadixIndex, common_tokens
from engine.request import FinishReason
from tests.engine.builders import make_request, make_scheduler, run_step, serve
from tests.requirements import covers

SCOPE = CacheScope(weights="tiny")
LETTERS = {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz", 1)}


def make_index(block_size: int = 1) -> RadixIndex:
    return RadixIndex(block_size, SCOPE)


def tokens_of(word: str) -> list[int]:
    return [LETTERS[letter] for letter in word]


def shape(index: RadixIndex) -> set[tuple[tuple[int, ...], int]]:
    """Each node's blocks and the number of its children."""
    index.check_invariants()
    return {(tuple(node.blocks), len(node.children)) for node in index.nodes()}


class Cache:
    """A tree and its pool, used as the scheduler does, one sequence at a time."""

    def __init__(self, num_blocks: int, block_size: int = 1) -> None:
        self.index = make_index(block_size)
        self.evicted: list[int] = []
        self.pool = BlockPool(num_blocks, block_size, on_evict=self.forget)

    def forget(self, block_ids: Sequence[int]) -> None:
        self.evicted += block_ids
        self.index.forget(block_ids)

    def hold(self, word: str) -> list[int]:
        """Computes what is not cached; the sequence then holds its whole path."""
        key = self.index.start()
        self.index.extend(key, tokens_of(word))
        hit = self.index.match(key)
        self.pool.touch(hit)
        blocks = hit + self.pool.allocate(len(word) // self.pool.block_size - len(hit))
        self.pool.mark_cached(self.index.insert(key, blocks, len(hit), len(key)))
        self.index.check_invariants()
        return blocks

    def use(self, word: str) -> list[int]:
        blocks = self.hold(word)
        self.pool.release(blocks)
        return blocks

    def found(self, word: str) -> int:
        return len(self.index.lookup(tokens_of(word)))


@covers("S3.18")
def test_a_sequence_that_leaves_a_run_splits_it_and_nothing_is_copied():
    index = make_index()
    assert index.insert_sequence(tokens_of("abcd"), [10, 11, 12, 13]) == [10, 11, 12, 13]
    assert shape(index) == {((10, 11, 12, 13), 0)}
    assert index.insert_sequence(tokens_of("abxy"), [10, 11, 22, 23]) == [22, 23]
    assert shape(index) == {((10, 11), 2), ((12, 13), 0), ((22, 23), 0)}
    assert index.lookup(tokens_of("abcd")) == [10, 11, 12, 13], "the same blocks as before the split"
    assert index.lookup(tokens_of("abxyz")) == [10, 11, 22, 23]
    assert index.lookup(tokens_of("abq")) == [10, 11]


def test_a_run_can_be_split_again_and_again():
    index = make_index()
    index.insert_sequence(tokens_of("abcdef"), range(6))
    for i, word in enumerate(("abx", "abcdx", "ax", "abcx")):
        index.insert_sequence(tokens_of(word), [*range(len(word) - 1), 10 + i])
        index.check_invariants()
    assert index.lookup(tokens_of("abcdef")) == list(range(6))
    assert [index.lookup(tokens_of(word))[-1] for word in ("abx", "abcdx", "ax", "abcx")] == [10, 11, 12, 13]


def test_a_sequence_that_goes_on_lengthens_its_leaf():
    index = make_index()
    key = index.start()
    for i, letter in enumerate("abcdef"):
        index.extend(key, tokens_of(letter))
        assert index.insert(key, range(6), i, i + 1) == [i]
    assert shape(index) == {((0, 1, 2, 3, 4, 5), 0)}


def test_a_sequence_goes_on_where_another_has_gone_ahead():
    index = make_index()
    index.insert_sequence(tokens_of("abcdef"), range(6))
    key = index.start()
    index.extend(key, tokens_of("abcdxy"))
    assert index.insert(key, [0, 1, 7, 8, 9, 10], 2, 3) == [], "its block is the twin of one that is cached"
    assert index.insert(key, [0, 1, 2, 8, 9, 10], 3, 6) == [9, 10]
    assert shape(index) == {((0, 1, 2, 3), 2), ((4, 5), 0), ((9, 10), 0)}


@covers("S3.19")
def test_evicting_everything_leaves_every_path_that_is_held():
    cache = Cache(12)
    held = cache.hold("abcd")
    cache.use("abxy")
    cache.use("pqrs")
    cache.pool.allocate(cache.pool.num_available)
    assert len(cache.evicted) == 6
    assert set(held).isdisjoint(cache.evicted)
    assert [cache.found(word) for word in ("abcd", "abxy", "pqrs")] == [4, 2, 0]


@covers("S3.19")
def test_a_running_request_pins_its_path_in_the_scheduler():
    scheduler = make_scheduler(kv_blocks=20, prefix_index="radix")
    serve(scheduler, make_request("idle", 128, max_tokens=1, first=5000))
    scheduler.add(make_request("running", 64, max_tokens=1000 // 16))
    run_step(scheduler)
    scheduler.reset_prefix_cache()
    assert len(scheduler.index.lookup(list(range(64)))) == 4
    assert scheduler.index.num_blocks == 4


@covers("S3.20")
def test_the_least_recently_used_leaf_goes_first_and_a_parent_only_when_it_is_childless():
    cache = Cache(8)
    cd = cache.use("abcd")
    xy = cache.use("abxy")
    pq = cache.use("pq")
    cache.pool.allocate(8)
    assert cache.evicted == [cd[3], cd[2], xy[3], xy[2], xy[1], xy[0], pq[1], pq[0]]
    assert (cache.index.num_blocks, shape(cache.index)) == (0, set())


@covers("S3.20")
def test_a_parent_outlives_its_own_age_while_a_child_is_held():
    cache = Cache(6)
    cache.use("ab")
    held = cache.hold("abcd")
    cache.use("pq")
    cache.pool.allocate(2)
    assert cache.found("pq") == 0
    cache.pool.release(held)
    cache.pool.allocate(2)
    assert cache.found("abcd") == 2


def test_a_partial_hit_refreshes_the_whole_path_that_was_matched():
    """A prefix that was hit a moment ago must not be evicted before one that has been idle for longer."""
    cache = Cache(8)
    cache.use("abcd")
    cache.use("pq")
    cache.use("abx")
    cache.pool.allocate(5)
    assert cache.found("pq") == 0, "idle since before the hit"
    assert cache.found("abx") == 3
    assert cache.found("abcd") == 2, "the part that was not hit is as old as it was"


@covers("S3.21")
@pytest.mark.parametrize(("page", "matched"), [(1, 2500), (16, 2496)])
def test_the_page_decides_how_much_of_a_shared_prefix_is_stored(page: int, matched: int):
    index = make_index(page)
    shared = list(range(1, 2501))
    index.insert_sequence(shared, range(2500 // page))
    assert len(index.lookup(shared + list(range(5000, 5500)))) * page == matched


@covers("S3.21")
def test_the_match_itself_is_token_granular():
    index = make_index(16)
    index.insert_sequence(list(range(48)), [5, 6, 7])
    key = index.start()
    query = [*range(26), 900, 901]
    index.extend(key, query[:16])
    hit = index.match(key)
    assert hit == [5]
    assert index.match_partial(key, hit, query[16:]) == PartialBlock(6, 10)
    assert index.match_partial(key, hit, [777]) is None
    assert index.match_partial(index.start("other"), [], [0, 1]) is None
    assert index.match_partial(key, [], [0, 1, 9]) == PartialBlock(5, 2)


def test_of_several_branches_the_one_that_shares_most_is_copied():
    index = make_index(4)
    for word, block in (("abcd", 0), ("abxy", 1), ("pqrs", 2)):
        index.insert_sequence(tokens_of(word), [block])
    key = index.start()
    assert index.match_partial(key, [], tokens_of("abcz")) == PartialBlock(0, 3)
    assert index.match_partial(key, [], tokens_of("abx")) == PartialBlock(1, 3)
    assert index.match_partial(key, [], tokens_of("pz")) == PartialBlock(2, 1)


def test_a_request_starts_in_the_middle_of_a_block_from_a_private_copy():
    scheduler = make_scheduler(prefix_index="radix")
    serve(scheduler, make_request("first", 64, max_tokens=1))
    scheduler.add(make_request("second", [*range(26), *range(900, 930)], max_tokens=4))
    step = scheduler.schedule()
    second = scheduler.requests["second"]
    source = scheduler.index.lookup(list(range(64)))[1]
    assert [(copy.source, copy.target, copy.num_tokens) for copy in step.copies] == [(source, second.block_ids[1], 10)]
    assert [(chunk.start, chunk.num_tokens) for chunk in step.prefills] == [(26, 30)]
    assert second.num_cached_tokens == step.cached_tokens == 26
    scheduler.commit(step, [9], 0)
    scheduler.check_invariants()


def test_an_abort_before_the_copy_is_done_leaves_the_order_of_eviction_intact():
    scheduler = make_scheduler(kv_blocks=5, prefix_index="radix")
    serve(scheduler, make_request("first", 64, max_tokens=1))
    scheduler.add(make_request("again", 64, max_tokens=1))
    step = scheduler.schedule()
    assert step.copies
    scheduler.abort("again")
    scheduler.commit(step, [9], 0)
    serve(scheduler, make_request("other", 32, max_tokens=1, first=1000))
    assert len(scheduler.index.lookup(list(range(64)))) == 3, "its end went first"
    scheduler.check_invariants()


def test_twins_give_way_to_what_is_cached():
    scheduler = make_scheduler(prefix_index="radix")
    first, second = (make_request(name, 64, max_tokens=8) for name in ("first", "second"))
    scheduler.add(first)
    scheduler.add(second)
    run_step(scheduler)
    assert first.block_ids[:4] == second.block_ids[:4]
    assert scheduler.census().active == 4, "the second copy is free again, while both are running"
    scheduler.finish(first, FinishReason.STOP)
    scheduler.check_invariants()
    assert scheduler.census().reclaimable == 0


def test_namespaces_are_typed_and_never_run_together():
    """("ab", "c") and ("a", "bc") must not meet, whichever part of the identity the letters come from."""
    index = make_index()
    index.insert_sequence([1, 2], [0, 1], "ab")
    assert index.lookup([1, 2], "a") == index.lookup([1, 2], "b") == index.lookup([1, 2]) == []
    adapters = RadixIndex(1, CacheScope("ab", adapter="c"))
    adapters.insert_sequence([1, 2], [0, 1])
    adapters.set_scope(CacheScope("a", adapter="bc"))
    assert adapters.lookup([1, 2]) == []
    adapters.set_scope(CacheScope("ab", adapter="c"))
    assert adapters.lookup([1, 2]) == [0, 1]


def test_a_sequence_that_ran_when_the_scope_changed_is_not_indexed_any_more():
    index = make_index()
    key = index.start()
    index.extend(key, tokens_of("ab"))
    assert index.insert(key, [0, 1], 0, 1) == [0]
    index.set_scope(CacheScope("reloaded"))
    index.set_scope(SCOPE)
    assert index.insert(key, [0, 1], 1, 2) == []
    assert index.lookup(tokens_of("ab")) == [0]


def test_a_blocks_identity_is_that_of_its_prefix_and_namespace():
    index = make_index(2)

    def identities(word: str, salt: str = "") -> list[int]:
        key = index.start(salt)
        for at in range(0, len(word), 2):
            index.extend(key, tokens_of(word[at : at + 2]))
            index.identities(key)
        return list(index.identities(key))

    assert identities("abcdef") == identities("abcdefgh")[:3]
    assert identities("abcdef")[:2] == identities("abcdxy")[:2]
    assert (
        len({*identities("abcdef"), *identities("cdcdef"), *identities("abcdef", "tenant"), *identities("abab")}) == 10
    )


def test_a_fork_goes_on_by_itself():
    index = make_index(2)
    key = index.start("tenant")
    index.extend(key, tokens_of("abcdef"))
    assert index.insert(key, [0, 1, 2], 0, 3) == [0, 1, 2]
    twin = index.fork(key, 2)
    index.extend(twin, tokens_of("xy"))
    assert index.insert(twin, [0, 1, 7], 2, 3) == [7]
    assert (index.match(key), index.match(twin)) == ([0, 1, 2], [0, 1, 7])
    assert index.identities(twin)[:2] == index.identities(key)[:2]
    assert index.is_current(twin)


def test_a_fork_of_a_memo_that_is_behind_claims_no_more_than_it_knows():
    """With the cache off nothing extends the source's memo; the twin's blocks are offered once it is on again."""
    index = make_index(2)
    key = index.start("tenant")
    twin = index.fork(key, 2)
    assert len(twin) == 0
    index.extend(twin, tokens_of("abcdxy"))
    assert len(twin) == 3
    assert index.insert(twin, [4, 5, 6], 0, 3) == [4, 5, 6]
    assert index.match(twin) == [4, 5, 6]
    assert len(index.identities(twin)) == 3


def test_an_empty_namespace_is_not_kept():
    index = make_index()
    index.insert_sequence([1, 2], [0, 1], "tenant")
    index.forget([1])
    index.forget([0])
    index.forget([99])
    assert not index._roots
    assert index.num_blocks == 0


def test_a_block_that_leads_to_others_cannot_be_forgotten():
    index = make_index()
    index.insert_sequence(tokens_of("abc"), [0, 1, 2])
    with pytest.raises(ValueError, match="block 1 leads to other cached blocks"):
        index.forget([1])
    assert index.lookup(tokens_of("abc")) == [0, 1, 2]


def test_bad_input_is_named():
    with pytest.raises(ConfigError, match="block_size must be positive, got 0"):
        make_index(0)
    with pytest.raises(ValueError, match="token id -1 at position 1"):
        make_index().lookup([1, -1])
    with pytest.raises(ValueError, match="6 tokens are not full blocks of 4"):
        index = make_index(4)
        index.extend(index.start(), list(range(6)))


def test_a_broken_tree_is_reported():
    index = make_index()
    index.insert_sequence(tokens_of("abc"), [0, 1, 2])
    next(index.nodes()).blocks.append(9)
    with pytest.raises(InvariantViolation, match="4 blocks and 12 bytes"):
        index.check_invariants()


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
def test_common_tokens_are_counted_exactly(ours: list[int], theirs: list[int]):
    scale = (0, 0x0100, 2**32 - 1)
    ours, theirs = [scale[one] for one in ours], [scale[one] for one in theirs]
    expected = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    assert common_tokens(pack_tokens(ours), pack_tokens(theirs)) == (
        min(len(ours), len(theirs)) if expected is None else expected
    )


WORDS = st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=12), st.sampled_from(("", "tenant"))), max_size=12)


@covers("S3.22")
@given(st.integers(1, 4), WORDS)
def test_both_indexes_find_the_same_on_any_trace(block_size: int, trace: list[tuple[list[int], str]]):
    chain, tree = HashChainIndex(block_size, SCOPE), RadixIndex(block_size, SCOPE)
    next_block = 0
    for tokens, salt in trace:
        hit = chain.lookup(tokens, salt)
        assert tree.lookup(tokens, salt) == hit
        blocks = hit + list(range(next_block, next_block + len(tokens) // block_size - len(hit)))
        next_block += len(blocks) - len(hit)
        assert chain.insert_sequence(tokens, blocks, salt) == tree.insert_sequence(tokens, blocks, salt)
        tree.check_invariants()


@covers("S3.22")
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), WORDS, st.integers(1, 6))
def test_schedulers_with_either_index_hit_the_same_blocks(block_size: int, trace, max_tokens: int):
    """Without eviction pressure; the tree may start later, inside the block after the hit, but never earlier."""
    schedulers = [
        make_scheduler(block_size=block_size, kv_blocks=150, prefix_index=name) for name in ("hash_chain", "radix")
    ]
    for i, (tokens, salt) in enumerate(trace):
        if tokens:
            chain, tree = (
                serve(one, make_request(f"r{i}", tokens, max_tokens=max_tokens, salt=salt)) for one in schedulers
            )
            assert chain.output_token_ids == tree.output_token_ids
            assert chain.num_cached_tokens <= tree.num_cached_tokens < chain.num_cached_tokens + block_size
    assert schedulers[0].index.num_blocks == schedulers[1].index.num_blocks
