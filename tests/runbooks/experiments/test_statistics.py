"""Sign flips, intervals over pairs, looks and orders."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.experiments.statistics import Looks, block_order, paired_difference, sign_flip_p


def test_six_pairs_of_one_sign_are_the_fewest_that_show_anything():
    assert sign_flip_p([1.0] * 5) == 2 / 32
    assert sign_flip_p([1.0] * 6) == 2 / 64
    assert sign_flip_p([1.0] * 6) < 0.05 < sign_flip_p([1.0] * 5)


def test_by_hand():
    """Of the eight sign patterns of 1, 2, 4 those with |sum| >= |1 + 2 - 4| are all; with |sum| >= 7 they are two."""
    assert sign_flip_p([1, 2, -4]) == 1.0
    assert sign_flip_p([1, 2, 4]) == 0.25


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=9))
def test_a_p_value_knows_no_direction_and_no_unit(differences):
    p = sign_flip_p(differences)
    assert 0 < p <= 1
    assert sign_flip_p([-value for value in differences]) == p
    assert sign_flip_p([8 * value for value in differences]) == p


def test_many_pairs_are_drawn_and_agree_with_counting():
    source = Random(3)
    differences = [source.gauss(0.3, 1) for _ in range(14)]
    exact = sign_flip_p(differences)
    drawn = sign_flip_p([*differences, 0.0])  # a difference of nothing changes no sum
    assert drawn == pytest.approx(exact, abs=0.015)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    """Differences around 1.0, eight pairs, 100 times over: 95 % give or take what chance allows for so few."""
    source = Random(5)
    held = 0
    for number in range(100):
        second = [1.0 + source.gauss(0, 0.5) for _ in range(8)]
        difference = paired_difference([0.0] * 8, second, seed=number)
        held += difference.low <= 1.0 <= difference.high
    assert 90 <= held <= 99


def test_one_pair_has_no_interval_and_none_is_an_error():
    single = paired_difference([1.0], [3.0])
    assert (single.mean, single.low, single.high, single.p) == (2.0, float("-inf"), float("inf"), 1.0)
    with pytest.raises(ValueError, match="no pair"):
        paired_difference([], [])


def test_looks_that_cannot_decide_are_refused():
    assert Looks.plan(6, None) == Looks((6,))
    assert Looks.plan(8, 12).level == 0.025
    with pytest.raises(ValueError, match=r"5 pairs cannot reach p <= 0.05.*at least 6"):
        Looks.plan(5, None)
    with pytest.raises(ValueError, match=r"6 pairs cannot reach p <= 0.025.*at least 7"):
        Looks.plan(6, 12)


def test_two_looks_together_err_in_at_most_one_of_twenty():
    source = Random(11)
    looks = Looks.plan(8, 12)
    wrong = 0
    for _ in range(400):
        differences = [source.gauss(0, 1) for _ in range(12)]
        wrong += any(sign_flip_p(differences[:count]) <= looks.level for count in looks.at)
    assert wrong / 400 <= 0.06


@given(st.integers(1, 40), st.integers(0, 1000))
def test_orders_are_balanced_and_seeded(pairs, seed):
    order = block_order(pairs, seed)
    assert len(order) == pairs
    assert abs(order.count(("A", "B")) - order.count(("B", "A"))) <= 1
    assert order == block_order(pairs, seed)


def test_orders_are_not_a_fixed_alternation():
    assert any(before == after for before, after in pairwise(block_order(12, 1)))
