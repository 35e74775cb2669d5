"""Charts, bars and lines: shapes that are exact whatever they are given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.style import Style

from dashboard.draw.bars import block_bar, waterfall
from dashboard.draw.chart import AXIS_WIDTH, Band, Series, chart, dot_columns, nice_ceiling, stacked
from dashboard.draw.figures import age, compact
from dashboard.draw.spans import Span, clip, fit, narrow, plain, rule, text_width, wrap
from dashboard.draw.steps import device_time, durations, pointer
from dashboard.model.summary import PartView
from dashboard.theme import ROLES, style
from diagnose.units import seconds
from tests.builders import make_steps, with_prefill

VALUES = st.lists(st.none() | st.floats(0, 1e9), max_size=200)
SIZES = st.tuples(st.integers(1, 160), st.integers(1, 30))


class TestChart:
    @given(VALUES, SIZES)
    def test_fills_its_size(self, values, size):
        width, height = size
        lines = chart([Series(values, "p99")], width, height, seconds)
        if width > AXIS_WIDTH:
            assert [text_width(line) for line in lines] == [width] * height

    def test_a_rising_line_rises(self):
        width, height = AXIS_WIDTH + 4, 2
        lines = chart([Series([0, 1, 2, 3, 4, 5, 6, 7], "p50")], width, height, compact, top=7.0)
        assert [plain(line) for line in lines] == ["     7   ⣠⠞", "     0 ⣠⠞⠁ "]

    def test_gaps_stay_open(self):
        values = [1.0] * 4 + [None] * 8 + [1.0] * 4
        line = plain(chart([Series(values, "p50")], AXIS_WIDTH + 8, 1, compact, top=1.0)[0])[AXIS_WIDTH:]
        assert line[2:6] == "    "
        assert line[0] != " " and line[-1] != " "

    def test_the_baseline_is_a_band_behind_the_line(self):
        lines = chart([Series([], "p50")], AXIS_WIDTH + 4, 4, compact, band=Band(1.1, 2.9), top=4.0)
        assert ["band" in {span.role for span in line} for line in lines] == [False, True, True, False]

    @given(st.floats(1e-9, 1e12))
    def test_the_scale_holds_the_value_and_is_a_round_number(self, value: float):
        ceiling = nice_ceiling(value)
        assert value <= ceiling * (1 + 1e-9)
        assert ceiling <= value * 10

    @given(st.lists(VALUES, min_size=1, max_size=4), SIZES)
    def test_stacks_fill_their_size(self, columns, size):
        width, height = size
        length = min(len(column) for column in columns)
        parts = [Series(column[:length], "decode") for column in columns]
        lines = stacked(parts, width, height, compact)
        if width > AXIS_WIDTH:
            assert [text_width(line) for line in lines] == [width] * height

    def test_a_small_part_below_a_large_one_is_not_lost(self):
        """54 active of 600 blocks are less than a line: an eighth block on the other's ground shows them."""
        line = stacked([Series([54.0], "active"), Series([546.0], "free")], AXIS_WIDTH + 1, 6, compact)[-1]
        assert line[-1] == Span("▄", "active|free")

    def test_dot_columns_are_two_a_cell(self):
        assert dot_columns(AXIS_WIDTH + 10) == 20


class TestBars:
    @given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(3, 120))
    def test_the_pool_fills_the_bar_and_hides_nothing(self, active, reclaimable, free, width):
        text = plain(block_bar(active, reclaimable, free, width))
        assert len(text) == width
        if active + reclaimable + free > 0:
            for amount, glyph in ((active, "█"), (reclaimable, "▒"), (free, "░")):
                assert (glyph in text) == (amount > 0)

    def test_the_waterfall_goes_on_where_the_part_before_ended(self):
        parts = [PartView("decode (floor)", 1.0, 0.25), PartView("co-scheduled prefill", 3.0, 0.75)]
        lines = [plain(line) for line in waterfall(parts, 4.0, 80, 2)]
        assert lines[0].rindex("█") + 1 == lines[1].index("█")


class TestSpans:
    @given(st.text(max_size=80), st.integers(0, 60))
    def test_fit_is_exact(self, text: str, width: int):
        assert text_width(fit([Span(narrow(text))], width)) == width

    @given(st.text(max_size=200), st.integers(4, 60), st.integers(1, 4))
    def test_wrapped_lines_stay_within(self, text: str, width: int, most: int):
        lines = wrap(text, width, most)
        assert 1 <= len(lines) <= most
        assert all(text_width(line) <= width for line in lines)

    def test_what_is_cut_off_ends_in_an_ellipsis(self):
        assert plain(clip([Span("abc"), Span("defg")], 5)) == "abcd…"

    def test_a_target_cannot_steer_the_terminal(self):
        assert narrow("a\x1b[2Jb\n\u202e界") == "a?[2Jb???"

    @given(st.text(max_size=30), st.text(max_size=60), st.integers(1, 120))
    def test_rules_fill_their_width(self, title: str, note: str, width: int):
        assert text_width(rule(title, width, note)) == width


class TestSteps:
    def test_one_column_a_step_newest_on_the_right(self):
        records = make_steps(10, with_prefill(5, 512))
        line = durations(records, AXIS_WIDTH + 12, 4)[-1]
        assert plain(line)[AXIS_WIDTH : AXIS_WIDTH + 2] == "  "
        roles = [span.role for span in line if span.role in ("decode", "mixed") for _ in span.text]
        assert roles == [str(record.kind) for record in records]

    def test_the_pointer_is_under_its_step(self):
        records = make_steps(10)
        width = AXIS_WIDTH + 30
        assert plain(pointer(records, 3, width)).index("^") == width - 10 + 3

    def test_steps_without_device_time_draw_nothing(self):
        records = [record._replace(device_ns=None) for record in make_steps(5)]
        assert plain(device_time(records, 40, 3)[1]).strip() == ""


@pytest.mark.parametrize("theme", ROLES)
def test_every_role_of_every_theme_is_a_style(theme: str):
    for role in ROLES[theme]:
        assert isinstance(style(theme, role), Style)


def test_the_theme_without_colours_has_none():
    assert all(style("stallscope-mono", role).color is None for role in ROLES["stallscope-dark"])


@pytest.mark.parametrize(
    ("value", "text"), [(0.42, "0.4s"), (42, "42s"), (190, "3m 10s"), (7500, "2h 05m"), (273600, "3d 4h")]
)
def test_ages(value: float, text: str):
    assert age(value) == text
