"""Which blocks leave after which chunk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.shipping import Shipment, Shipping
from tests.requirements import covers


@covers("S6.12")
def test_a_block_that_is_not_full_is_held_until_it_is():
    """Budget 512 beside 4 decodes: a chunk ends at 508."""
    shipping = Shipping(2048, block_size=16)
    assert shipping.computed(508) == Shipment(0, 31, 496, False), "12 tokens are held"
    assert shipping.computed(1016) == Shipment(31, 63, 1008, False), "they go with the next chunk"


@covers("S6.12")
def test_the_last_chunk_ships_its_partial_block():
    shipping = Shipping(20, block_size=16)
    assert shipping.computed(16) == Shipment(0, 1, 16, False)
    assert shipping.computed(19) is None
    assert shipping.computed(20) == Shipment(1, 2, 20, True)
    assert shipping.computed(20) is None


def test_what_the_receiver_has_is_not_shipped():
    assert Shipping(64, block_size=16, first_block=2).computed(64) == Shipment(2, 4, 64, True)


@pytest.mark.parametrize("first_block", [-1, 4])
def test_a_receiver_that_needs_nothing_is_a_mistake(first_block: int):
    with pytest.raises(ValueError, match="receiver"):
        Shipping(64, block_size=16, first_block=first_block)


@given(data=st.data(), block_size=st.integers(1, 8), num_tokens=st.integers(1, 100))
def test_every_block_is_shipped_once_in_order_and_full(data: st.DataObject, block_size: int, num_tokens: int):
    """Whatever the chunks, and however often a preemption makes the computation begin again."""
    first = data.draw(st.integers(0, (num_tokens - 1) // block_size))
    shipping = Shipping(num_tokens, block_size, first)
    ends = data.draw(st.lists(st.integers(0, num_tokens - 1), max_size=12))
    shipped = [one for end in [*ends, num_tokens] if (one := shipping.computed(end)) is not None]
    blocks = [block for one in shipped for block in range(one.first_block, one.end_block)]
    assert blocks == list(range(first, -(-num_tokens // block_size)))
    assert [one.is_last for one in shipped] == [False] * (len(shipped) - 1) + [True]
    assert all(one.is_last or one.num_tokens == one.end_block * block_size for one in shipped)
    assert shipping.computed(num_tokens) is None
