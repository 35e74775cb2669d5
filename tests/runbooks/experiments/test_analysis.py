"""From blocks to a verdict: what confirms, refutes, is not shown, and is not comparable."""

from dataclasses import replace

import pytest

from runbooks.experiments.analysis import Outcome, Question, analyse
from runbooks.experiments.figures import Answer
from tests.requirements import covers
from tests.runbooks.experiments.blocks import make_block, make_pairs


def test_a_moved_symptom_confirms():
    result = analyse(make_pairs(), Question(hypothesis="prefill_interference"))
    assert result.outcome is Outcome.CONFIRMED
    assert result.reading[0].startswith("Confirmed for this target under this load: ITL p99 ")
    assert "p = 0.0312, 6 pairs" in result.reading[0]
    assert result.reading[1] == "No other figure is shown to differ."


@covers("S2.16")
def test_the_price_is_told_beside_the_gain():
    blocks = make_pairs(figures={"ttft_p50": 0.6})
    reading = analyse(blocks, Question()).reading
    assert "The price in arm B: TTFT p50 400 ms -> 600 ms, +200 ms" in reading[1]


def test_moving_the_other_way_refutes():
    result = analyse(make_pairs(first=0.2, second=0.4), Question())
    assert result.outcome is Outcome.REFUTED
    assert "the other way" in result.reading[0]
    assert analyse(make_pairs(first=0.2, second=0.4), Question(expect_better=False)).outcome is Outcome.CONFIRMED


def test_a_throughput_betters_upwards():
    blocks = make_pairs(first=0.3, second=0.3, noise=0.001, figures={"throughput": 90.0})
    assert analyse(blocks, Question("throughput")).outcome is Outcome.CONFIRMED


def test_a_knob_that_matters_not_is_refuted_with_its_interval():
    result = analyse(make_pairs(first=0.4, second=0.401, noise=0.004), Question(matters=0.1))
    assert result.outcome is Outcome.REFUTED
    assert "no effect of 10 % of arm A or more" in result.reading[0]
    assert "[" in result.reading[0]


def test_a_wide_interval_shows_nothing():
    result = analyse(make_pairs(first=0.4, second=0.36, noise=0.15, seed=4), Question())
    assert result.outcome is Outcome.NOT_SHOWN
    assert "More pairs" in result.reading[0]


def test_nothing_below_the_noise_floor_is_an_effect():
    blocks = make_pairs(first=0.40, second=0.36, noise=0.002)
    assert analyse(blocks, Question()).outcome is Outcome.CONFIRMED
    floored = analyse(blocks, Question(matters=0.05), noise=0.05)
    assert floored.outcome is Outcome.NOT_SHOWN
    assert "below the noise floor of 50 ms" in floored.reading[0]


def test_the_same_arms_give_a_noise_floor():
    result = analyse(make_pairs(first=0.4, second=0.4), Question(same_arms=True))
    assert result.outcome is Outcome.NOISE_FLOOR
    assert "ITL p99" in result.reading[0]


@pytest.mark.parametrize("level", [0.05, 0.025])
def test_the_level_is_that_of_the_look(level):
    """Six pairs reach p = 0.031: enough for a single look, not for the first of two."""
    outcome = analyse(make_pairs(), Question(), level=level).outcome
    assert outcome is (Outcome.CONFIRMED if level == 0.05 else Outcome.NOT_SHOWN)


@covers("S5.9")
@pytest.mark.parametrize(
    ("of_second", "named"),
    [
        ({"arrivals_per_second": 1.5}, "arrival rate: 2/s in arm A, 1.5/s in arm B"),
        ({"answers": (Answer(300, 60, 0),) * 4}, "prompt length: 200 tokens in arm A, 300 tokens in arm B"),
        ({"answers": (Answer(200, 20, 0),) * 4}, "output length"),
        ({"answers": (Answer(200, 60, 60),) * 4}, "prefix hit rate: 0 % in arm A, 30 % in arm B"),
        ({"error_rate": 0.1, "first_error": "HTTP 503"}, "failed requests: 0 % in arm A, 10 % in arm B (HTTP 503)"),
        ({"others": 0.4}, "traffic of others: 0 % of what was served in arm A, 40 % in arm B"),
        ({"late_sends": 20}, "120 of 360 requests of arm B were sent late"),
        ({"lag_p99": 0.04}, "event loop is 40 ms late at p99 in arm B"),
        ({"speed": 700.0}, "machine speed: index 1000 before arm A's blocks, 700"),
    ],
)
def test_unmatched_conditions_give_no_difference(of_second, named):
    result = analyse(make_pairs(**of_second), Question())
    assert result.outcome is Outcome.NOT_COMPARABLE
    assert len(result.mismatches) == 1
    assert named in result.mismatches[0]
    assert "no difference is given" in result.reading[0]


def test_what_a_server_does_not_count_is_no_mismatch():
    blocks = make_pairs(answers=(Answer(200, None, None), None, None, None), others=None)
    assert analyse(blocks, Question()).outcome is Outcome.CONFIRMED


def test_a_slow_arm_that_answers_another_mix_met_the_same_conditions():
    """Arm A was too slow for its long prompts: of what both answered, nothing differs."""
    long, short = Answer(900, 2, 0), Answer(20, 80, 0)
    mixed = [replace(block, conditions=replace(block.conditions, answers=(short, long if block.arm == "B" else None)))
             for block in make_pairs()]  # fmt: skip
    assert analyse(mixed, Question()).outcome is Outcome.CONFIRMED
    none = [replace(block, conditions=replace(block.conditions, answers=(None, None))) for block in make_pairs()]
    assert analyse(none, Question()).outcome is Outcome.CONFIRMED, "what nobody counted is no mismatch"


def test_half_a_pair_does_not_count():
    blocks = [*make_pairs(), make_block(6, "A", 9.0)]
    result = analyse(blocks, Question())
    assert (result.pairs, result.outcome) == (6, Outcome.CONFIRMED)
    assert result.rows[1].first < 1
    assert analyse(blocks[:1], Question()).outcome is Outcome.INCOMPLETE
    assert analyse(make_pairs(1), Question()).outcome is Outcome.INCOMPLETE
