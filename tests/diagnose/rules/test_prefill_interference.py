"""Each condition of prefill_interference on counters, histograms and logs, from both sides."""

from dataclasses import replace
from typing import Any

import pytest

from diagnose.hypotheses.prefill_interference import PrefillInterference
from diagnose.load import LoadPoint
from diagnose.signals import Signals
from probes.records import StepKind
from tests.builders import make_signals
from tests.diagnose.rules.alone import judged, says
from tests.probes.records import make_record

RULE = PrefillInterference()


def prompts(count: float | None = 0, *, late: bool = False, decoded: float | None = None, **fields: Any) -> Signals:
    named = {"tokens_prefill": count, "tokens_decode": decoded}
    signals = make_signals(counters={name: n for name, n in named.items() if n is not None}, **fields)
    if late:
        signals.counters["tokens_prefill"] = replace(signals.counters["tokens_prefill"], late=True)
    return signals


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (prompts(None), "undetermined ?prompt"),
        (prompts(None, gauges={"prefill_run_seconds": 2}), "undetermined ?prompt"),
        (prompts(None, gauges={"prefill_run_steps": 3}), "undetermined ?prompt"),
        (prompts(None, gauges={"prefill_run_seconds": (1, 2), "prefill_run_steps": 3}), "undetermined +2 ?many"),
        (prompts(0), "refuted -0"),
        (prompts(1), "undetermined .1 ?step"),
        (prompts(0, late=True), "undetermined .0 ?prompt"),
        (prompts(0, late=True, gauges={"running": (0, 1)}), "undetermined .0 ?prompt"),
        (prompts(0, late=True, gauges={"running": 0}), "refuted -0"),
        (prompts(0, gauges={"running": 1}), "refuted -0"),
        (prompts(1, late=True), "undetermined .1 ?step"),
    ],
)
def test_whether_any_prompt_was_computed(signals, expected):
    assert says(RULE, signals) == expected


@pytest.mark.parametrize(
    ("usage", "tokens", "generated", "filled"),
    [
        ((0.25, 0.5), 4000, 499, " +1000"),
        ((0.25, 0.5), 4000, 500, ""),  # half of it may be what was generated
        ((0.25, 0.5), 3996, 0, ""),
        ((0.25, 0.375, 0.5), 4000, 0, " +1000"),
        ((0.25, 0.5, 0.25), 4000, 0, ""),
        (None, 4000, 0, ""),
        ((0.25, 0.5), None, 0, ""),
        ((0.25, 0.5), 4000, None, ""),
    ],
)
def test_a_pool_that_fills_beyond_what_is_generated_shows_a_prompt(usage, tokens, generated, filled):
    levels = {"pool_usage": usage, "pool_tokens": tokens}
    gauges = {name: level for name, level in levels.items() if level is not None}
    assert says(RULE, prompts(0, late=True, decoded=generated, gauges=gauges)) == f"undetermined .0{filled} ?prompt"


def decode(tokens: int | None = 0, kind: StepKind = StepKind.DECODE) -> Any:
    return make_record(prefill_tokens=tokens, kind=kind)


@pytest.mark.parametrize(
    ("steps", "expected", "at_least"),
    [
        ((decode(), decode()), "refuted -0", False),
        ((decode(), decode(7, StepKind.MIXED)), "undetermined .7 ?step", False),
        ((decode(), decode(None, StepKind.MIXED)), "undetermined .1 ?step", True),
        ((decode(None), decode(7, StepKind.PREFILL)), "undetermined .7 ?step", True),
        ((decode(None, StepKind.PREFILL), decode(None, StepKind.MIXED)), "undetermined .2 ?step", True),
        ((decode(None),), "refuted -0", False),
    ],
)
def test_without_a_counter_the_steps_say_how_many_prompt_tokens_at_least(steps, expected, at_least):
    signals = prompts(None, steps=steps, steps_source="a trace")
    assert says(RULE, signals) == expected
    first = judged(RULE, signals).evidence[0]
    assert first.text.startswith("at least ") == at_least
    if first.value:
        assert first.source == "a trace"


def test_a_counter_is_exact_whatever_the_steps_leave_out():
    first = judged(RULE, prompts(9, steps=(decode(None),), steps_source="a trace")).evidence[0]
    assert first.text == "9 prompt tokens were computed in the window"
    assert first.source == "x_tokens_prefill"


def durations(
    mixed: float | None, decodes: float | None, stalled: float | None = None, *, counts: tuple[int, int] = (5, 10)
) -> Signals:
    """Means of so many mixed and pure decode steps."""
    named = {"step_mixed": (mixed, counts[0]), "step_decode": (decodes, counts[1])}
    counters = {"tokens_prefill": 1.0} | ({} if stalled is None else {"stall_prefill_seconds": stalled})
    histograms = {name: {mean: count} for name, (mean, count) in named.items() if mean is not None}
    return make_signals(counters=counters, histograms=histograms)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        # 5 steps of 1.5 s and 10 of 1 s: 17.5 s.
        (durations(1.5, 1.0, 1.75), "supported .1 +1.5 +0.1 =0.1"),
        (durations(1.5, 1.0, 1.7), "refuted .1 +1.5 -0.09714 =0.09714"),
        (durations(1.5, 1.0), "undetermined .1 +1.5 ?step"),
        (durations(1.4375, 1.0, 8.0), "undetermined .1 -1.438 +0.4655 ?step"),
        (durations(1.125, 1.0, 8.0), "undetermined .1 -1.125 +0.512 ?step"),
        (durations(1.125, 1.0, 0.0), "refuted .1 -1.125 -0 =0"),
        (durations(1.1, 1.0, 8.0), "refuted .1 -1.1 +0.5161 =0.5161"),
        (durations(1.1, 1.0), "refuted .1 -1.1"),
        (durations(1.125, 1.0), "undetermined .1 -1.125 ?step"),
        (durations(3.0, 2.0, 3.5), "supported .1 +1.5 +0.1 =0.1"),
        (durations(1.5, 1.0, 1.75, counts=(4, 10)), "undetermined .1 ?step"),
        (durations(1.5, 1.0, 1.75, counts=(5, 9)), "undetermined .1 ?step"),
        (durations(1.5, 0.0, 1.75), "undetermined .1 ?step"),
        (durations(None, 1.0, 1.75), "undetermined .1 ?step"),
        (durations(1.5, None, 1.75), "undetermined .1 ?step"),
    ],
)
def test_durations_of_mixed_and_of_decode_steps(signals, expected):
    assert says(RULE, signals) == expected


@pytest.mark.parametrize(
    ("signals", "found"),
    [
        (durations(1.5, 1.0, counts=(4, 9)), "4 mixed and 9 decode steps"),
        (durations(None, 1.0), "none"),
        (durations(1.5, None), "none"),
    ],
)
def test_what_was_found_of_both_kinds_is_told(signals, found):
    assert f"(found: {found})" in judged(RULE, signals).missing[0].measurement


def lines(mixed: float, without: float = 60.0, count: int = 5, chunks: int = 1, **fields: Any) -> Signals:
    """`count` lines of decodes with prefills since the one before, and as many without: tokens per second of one stream."""
    prefill = LoadPoint(0, prefill_tokens=500, streams=1)
    points = [LoadPoint(0, 1, 0, decode_tokens_per_second=without)] * (count + 1)
    for _ in range(count):
        points += [*[prefill] * chunks, LoadPoint(0, 1, 0, decode_tokens_per_second=mixed)]
    return prompts(1, load=tuple(points), **fields)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (lines(40.0), "supported .1 +1.5 =0.2"),
        (lines(41.0), "undetermined .1 -1.463 ?step"),
        (lines(54.0), "undetermined .1 -1.111 ?step"),
        (lines(55.0), "refuted .1 -1.091 =0.04348"),
        (lines(120.0), "refuted .1 -0.5 =0"),
        (lines(40.0, count=4), "undetermined .1 ?step"),
        (lines(40.0, count=4, chunks=2), "undetermined .1 ?step"),
        (prompts(1, load=lines(40.0).load[:-2]), "undetermined .1 ?step"),
    ],
)
def test_lines_of_a_log_with_prefills_between_them_and_without(signals, expected):
    assert says(RULE, signals) == expected


def test_one_slow_interval_among_many_is_no_share_of_the_time():
    """Slow where a prefill came between two lines, and such intervals are few."""
    usual = [LoadPoint(0, 1, 0, decode_tokens_per_second=60.0)] * 100
    slow = [LoadPoint(0, prefill_tokens=500, streams=1)] * 5 + [LoadPoint(0, 1, 0, decode_tokens_per_second=30.0)]
    assert says(RULE, prompts(1, load=(*usual, *slow))) == "undetermined .1 +2 ?step"


def test_a_log_is_asked_where_histograms_have_too_few_mixed_steps_only():
    logged = lines(40.0)
    logged.histograms = durations(1.5, 1.0, counts=(4, 10)).histograms
    assert says(RULE, logged) == "supported .1 +1.5 =0.2"
    logged.histograms = durations(1.1, 1.0).histograms
    assert says(RULE, logged) == "refuted .1 -1.1"
    logged.histograms = durations(1.1, 1.0, counts=(5, 9)).histograms
    assert says(RULE, logged) == "undetermined .1 ?step"
