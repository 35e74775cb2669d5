"""What was evicted is remembered, for as long as there is room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.ghost_list import GhostList


def evict(ghosts: GhostList, identities: list[int], now_ns: int) -> None:
    ghosts.add(identities, range(len(identities)), now_ns)


def test_an_evicted_block_is_a_ghost_until_it_is_asked_for():
    ghosts = GhostList(2)
    assert ghosts.take([1]) == []
    evict(ghosts, [1], 10)
    evict(ghosts, [3], 20)
    assert ghosts.take([1, 2, 3]) == [10, 20]
    assert ghosts.take([1]) == []


def test_the_oldest_ghosts_make_room():
    ghosts = GhostList(2)
    for now_ns in range(1, 6):
        evict(ghosts, [now_ns], now_ns)
    assert ghosts.take([1, 2, 3, 4, 5]) == [5, 3, 4]


@given(st.integers(1, 4), st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 9), unique=True, max_size=9))))
def test_a_generation_is_remembered_for_sure_and_two_at_most(size: int, events: list[tuple[bool, list[int]]]):
    """Against a list of all evictions, the newest first, None where one was asked for."""
    ghosts = GhostList(size)
    evictions: list[tuple[int, int] | None] = []
    for now_ns, (asked, identities) in enumerate(events):
        known = dict(one for one in evictions if one)
        surely = dict(one for one in evictions[:size] if one)
        if asked:
            taken = ghosts.take(identities)
            expected = [known[one] for one in identities if one in known]
            assert sorted(taken) == sorted(expected)[len(expected) - len(taken) :], "the newest of what was evicted"
            assert len(taken) >= sum(one in surely for one in identities)
            evictions = [None if one and one[0] in identities else one for one in evictions]
        else:
            new = [one for one in identities if one not in known]
            evict(ghosts, new, now_ns)
            evictions = [*((one, now_ns) for one in reversed(new)), *evictions]
        assert sum(one is not None for one in evictions[:size]) <= len(ghosts) <= 2 * size


def test_a_list_needs_room():
    with pytest.raises(ConfigError, match="generation"):
        GhostList(0)
