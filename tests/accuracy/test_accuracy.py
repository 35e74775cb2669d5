"""The measure itself: cases are what they say, masks hide what they say, scores count what they say."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.accuracy.conditions import CONDITIONS, PAIRS
from tests.accuracy.report import render
from tests.accuracy.rivals import rival_answers
from tests.accuracy.score import Answer, abstention_precision, answer_of, per_condition, rate, wilson
from tests.accuracy.shapes import SHAPES
from tests.accuracy.windows import Case, Truth, View, is_held_out, make_case, plan


@pytest.fixture(scope="module")
def interference() -> Case:
    return make_case(("prefill_interference",), "small", 0)


@pytest.fixture(scope="module")
def leak() -> Case:
    return make_case(("kv_leak",), "small", 0)


def test_the_same_seed_makes_the_same_windows(leak: Case):
    again = make_case(("kv_leak",), "small", 0)
    assert again.incident.steps == leak.incident.steps
    assert again.quiet.steps == leak.quiet.steps
    assert again.quiet.clients == leak.quiet.clients
    assert make_case(("kv_leak",), "small", 1).quiet.steps != leak.quiet.steps


def test_an_induced_condition_is_named_and_counted_as_right(interference: Case):
    assert interference.moved
    answer = answer_of(interference, View.RECORDS, interference.diagnose(View.RECORDS))
    assert answer.primary == "prefill_interference"
    assert answer.is_right and not answer.is_wrong_and_confident and not answer.false_supported


def test_a_masked_twin_lacks_its_signal_and_its_verdict(interference: Case):
    incident, baseline = interference.observations(View.MASKED)
    assert not incident.steps and baseline is not None and not baseline.steps
    names = {name for scrape in incident.scrapes for name in scrape.page.samples}
    assert names
    assert not {name for name in names if "step_duration" in name or "stall_seconds" in name}
    answer = answer_of(interference, View.MASKED, interference.diagnose(View.MASKED))
    assert answer.undetermined and answer.is_right


def test_scrapes_alone_hold_no_records(interference: Case):
    incident, baseline = interference.observations(View.SCRAPE)
    assert not incident.steps and baseline is not None and not baseline.steps
    assert interference.observations(View.NO_BASELINE)[1] is None


def test_without_a_symptom_nothing_is_to_be_named(interference: Case):
    unmoved = replace(interference, moved=False)
    assert unmoved.truth(View.RECORDS).primary == frozenset()
    assert View.MASKED not in unmoved.views
    answer = answer_of(unmoved, View.RECORDS, unmoved.diagnose(View.RECORDS))
    assert answer.is_wrong_and_confident and not answer.is_right


def test_rivals_answer_every_case(leak: Case):
    answers = rival_answers(leak)
    assert {answer.tool for answer in answers} == {"naive thresholds", "largest relative change"}


def test_the_plan_is_of_every_condition_with_a_tenth_of_pairs():
    cases = plan(5)
    assert len(cases) == 300
    assert {names for names, _, _ in cases if len(names) == 1} == {(name,) for name in CONDITIONS}
    pairs = [names for names, _, _ in cases if len(names) == 2]
    assert len(pairs) == 30 and set(pairs) == set(PAIRS)
    assert {shape for _, shape, _ in cases} == set(SHAPES)
    assert sum(is_held_out(shape, seed) for _, shape, seed in cases) >= len(cases) / 3


def an_answer(primary: str | None, right: set[str], supported: set[str], allowed: set[str]) -> Answer:
    truth = Truth(frozenset(right), frozenset(), frozenset(allowed))
    return Answer("t", "a", "small", 0, False, View.RECORDS, True, primary, frozenset(supported), truth, False)


def test_scores_tell_a_wrong_name_from_an_abstention():
    right = an_answer("a", {"a"}, {"a"}, {"a"})
    wrong = an_answer("b", {"a"}, {"b"}, {"a"})
    silent = an_answer(None, {"a"}, set(), {"a"})
    calm = an_answer(None, set(), set(), set())
    answers = [right, wrong, silent, calm]
    assert [a.is_right for a in answers] == [True, False, False, True]
    assert [a.is_wrong_and_confident for a in answers] == [False, True, False, False]
    assert [sorted(a.false_supported) for a in answers] == [[], ["b"], [], []]
    assert abstention_precision(answers) == (1, 2)
    assert rate(answers, lambda a: a.is_right) == (2, 4)
    scores = {s.name: s for s in per_condition(answers)}
    assert scores["a"].precision == (1, 1) and scores["a"].recall == (1, 3)
    assert scores["b"].precision == (0, 1)
    assert "| t | scrape + records | 50.0 % (2/4" in render(answers, "# t")


@given(st.integers(1, 400), st.data())
def test_wilson_holds_its_share_and_stays_a_share(total: int, data: st.DataObject):
    hits = data.draw(st.integers(0, total))
    low, high = wilson(hits, total)
    assert 0 <= low <= hits / total + 1e-12 and hits / total - 1e-12 <= high <= 1
    assert high > low


def test_wilson_is_no_point_at_nought():
    assert wilson(0, 100) == pytest.approx((0.0, 0.037), abs=1e-3)
