"""The measure itself: cases are what they say, masks hide what they say, scores count what they say."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.account import Account
from diagnose.diagnosis import Diagnosis
from tests.accuracy.accounts import TrueGap, check_account
from tests.accuracy.cases import cached_case
from tests.accuracy.conditions import CONDITIONS, PAIRS
from tests.accuracy.report import put_section, render
from tests.accuracy.rivals import rival_answers
from tests.accuracy.score import Answer, abstention_precision, answer_of, per_condition, rate, wilson
from tests.accuracy.shapes import SHAPES
from tests.accuracy.windows import Case, Truth, View, is_held_out, make_case, plan
from tests.builders import build_signals


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
    assert len(cases) == 333
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


def test_a_recording_gives_the_answer_of_the_live_view(interference: Case):
    live, replayed = (
        answer_of(interference, view, interference.diagnose(view)) for view in (View.RECORDS, View.RECORDING)
    )
    assert (replayed.primary, replayed.supported) == (live.primary, live.supported)
    assert interference.diagnose(View.RECORDING).case.is_live is False


def test_a_log_with_a_line_per_step_shows_interference_and_one_without_abstains(interference: Case):
    with_steps = answer_of(interference, View.LOG_STEPS, interference.diagnose(View.LOG_STEPS))
    assert with_steps.primary == "prefill_interference" and with_steps.is_right
    without_steps = answer_of(interference, View.LOG, interference.diagnose(View.LOG))
    assert without_steps.primary is None and without_steps.is_honest and not without_steps.is_right


def test_the_same_server_speaks_as_vllm(interference: Case):
    incident, _ = interference.observations(View.VLLM)
    ours, _ = interference.observations(View.RECORDS)
    theirs, own = build_signals(incident), build_signals(ours)
    assert theirs.dialect == "vllm"
    for name in ("tokens_decode", "prefix_query_tokens"):
        assert theirs.delta(name) == own.delta(name)
    gaps = [build_signals(seen).histograms["inter_token_latency"] for seen in (incident, ours)]
    assert gaps[0].count == pytest.approx(gaps[1].count, rel=0.01)
    assert gaps[0].mean == pytest.approx(gaps[1].mean, rel=0.02)


def test_the_truth_of_a_gap_adds_up_to_it_and_the_account_is_held_against_it(interference: Case):
    assert interference.incident.gaps
    for gap in interference.incident.gaps:
        assert sum(gap.parts) == pytest.approx(gap.seconds, rel=1e-6)
    checks = {check.quantile: check for check in interference.account_checks(interference.diagnose(View.RECORDS))}
    assert set(checks) == {"p50", "p99"}
    tail = checks["p99"]
    assert tail.part == "prefill" and tail.true_seconds > 0.3 * tail.true_total
    assert tail.error < 0.1 and tail.misplaced < 0.1


def test_an_account_that_puts_time_elsewhere_is_off_by_that_much():
    gaps = [TrueGap(0.02, 5, (0.01, 0.01, 0.0, 0.0, 0.0, 0.0, 0.0))]
    said = Account(0.02, {"decode_floor": 0.015, "prefill": 0.005}, "fitted", 0.02, 5)
    check = check_account("p99", said, gaps, "prefill")
    assert check is not None and check.within is None
    assert (check.true_seconds, check.said_seconds) == (0.01, 0.005)
    assert check.error == pytest.approx(0.25) and check.misplaced == pytest.approx(0.25)
    assert check_account("p99", said, [], "prefill") is None


def test_time_to_the_answer_is_counted_from_the_onset():
    failure = make_case(("hard_failure",), "small", 0)
    assert failure.seconds_to(View.SCRAPE, lambda diagnosis: diagnosis.primary == "hard_failure") == pytest.approx(3.0)


def test_an_answer_that_comes_early_and_stays_is_early(interference: Case):
    seen: list[float | None] = []

    def from_the_second_look(diagnosis: Diagnosis) -> bool:
        seen.append(diagnosis.case.signals.length_seconds)
        return (seen[-1] or 0.0) > 4.0

    assert interference.seconds_to(View.SCRAPE, from_the_second_look) == pytest.approx(7.0)
    assert seen == [pytest.approx(10.5), pytest.approx(7.0), pytest.approx(3.5)]


def test_a_section_takes_the_place_of_the_last_one_of_its_title(tmp_path: Path):
    path = tmp_path / "table.md"
    put_section(path, "# Cases: 3\n\nold\n")
    put_section(path, "# Drills\n\nreal\n")
    put_section(path, "# Cases: 300\n\n## Part\n\nnew\n")
    assert path.read_text() == "# Cases: 300\n\n## Part\n\nnew\n\n# Drills\n\nreal\n"


def test_a_kept_case_is_judged_as_the_one_that_was_made(tmp_path: Path, leak: Case):
    what = (("kv_leak",), "small", 0)
    made, kept = cached_case(tmp_path, what), cached_case(tmp_path, what)
    assert kept.incident.steps == made.incident.steps == leak.incident.steps
    assert kept.diagnose(View.RECORDS).primary == "kv_leak"
