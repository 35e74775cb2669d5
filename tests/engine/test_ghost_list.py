"""What was evicted is remembered, for as long as there is room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.ghost_list import GhostList


def test_an_evicted_block_is_a_ghost_until_it_is_asked_for():
    ghosts = GhostList(3)
    assert ghosts.take([1]) == []
    ghosts.add([1], 10)
    ghosts.add([3], 20)
    assert ghosts.take([1, 2, 3]) == [10, 20]
    assert ghosts.take([1]) == []


def test_the_oldest_ghosts_make_room():
    ghosts = GhostList(2)
    ghosts.add([1, 2], 1)
    ghosts.add([3], 2)
    assert len(ghosts) == 2
    assert ghosts.take([1, 2, 3]) == [1, 2]


def test_a_place_that_was_given_up_is_overwritten_without_harm():
    ghosts = GhostList(2)
    ghosts.add([1, 2], 1)
    assert ghosts.take([1, 3]) == [1]
    ghosts.add([1], 2)
    assert len(ghosts) == 2
    assert ghosts.take([1, 2]) == [2, 1]


@given(st.integers(1, 6), st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 9), unique=True, max_size=9))))
def test_the_newest_evictions_are_remembered_exactly(capacity: int, events: list[tuple[bool, list[int]]]):
    """Against a list of all evictions, cut to the newest ones."""
    ghosts = GhostList(capacity)
    evictions: list[tuple[int, int] | None] = []
    for now_ns, (asked, identities) in enumerate(events):
        known = dict(one for one in evictions[-capacity:] if one)
        if asked:
            assert ghosts.take(identities) == [known[one] for one in identities if one in known]
            evictions = [None if one and one[0] in identities else one for one in evictions]
        else:
            new = [one for one in identities if one not in known]
            ghosts.add(new, now_ns)
            evictions += [(one, now_ns) for one in new]
        assert len(ghosts) == sum(one is not None for one in evictions[-capacity:])


def test_a_list_needs_room():
    with pytest.raises(ConfigError, match="capacity"):
        GhostList(0)
