"""Two windows are compared only where their conditions match, and never say more than a direction."""

import pytest

from diagnose.bootstrap import GapBlocks, Interval
from diagnose.case import make_window
from diagnose.comparison import Comparability, Comparison, Row, Shift, compare
from diagnose.conditions import arrivals
from diagnose.policy import DEFAULT_POLICY
from diagnose.report.comparison_table import comparison_lines
from diagnose.signals import Signals
from diagnose.stats import Bounds, weighted_quantile
from diagnose.verdict import Verdict
from probes.records import StepRecord
from tests.diagnose.windows import step_records, window
from tests.requirements import covers


def rows_of(comparison: Comparison) -> dict[str, Row]:
    return {row.name: row for row in comparison.rows}


def difference_of(row: Row) -> Bounds:
    assert row.difference is not None
    return row.difference


def interval_of(row: Row) -> Interval:
    assert row.interval is not None
    return row.interval


SLOW = step_records(stall_ms=600)
FAST = step_records(stall_ms=150)
NAMES = ["ITL p50", "ITL p95", "ITL p99", "TTFT p50", "TTFT p95", "stall share"]


@covers("S5.9")
def test_matched_windows_give_differences_with_intervals():
    found = compare(window(steps=SLOW), window(steps=FAST, budget=(128,)))
    assert found.verdict is Comparability.COMPARABLE
    assert found.knob == "max_batched_tokens 512 -> 128"
    rows = rows_of(found)
    for name in ("ITL p50", "ITL p95", "ITL p99", "stall share"):
        difference, interval = difference_of(rows[name]), interval_of(rows[name])
        assert difference.exact
        assert interval.low <= difference.low <= interval.high, name
    assert rows["ITL p99"].shift is Shift.LOWER
    assert interval_of(rows["ITL p99"]).high < -0.4
    assert interval_of(rows["stall share"]).high < 0


@pytest.mark.parametrize(
    ("blocks", "knob"),
    [
        (("2117", "2120"), ""),
        (("1000", "980"), ""),
        (("1000", "979"), "kv_blocks 1000 -> 979"),
        (("1000", None), "kv_blocks 1000 -> unknown"),
    ],
)
def test_a_pool_that_was_sized_by_what_memory_is_left_is_no_setting(blocks, knob):
    """Nor is the address of one process, which no other can have."""
    labels = [
        {"debug_url": f"http://127.0.0.1:{port}", **({} if number is None else {"kv_blocks": number})}
        for port, number in enumerate(blocks, 9000)
    ]
    found = compare(window(info=labels[0]), window(info=labels[1]))
    assert found.knob == knob
    assert not any(mismatch.name.startswith("build") for mismatch in found.mismatches)


@covers("S2.16")
def test_ttft_and_itl_are_always_both_there():
    assert [row.name for row in compare(window(), window()).rows] == NAMES
    assert [row.name for row in compare(window(), window(info={"dtype": "bfloat16"})).rows] == NAMES


@covers("S2.16")
def test_better_itl_with_worse_ttft_is_a_trade():
    found = compare(window(steps=SLOW), window(steps=FAST, budget=(128,), ttft=(0, 0, 2, 26, 2)))
    assert rows_of(found)["TTFT p50"].shift is Shift.HIGHER
    text = " ".join(found.reading())
    assert text.startswith("Trade: ITL p99, stall share lower, TTFT p50, TTFT p95 higher.")
    assert "chance not assessed: TTFT p50, TTFT p95" in text
    assert "win" not in text.replace("window", "")


@covers("S5.9")
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"admitted": 20}, "arrival rate"),
        ({"steps": step_records(context=800)}, "context length of decodes"),
        ({"prompt": 900}, "prompt length"),
        ({"hit_rate": 0.5}, "prefix hit rate"),
        ({"info": {"dtype": "bfloat16"}}, "precision"),
        ({"info": {"version": "0.2.0"}}, "build (version)"),
        ({"info": {"model": "other"}}, "build (model)"),
        ({"info": {"weight_bytes": "1"}}, "build (weight_bytes)"),
        ({"restarted": True}, "engine process"),
        ({"budget": (512, 64)}, "max_batched_tokens"),
        ({"budget": (64,), "sequences": (8,)}, "settings"),
    ],
)
def test_a_condition_that_differs_is_named_and_refuses_the_comparison(fields, name):
    found = compare(window(), window(**fields))
    assert found.verdict is Comparability.NOT_COMPARABLE
    assert [mismatch.name for mismatch in found.mismatches] == [name]
    assert all(row.difference is None and row.interval is None for row in found.rows)
    assert name in "\n".join(found.reading())


@covers("S5.9")
@pytest.mark.parametrize("name", ["arrival rate", "context length of decodes", "prefix hit rate", "precision"])
def test_a_condition_that_was_not_measured_refuses_the_comparison(name):
    bare = Signals(dialect="stallscope", length_seconds=None, num_scrapes=2)
    found = compare(make_window(bare, DEFAULT_POLICY), window())
    assert name in [mismatch.name for mismatch in found.mismatches]
    assert any("not measured" in str(mismatch) for mismatch in found.mismatches)


@pytest.mark.parametrize(
    "fields",
    [
        {"admitted": 28},
        {"hit_rate": 0.14},
        {"prompt": 500},
        {"info": {"engine_id": "b"}},
        {"info": {"block_size": "32"}},
        {"sequences": (8,)},
    ],
)
def test_small_differences_and_one_setting_are_allowed(fields):
    assert compare(window(), window(**fields)).verdict is Comparability.COMPARABLE


@pytest.mark.parametrize(("first", "second"), [(7, 8), (8, 7), (1, 2)])
def test_one_arrival_at_a_windows_edge_is_allowed(first, second):
    """A period of six seconds puts seven or eight arrivals into 45."""
    assert compare(window(admitted=first), window(admitted=second)).verdict is Comparability.COMPARABLE


def test_arrivals_are_what_was_offered_not_what_was_served():
    """A slower server leaves ten of the same arrivals waiting."""
    assert arrivals(window(admitted=20, waiting=(0, 3, 10))) == 30
    found = compare(window(), window(admitted=20, waiting=(0, 3, 10), budget=(64,)))
    assert found.verdict is Comparability.COMPARABLE


def test_the_same_window_twice_shows_no_difference():
    found = compare(window(), window())
    assert found.knob == ""
    assert {row.shift for row in found.rows} == {Shift.NOT_SHOWN}
    assert found.reading()[:2] == [
        "No figure is shown to differ.",
        "No setting differs between the windows: whatever differs is noise.",
    ]


def test_too_few_blocks_give_no_interval_and_say_so():
    short = step_records(seconds=20)
    found = compare(window(steps=short), window(steps=short))
    assert {row.interval for row in found.rows} == {None}
    assert rows_of(found)["ITL p99"].no_interval == "4 blocks of 5 s, fewer than 6"
    assert difference_of(rows_of(found)["ITL p99"]).exact, "the difference itself is known"
    assert rows_of(found)["ITL p99"].shift is Shift.NOT_SHOWN, "without an interval, chance is not excluded"


def test_intervals_are_the_same_on_every_run_and_depend_on_the_seed():
    windows = window(steps=SLOW), window(steps=FAST)
    assert compare(*windows) == compare(*windows)
    uneven = window(steps=[*step_records(20), *shifted(step_records(20, stall_ms=600, every=20), 20)])
    assert compare(uneven, windows[1], seed=1) != compare(uneven, windows[1], seed=2)


def shifted(records: list[StepRecord], seconds: int) -> list[StepRecord]:
    """The records again, later, with new step ids."""
    offset = seconds * 1_000_000_000
    return [
        r._replace(
            step_id=r.step_id + 100_000,
            start_ns=r.start_ns + offset,
            emit_ns=r.emit_ns + offset,
            end_ns=r.end_ns + offset,
        )
        for r in records
    ]


def test_resampling_each_block_once_gives_the_windows_own_figures():
    analysis = window(steps=SLOW).analysis
    blocks = GapBlocks(analysis.gaps, 5.0, DEFAULT_POLICY.slow_gap_factor)
    once = [1] * blocks.num_blocks
    values, weights = [gap.seconds for gap in analysis.gaps], [gap.tokens for gap in analysis.gaps]
    assert blocks.quantiles([0.5, 0.95, 0.99], once) == [
        weighted_quantile(values, weights, q) for q in (0.5, 0.95, 0.99)
    ]
    assert blocks.stall_share(once) == pytest.approx(analysis.stall_share(DEFAULT_POLICY.slow_gap_factor))


def test_histogram_buckets_give_a_range_and_no_interval():
    ttft = rows_of(compare(window(), window(ttft=(0, 0, 30, 0, 0))))["TTFT p50"]
    assert difference_of(ttft).low == 0.0
    assert difference_of(ttft).high == pytest.approx(0.3)
    assert ttft.shift is Shift.HIGHER, "values of (0.2, 0.4] are above values of (0.1, 0.2]"
    assert ttft.no_interval == "a histogram has no blocks to draw from"


def test_unbounded_buckets_leave_no_difference():
    ttft = rows_of(compare(window(ttft=(0, 0, 0, 0, 30)), window(ttft=(0, 0, 0, 0, 30))))["TTFT p50"]
    assert (ttft.difference, ttft.shift) == (None, Shift.NOT_SHOWN)


@covers("S5.10")
def test_no_pair_of_windows_confirms():
    found = compare(window(steps=SLOW), window(steps=FAST, budget=(128,)))
    assert Verdict.CONFIRMED.value not in {verdict.value for verdict in Comparability}
    assert "confirms nothing" in " ".join(found.reading())


def test_table_of_a_comparable_pair():
    lines = comparison_lines(compare(window(steps=SLOW), window(steps=FAST, budget=(128,))), "budget 512", "budget 128")
    assert len(lines) == 1 + len(NAMES) + 1
    p99 = next(line for line in lines if line.startswith("ITL p99"))
    assert p99.split()[2:6] == ["601", "ms", "151", "ms"]
    assert p99.split()[6].startswith("-"), "a signed difference"
    assert lines[-1] == "- no interval: a histogram has no blocks to draw from"


def test_table_of_a_pair_that_is_not_comparable():
    lines = comparison_lines(compare(window(), window(admitted=60)), "a", "b")
    assert all(line.endswith("-") for line in lines[1 : 1 + len(NAMES)])
    assert lines[-1] == "- no interval: the windows are not comparable"
