from dataclasses import fields, replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.prefix_cache import (
    HASH_FUNCTIONS,
    CacheScope,
    HashChainIndex,
    explain_miss,
    identity,
    length_prefixed,
    pack_tokens,
)
from tests.requirements import covers

SCOPE = CacheScope(
    weights=identity(checkpoint="tiny", digest="aa", dtype="float16"),
    adapter=identity(name="law", digest="01", rank=8),
    positional=identity(rope_theta=10_000.0, scaling=None, offset=0, mask="causal"),
    kv_format=identity(dtype="float16", scales=None, layout="NHD"),
    engine=identity(engine="stallscope", block_size=16),
)


def make_index(block_size: int = 16, scope: CacheScope = SCOPE) -> HashChainIndex:
    return HashChainIndex(block_size, scope)


def hit_tokens(index: HashChainIndex, tokens: list[int], salt: str = "") -> int:
    return len(index.lookup(tokens, salt)) * index.block_size


@covers("S3.17", "S7.1", "S3.14")
def test_the_lessons_partial_hit():
    index = make_index()
    base = list(range(1, 2501))
    inserted = index.insert_sequence(base, range(200))
    assert len(inserted) == 156
    query = base + list(range(5000, 5500))
    assert hit_tokens(index, query) == 2496
    assert len(query) - hit_tokens(index, query) == 504
    assert hit_tokens(index, base) == 2496, "the 4 tokens of the part-filled block are not cached, by policy"


@covers("S8.1")
def test_exercise_1():
    index = make_index(block_size=32)
    index.insert_sequence(list(range(3100)), range(97))
    blocks = index.lookup(list(range(3100)) + list(range(9000, 9900)))
    assert len(blocks) == 96
    assert (len(blocks) * 32, 4000 - len(blocks) * 32) == (3072, 928)


@covers("S3.11", "S3.16")
def test_blocks_are_found_in_logical_order_whatever_their_ids():
    index = make_index()
    index.insert_sequence(list(range(48)), [42, 108, 19])
    assert index.lookup(list(range(48))) == [42, 108, 19]
    assert index.lookup(list(range(47))) == [42, 108]
    assert index.lookup(list(range(16, 48))) == [], "the same tokens after another prefix are another block"


@covers("S3.12", "S7.2")
def test_an_early_mutation_misses_everything_after_it():
    index = make_index()
    tokens = list(range(100, 164))
    index.insert_sequence(tokens, range(4))
    mutated = [*tokens[:5], 999_999, *tokens[6:]]
    assert hit_tokens(index, mutated) == 0


@covers("S3.13")
def test_matching_stops_at_the_first_missing_block_and_goes_on_once_it_is_back():
    index = make_index()
    tokens = list(range(64))
    index.insert_sequence(tokens, [0, 1, 2, 3])
    index.forget([2])
    assert index.lookup(tokens) == [0, 1]
    index.insert_sequence(tokens, [7, 8, 9, 10])
    assert index.lookup(tokens) == [0, 1, 9, 3]


@covers("S3.4", "S7.3")
def test_another_salt_never_hits():
    index = make_index()
    tokens = list(range(1, 2501))
    index.insert_sequence(tokens, range(156), "model_shared")
    assert hit_tokens(index, tokens, "tenant_isolated") == 0
    assert hit_tokens(index, tokens, "model_shared") == 2496


@covers("S3.2")
@pytest.mark.parametrize("name", [field.name for field in fields(CacheScope)])
def test_each_identity_dimension_alone_makes_a_miss_and_is_named(name: str):
    index = make_index()
    tokens = list(range(64))
    index.insert_sequence(tokens, range(4))
    other = replace(SCOPE, **{name: getattr(SCOPE, name) + "?"})
    index.set_scope(other)
    assert hit_tokens(index, tokens) == 0
    assert explain_miss(SCOPE, other) == (name,)
    index.set_scope(SCOPE)
    assert hit_tokens(index, tokens) == 64
    assert explain_miss(SCOPE, SCOPE) == ()


@covers("S3.2")
@pytest.mark.parametrize(
    ("dimension", "fact", "value"),
    [
        ("weights", "dtype", "bfloat16"),
        ("adapter", "rank", 16),
        ("positional", "rope_theta", 500_000.0),
        ("positional", "offset", 1),
        ("kv_format", "dtype", "fp8_e4m3"),
        ("kv_format", "scales", [0.5]),
    ],
)
def test_each_fact_of_a_dimension_counts(dimension: str, fact: str, value: object):
    dimensions: dict[str, dict[str, object]] = {
        "weights": {"checkpoint": "tiny", "digest": "aa", "dtype": "float16"},
        "adapter": {"name": "law", "digest": "01", "rank": 8},
        "positional": {"rope_theta": 10_000.0, "scaling": None, "offset": 0, "mask": "causal"},
        "kv_format": {"dtype": "float16", "scales": None, "layout": "NHD"},
    }
    facts = dimensions[dimension]
    assert identity(**facts) == getattr(SCOPE, dimension)
    assert explain_miss(SCOPE, replace(SCOPE, **{dimension: identity(**{**facts, fact: value})})) == (dimension,)


@covers("S3.7")
def test_an_adapter_name_that_points_to_other_weights_misses():
    index = make_index()
    index.insert_sequence(list(range(32)), range(2))
    index.set_scope(replace(SCOPE, adapter=identity(name="law", digest="02", rank=8)))
    assert index.lookup(list(range(32))) == []


@covers("S3.3")
def test_a_sequence_that_ran_when_the_scope_changed_is_not_indexed_under_the_new_one():
    """Not even when the scope is set back: part of its KV was computed in between."""
    index = make_index(block_size=4)
    key = index.start()
    index.extend(key, list(range(4)))
    assert index.insert(key, [0, 1], 0, 1) == [0]
    index.set_scope(replace(SCOPE, weights="reloaded"))
    index.set_scope(SCOPE)
    index.extend(key, list(range(4, 8)))
    assert index.insert(key, [0, 1], 1, 2) == []
    assert index.lookup(list(range(8))) == [0]


@covers("S3.5")
@given(st.lists(st.binary(max_size=6), max_size=4), st.lists(st.binary(max_size=6), max_size=4))
def test_different_parts_never_share_a_preimage(ours: list[bytes], theirs: list[bytes]):
    assert (length_prefixed(*ours) == length_prefixed(*theirs)) == (ours == theirs)


@covers("S3.5")
def test_every_hashed_preimage_is_a_parent_and_tokens_of_fixed_lengths_and_the_first_parent_is_scope_and_salt():
    preimages: list[bytes] = []

    def spy(preimage: bytes) -> bytes:
        preimages.append(preimage)
        return sha256(preimage).digest()

    index = HashChainIndex(2, SCOPE, spy)
    index.lookup([1, 2, 3, 4], "salt")
    root = sha256(length_prefixed(SCOPE.digest(), b"salt")).digest()
    first = root + pack_tokens([1, 2])
    second = sha256(first).digest() + pack_tokens([3, 4])
    assert preimages == [length_prefixed(SCOPE.digest(), b"salt"), first, second]


@covers("S3.5")
def test_neighbouring_fields_cannot_be_shifted_into_one_another():
    assert CacheScope("ab", "c").digest() != CacheScope("a", "bc").digest()
    assert identity(adapter="a", extra="bc") != identity(adapter="ab", extra="c")
    index = make_index()
    index.insert_sequence(list(range(16)), [0], "ab")
    assert index.lookup(list(range(16)), "a") == []


@covers("S3.6")
def test_token_ids_are_uint32():
    index = make_index(block_size=2)
    assert index.insert_sequence([0, 2**32 - 1], [5]) == [5]
    assert index.lookup([0, 2**32 - 1]) == [5]
    for bad in (-1, 2**32, 1.5, "7", None):
        with pytest.raises(ValueError, match=r"token id .* at position 1 is not an integer in 0\.\.4294967295"):
            index.lookup([0, bad])  # type: ignore[list-item]


def test_packing_is_little_endian():
    assert pack_tokens([1, 0x01020304]) == bytes([1, 0, 0, 0, 4, 3, 2, 1])


@covers("S3.15")
@pytest.mark.parametrize("size", [0, -1])
def test_the_block_size_must_be_positive(size: int):
    with pytest.raises(ConfigError, match=f"block_size must be positive, got {size}"):
        HashChainIndex(size, SCOPE)


@covers("S7.7")
@given(
    st.sampled_from((lambda _: b"", lambda _: b"constant", lambda preimage: sha256(preimage).digest()[:0] + b"x")),
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=8), min_size=2, max_size=6),
    st.lists(st.sampled_from(("", "tenant")), min_size=6, max_size=6),
)
def test_a_forged_hash_never_hits_other_tokens(forge, sequences: list[list[int]], salts: list[str]):
    assert_never_wrong(HashChainIndex(2, SCOPE, forge), sequences, salts)


@covers("S7.7")
@given(
    st.integers(1, 3),
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=8), min_size=2, max_size=12),
    st.lists(st.sampled_from(("", "tenant")), min_size=12, max_size=12),
    st.randoms(use_true_random=False),
)
def test_a_weak_hash_never_hits_other_tokens(bits: int, sequences: list[list[int]], salts: list[str], random):
    """A few bits collide all the time and, unlike a constant, let long chains in; evictions tear holes into them."""
    index = HashChainIndex(2, SCOPE, lambda preimage: bytes([sha256(preimage).digest()[0] % 2**bits]))
    assert_never_wrong(index, sequences, salts, lambda: random.random() < 0.4)


@covers("S7.7")
def test_a_collision_of_64_bits_costs_the_later_prefix_its_hits_and_never_truth():
    alike = tuple(map(pack_tokens, ([1, 2], [3, 4])))
    index = HashChainIndex(2, SCOPE, lambda preimage: b"same" if preimage.endswith(alike) else preimage[-4:])
    assert index.insert_sequence([1, 2, 7, 7, 8, 8], [0, 1, 2]) == [0, 1, 2]
    assert index.insert_sequence([3, 4, 7, 7, 8, 8], [3, 4, 5]) == [3]
    assert index.lookup([3, 4, 7, 7, 8, 8]) == [3]
    assert index.lookup([1, 2, 7, 7, 8, 8]) == [0, 1, 2]


def test_a_block_found_again_after_a_hole_was_filled_belongs_to_the_very_same_prefix():
    """The same, with the earlier prefix evicted: what follows it is still its own, and never the other one's."""
    alike = tuple(map(pack_tokens, ([1, 2], [3, 4])))
    index = HashChainIndex(2, SCOPE, lambda preimage: b"same" if preimage.endswith(alike) else preimage[-4:])
    index.insert_sequence([1, 2, 7, 7, 8, 8], [0, 1, 2])
    index.forget([0])
    assert index.insert_sequence([3, 4, 7, 7], [3, 4]) == [3]
    assert index.lookup([3, 4, 7, 7]) == [3]
    assert index.lookup([1, 2, 7, 7, 8, 8]) == []
    assert index.insert_sequence([1, 2], [6]) == [6]
    assert index.lookup([1, 2, 7, 7, 8, 8]) == [6, 1, 2]


@pytest.mark.parametrize("name", HASH_FUNCTIONS)
def test_every_hash_option_finds_what_was_put_in_and_nothing_else(name: str):
    index = HashChainIndex(16, SCOPE, HASH_FUNCTIONS[name])
    index.insert_sequence(list(range(2500)), range(156), "tenant")
    assert index.lookup(list(range(3000)), "tenant") == list(range(156))
    assert index.lookup([9, *range(1, 3000)], "tenant") == index.lookup(list(range(3000))) == []
    assert len(HASH_FUNCTIONS[name](b"preimage")) == {"sha256": 32, "siphash64": 8}[name]


def assert_never_wrong(index: HashChainIndex, sequences, salts, evicts=lambda: False) -> None:
    content: dict[int, tuple[str, tuple[int, ...]]] = {}
    for sequence, salt in zip(sequences, salts, strict=False):
        for i, block in enumerate(index.lookup(sequence, salt)):
            assert content[block] == (salt, tuple(sequence[: 2 * i + 2]))
        blocks = [len(content) + i for i in range(len(sequence) // 2)]
        content |= {block: (salt, tuple(sequence[: 2 * i + 2])) for i, block in enumerate(blocks)}
        index.insert_sequence(sequence, blocks, salt)
        for block in content:
            if evicts():
                index.forget([block])


def test_of_two_blocks_with_the_same_content_the_first_stays_found():
    index = make_index(block_size=2)
    assert index.insert_sequence([1, 2, 3, 4], [0, 1]) == [0, 1]
    assert index.insert_sequence([1, 2, 3, 4, 5, 6], [7, 8, 9]) == [9]
    assert index.lookup([1, 2, 3, 4, 5, 6]) == [0, 1, 9]


def test_every_continuation_of_a_prefix_is_found_whichever_came_last_and_whatever_became_of_its_block():
    index = make_index(block_size=2)
    index.insert_sequence([1, 2, 3, 4], [0, 1])
    index.insert_sequence([1, 2, 5, 6], [0, 2])
    assert index.lookup([1, 2, 3, 4]) == [0, 1]
    assert index.lookup([1, 2, 5, 6]) == [0, 2]
    index.forget([2])
    assert index.lookup([1, 2, 5, 6]) == [0]
    index.insert_sequence([7, 8, 5, 6], [3, 2])
    assert index.lookup([1, 2, 5, 6]) == [0], "block 2 now follows another prefix"
    assert index.lookup([1, 2, 3, 4]) == [0, 1]


def test_a_twin_takes_the_place_of_an_evicted_block_when_its_sequence_goes_on():
    index = make_index(block_size=2)
    index.insert_sequence([1, 2, 3, 4], [0, 1])
    key = index.start()
    index.extend(key, [1, 2, 3, 4])
    assert index.insert(key, [7, 8], 0, 2) == []
    index.forget([1])
    index.forget([0])
    index.extend(key, [5, 6])
    assert index.insert(key, [7, 8, 9], 2, 3) == [7, 8, 9]
    assert index.lookup([1, 2, 3, 4, 5, 6]) == [7, 8, 9]


def test_identities_are_those_of_the_prefix_and_are_carried_on_as_it_grows():
    index = make_index(2)

    def identities(tokens: list[int], salt: str = "") -> list[int]:
        key = index.start(salt)
        for at in range(0, len(tokens), 2):
            index.extend(key, tokens[at : at + 2])
            index.identities(key)
        return list(index.identities(key))

    assert identities([1, 2, 3, 4]) == identities([1, 2, 3, 4, 5, 6])[:2]
    assert len({*identities([1, 2, 3, 4]), *identities([3, 4, 3, 4]), *identities([1, 2, 3, 4], "tenant")}) == 6


def test_a_fork_of_a_memo_goes_on_by_itself():
    index = make_index(2)
    index.insert_sequence([1, 2, 3, 4, 5, 6], range(3))
    key = index.start()
    index.extend(key, [1, 2, 3, 4])
    index.match(key)
    for shared in (0, 1, 2, 9):
        twin = index.fork(key, shared)
        index.extend(twin, [1, 2, 3, 4, 5, 6][2 * len(twin) :])
        assert index.match(twin) == [0, 1, 2]
        assert index.identities(twin)[:2] == index.identities(key)
    assert len(key) == 2


def test_nothing_is_kept_of_what_was_forgotten():
    index = make_index(block_size=2)
    blocks = index.insert_sequence(list(range(20)), range(10))
    for block in blocks[:5]:
        index.forget([block])
    assert index.num_blocks == 5
    for block in blocks[5:]:
        index.forget([block])
    index.forget([99])
    assert (index.num_blocks, len(index._nodes)) == (0, 0)


def test_only_full_blocks_can_be_added_to_a_key():
    index = make_index(block_size=4)
    with pytest.raises(ValueError, match="6 tokens are not full blocks of 4"):
        index.extend(index.start(), list(range(6)))


def test_salts_with_lone_surrogates_are_told_apart():
    index = make_index(block_size=2)
    index.insert_sequence([1, 2], [0], "\ud800")
    assert index.lookup([1, 2], "\ud801") == []
    assert index.lookup([1, 2], "\ud800") == [0]
