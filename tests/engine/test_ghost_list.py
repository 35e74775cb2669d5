"""What was evicted is remembered, for as long as there is room."""

import pytest

from engine.errors import ConfigError
from engine.ghost_list import GhostList


def test_an_evicted_block_is_a_ghost_until_it_is_asked_for():
    ghosts = GhostList(3)
    ghosts.add(b"a", 10)
    assert ghosts.take(b"b") is None
    assert ghosts.take(b"a") == 10
    assert ghosts.take(b"a") is None


def test_the_oldest_ghost_makes_room():
    ghosts = GhostList(2)
    for i, name in enumerate((b"a", b"b", b"c")):
        ghosts.add(name, i)
    assert len(ghosts) == 2
    assert ghosts.take(b"a") is None
    assert ghosts.take(b"b") == 1


def test_a_second_eviction_makes_a_ghost_young_again():
    ghosts = GhostList(2)
    for i, name in enumerate((b"a", b"b", b"a", b"c")):
        ghosts.add(name, i)
    assert ghosts.take(b"b") is None
    assert ghosts.take(b"a") == 2


def test_a_list_needs_room():
    with pytest.raises(ConfigError, match="capacity"):
        GhostList(0)
