"""Each condition of preemption_storm, from both sides."""

from dataclasses import replace
from typing import Any

import pytest

from diagnose.hypotheses.preemption_storm import PreemptionStorm
from diagnose.signals import Signals
from tests.builders import make_signals
from tests.diagnose.rules.alone import events, excess, pool, says

RULE = PreemptionStorm()
OPEN = "?finished"


def preempted(count: float, *, late: bool = False, gauges: Any = None, **counters: float) -> Signals:
    signals = make_signals(counters={"preemptions": count, **counters}, gauges=gauges)
    signals.counters["preemptions"] = replace(signals.counters["preemptions"], late=late)
    return signals


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (make_signals(), "undetermined ?preemptions"),
        (preempted(0), "refuted -0"),
        (preempted(2, requests_finished=10), "supported +2"),
        (preempted(2, requests_finished=11), f"undetermined +2 {OPEN}"),
        (preempted(1, requests_finished=0), "supported +1"),
        (preempted(2), f"undetermined +2 {OPEN}"),
        (preempted(2, requests_finished=10, tokens_recompute=1, tokens_prefill=99), "supported +2 .0.01"),
        (preempted(1, requests_finished=10, tokens_recompute=10, tokens_prefill=90), "supported +1 +0.1"),
        (preempted(1, requests_finished=10, tokens_recompute=9, tokens_prefill=91), "refuted +1 -0.09"),
        (preempted(1, tokens_recompute=10, tokens_prefill=90), "supported +1 +0.1"),
        (preempted(1, tokens_recompute=9, tokens_prefill=91), f"undetermined +1 -0.09 {OPEN}"),
        (preempted(1, requests_finished=10, tokens_recompute=0, tokens_prefill=0), f"undetermined +1 {OPEN}"),
        (preempted(1, requests_finished=10, tokens_recompute=1, tokens_prefill=0), "supported +1 +1"),
        (preempted(1, requests_finished=10, tokens_recompute=1), f"undetermined +1 {OPEN}"),
        (preempted(1, requests_finished=10, tokens_prefill=1), f"undetermined +1 {OPEN}"),
    ],
)
def test_counters(signals, expected):
    assert says(RULE, signals) == expected


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (preempted(0, late=True, gauges=pool(90, waiting=1)), "undetermined .0 ?preemptions"),
        (preempted(0, late=True, gauges=pool(89, waiting=1)), "refuted -0"),
        (preempted(0, late=True, gauges=pool(90, waiting=0)), "refuted -0"),
        (preempted(0, late=True, gauges=pool(90)), "refuted -0"),
        (preempted(0, late=True, gauges={"waiting": 1}), "refuted -0"),
        (preempted(0, gauges=pool(90, waiting=1)), "refuted -0"),
        (preempted(2, late=True, gauges=pool(90, waiting=1), requests_finished=10), "supported +2"),
    ],
)
def test_a_counter_that_lags_proves_nothing_while_requests_wait_beside_a_full_pool(signals, expected):
    assert says(RULE, signals) == expected


@pytest.mark.parametrize(
    ("count", "running", "lines", "expected"),
    [
        (4, (2, 4), 2, "supported +4 +1"),
        (6, (2, 4), 2, "supported +6 +1.5"),
        (3, (2, 4), 2, f"undetermined +3 .0.75 {OPEN}"),
        (4, (2, 4), 1, f"undetermined +4 {OPEN}"),
        (1, (0, 1), 2, "supported +1 +1"),
        (4, (0, 0), 2, f"undetermined +4 {OPEN}"),
        (4, None, 2, f"undetermined +4 {OPEN}"),
    ],
)
def test_a_log_tells_of_a_storm_when_as_many_were_preempted_as_ever_ran_at_once(count, running, lines, expected):
    gauges = None if running is None else {"running": running}
    told = events("out_of_memory", *["preempted"] * lines)
    assert says(RULE, preempted(count, gauges=gauges), events=told) == expected


def test_finished_requests_tell_more_than_a_log():
    signals = preempted(4, gauges={"running": 4}, requests_finished=100, tokens_recompute=1, tokens_prefill=99)
    assert says(RULE, signals, events=events("preempted", "preempted")) == "refuted +4 -0.01"


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (preempted(2, requests_finished=10), "supported +2 =0.4"),
        (preempted(1, requests_finished=10, tokens_recompute=9, tokens_prefill=91), "refuted +1 -0.09 =0.4"),
        (preempted(2), f"undetermined +2 {OPEN} =0.4"),
        (preempted(0), "refuted -0"),
    ],
)
def test_its_share_of_the_excess_is_time_away_and_time_of_recompute(signals, expected):
    assert says(RULE, signals, excess=excess(preempted=0.25, recompute=0.15, prefill=0.3)) == expected


def test_a_storm_in_a_log_has_its_share_too():
    signals = preempted(4, gauges={"running": 4})
    given = excess(preempted=0.25)
    assert says(RULE, signals, events=events("preempted", "preempted"), excess=given) == "supported +4 +1 =0.25"
