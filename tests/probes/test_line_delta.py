"""The difference of two pages gives the second one back, whatever they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.line_delta import apply_delta, encode_delta

WORDS = st.sampled_from(["", "a", "b{x='1'}", "=3", "~", "+", "@1", "ü", " "])
LINES = st.lists(st.builds(" ".join, st.lists(WORDS, max_size=3)), max_size=12).map("\n".join)


@given(LINES, LINES)
def test_round_trip(old: str, new: str):
    assert apply_delta(old, encode_delta(old, new)) == new


@given(st.text(), st.text())
def test_round_trip_of_any_text(old: str, new: str):
    assert apply_delta(old, encode_delta(old, new)) == new


def page(*values: int) -> str:
    return "".join(f'metric{{label="{index}"}} {value}\n' for index, value in enumerate(values))


def test_an_equal_page_is_one_operation():
    assert encode_delta(page(1, 2, 3), page(1, 2, 3)) == "=4"


def test_a_changed_value_costs_the_value():
    assert encode_delta(page(1, 2, 3), page(1, 7, 3)) == "=1\n~7\n=2"


def test_series_that_come_and_go_do_not_undo_the_rest():
    three, two = page(1, 2, 3), page(1, 2, 3).replace('metric{label="1"} 2\n', "")
    assert encode_delta(three, two) == "=1\n@2\n~3\n=1"
    assert encode_delta(two, three) == '=1\n+metric{label="1"} 2\n=2'


@pytest.mark.parametrize("delta", ["=3", "=0", "=-1", "=x", "@9", "@-1", "~1\n~2\n~3", "?", ""])
def test_what_does_not_fit_is_an_error(delta: str):
    with pytest.raises(ValueError):
        apply_delta("a 1\nb 2", delta)
