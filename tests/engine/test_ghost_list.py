"""What was evicted is remembered, for as long as there is room."""

import pytest

from engine.errors import ConfigError
from engine.ghost_list import GhostList


def test_an_evicted_block_is_a_ghost_until_it_is_asked_for():
    ghosts = GhostList(3)
    assert ghosts.take([b"a"]) == []
    ghosts.add([b"a"], 10)
    ghosts.add([b"c"], 20)
    assert ghosts.take([b"a", b"b", b"c"]) == [10, 20]
    assert ghosts.take([b"a"]) == []


def test_the_oldest_ghosts_make_room():
    ghosts = GhostList(2)
    ghosts.add([b"a", b"b"], 1)
    ghosts.add([b"c"], 2)
    assert len(ghosts) == 2
    assert ghosts.take([b"a", b"b", b"c"]) == [1, 2]


def test_what_is_cached_again_is_no_ghost():
    ghosts = GhostList(2)
    ghosts.add([b"a", b"b"], 1)
    ghosts.discard([b"a", b"c"])
    assert ghosts.take([b"a", b"b"]) == [1]


def test_a_list_needs_room():
    with pytest.raises(ConfigError, match="capacity"):
        GhostList(0)
