"""Each condition of queue_overload, from both sides."""

from dataclasses import replace
from typing import Any

import pytest

from diagnose.dialects.base import Usage
from diagnose.hypotheses.queue_overload import QueueOverload
from diagnose.load import LoadPoint
from diagnose.signals import Signals
from tests.builders import make_signals
from tests.diagnose.rules.alone import judged, pool, says

RULE = QueueOverload()
OPEN = "?arrival"


def times(queue: float | None = 0.5, first: float | None = 1.0, end: float | None = None, **gauges: Any) -> Signals:
    """Mean seconds of ten requests: in the queue, to the first token, to the end. 0 requests where it is 0."""
    named = {"queue_time": queue, "time_to_first_token": first, "e2e_latency": end}
    histograms = {name: {seconds: 10} if seconds else {} for name, seconds in named.items() if seconds is not None}
    return make_signals(histograms=histograms, gauges={"waiting": (0, 4), **gauges})


@pytest.mark.parametrize(
    ("signals", "moved", "expected"),
    [
        (times(0.5, 1.0), False, "supported +0.5 +2"),
        (times(1.5, 1.0), False, "supported +1 +2"),  # a mean of other requests: never more than all
        (times(0.5, 1.0), True, f"undetermined +0.5 +2 - {OPEN}"),
        (times(0.5, 1.0), None, f"undetermined +0.5 +2 {OPEN}"),
        (times(0.46875, 1.0), False, f"undetermined -0.4688 +2 {OPEN}"),
        (times(0.46875, 1.0), True, f"undetermined -0.4688 +2 - {OPEN}"),
        (times(0.203125, 1.0), False, f"undetermined -0.2031 +2 {OPEN}"),
        (times(0.1875, 1.0), False, "refuted -0.1875 +2"),
        (times(0.0625, 0.125), False, "refuted -0.5 +2"),  # not felt
        (times(0.1, 0.125), False, "supported +0.8 +2"),  # felt, just
        (times(0.5, None, 1.0), False, "supported +0.5 +2"),
        (times(0.5, 0, 1.0), False, "supported +0.5 +2"),
        (times(0.1875, None, 1.0), False, f"undetermined -0.1875 +2 {OPEN}"),  # of the first token it may be all
        (times(0.5, 1.0, 10.0), False, "supported +0.5 +2"),  # the end tells nothing where the first token does
        (times(0.5, 1.0, waiting=0), False, "supported +0.5 -0"),
        (times(0.5, 1.0, waiting=1), False, "supported +0.5 +1"),
        (times(None, 1.0), False, "undetermined ?queue"),
        (times(0, 1.0), False, "undetermined ?queue"),
        (times(0.5, None), False, "undetermined ?queue"),
        (times(0.5, 0, 0), False, "undetermined ?queue"),
    ],
)
def test_queue_times(signals, moved, expected):
    found = says(RULE, signals, make_signals(), itl_moved=moved)
    assert found == expected


@pytest.mark.parametrize(
    ("signals", "end"), [(times(0.5, 1.0), "first token"), (times(0.5, None, 1.0), "end of a request")]
)
def test_up_to_what_the_queue_is_a_share_is_told(signals, end):
    assert f" to the {end} (50 %, means)" in judged(RULE, signals, itl_moved=False).evidence[0].text


def test_a_page_without_waiting_requests_is_judged_by_its_times():
    signals = times(0.5, 1.0)
    del signals.gauges["waiting"]
    assert says(RULE, signals, make_signals(), itl_moved=False) == "supported +0.5"


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        ({0.0625: 10}, {0.05: 10}, "supported +0.5 +2"),
        ({0.0649: 10}, {0.05: 10}, "supported +0.5 +2"),
        ({0.0650001: 10}, {0.05: 10}, f"undetermined +0.5 +2 - {OPEN}"),
        ({0.06: 10}, {}, f"undetermined +0.5 +2 {OPEN}"),
        ({}, {0.05: 10}, f"undetermined +0.5 +2 {OPEN}"),
        (None, {0.05: 10}, f"undetermined +0.5 +2 {OPEN}"),
        ({0.06: 10}, None, f"undetermined +0.5 +2 {OPEN}"),
    ],
)
def test_without_inter_token_latency_decode_steps_say_whether_the_service_slowed_down(now, before, expected):
    def steps(seconds) -> Signals:
        signals = times(0.5, 1.0)
        if seconds is not None:
            signals.histograms |= make_signals(histograms={"step_decode": seconds}).histograms
        return signals

    assert says(RULE, steps(now), steps(before)) == expected


def test_without_inter_token_latency_and_baseline_it_is_open():
    assert says(RULE, times(0.5, 1.0), context_share=0.1) == f"undetermined +0.5 +2 {OPEN}"


@pytest.mark.parametrize(
    ("context", "expected"),
    [(0.25, "?baseline"), (0.2499, None), (None, "?baseline")],
)
def test_without_a_baseline_reading_contexts_may_have_slowed_the_service(context, expected):
    found = says(RULE, times(0.5, 1.0), context_share=context, itl_moved=False)
    assert found == (f"undetermined +0.5 +2 {expected}" if expected else "supported +0.5 +2")
    assert says(RULE, times(0.5, 1.0), make_signals(), context_share=context, itl_moved=False) == "supported +0.5 +2"
    short = says(RULE, times(0.46875, 1.0), context_share=context, itl_moved=False)
    assert short == f"undetermined -0.4688 +2 {OPEN}", "of a queue that does not dominate nothing else is asked"


def test_what_is_not_known_of_the_contexts_is_not_printed_as_a_share():
    unknown = judged(RULE, times(0.5, 1.0), context_share=None, itl_moved=False)
    known = judged(RULE, times(0.5, 1.0), context_share=0.5, itl_moved=False)
    assert unknown.missing[0].decides.startswith("an unknown part of a decode step is reading contexts")
    assert known.missing[0].decides.startswith("50 % of a decode step is reading contexts")


@pytest.mark.parametrize(
    ("gauges", "capped"),
    [
        (pool(84, running=(4, 4, 4), waiting=(1, 1, 1)), True),
        (pool(84, running=(4, 4, 3), waiting=(1, 1, 1)), True),
        (pool(84, running=(4, 3, 3), waiting=(1, 1, 1)), False),
        (pool(84, running=(4, 4, 9), waiting=(1, 1, 0)), False),  # two samples with a wait
        (pool(85, running=(4, 4, 4), waiting=(1, 1, 1)), False),
        (pool(84, running=(4, 4, 4), waiting=(1, 1, 1), max_sequences=8), False),
        (pool(84, running=(4, 4, 4), waiting=(1, 1, 1), waiting_sequences=0), False),
        (pool(84, waiting=(1, 1, 1)), False),
        ({"running": (4, 4, 4), "waiting": (1, 1, 1)}, False),
    ],
)
def test_a_cap_that_is_not_told_may_hold_the_line(gauges, capped):
    signals = times(0.5, 1.0, **gauges)
    found = says(RULE, signals, make_signals(), itl_moved=False)
    mean = signals.gauges["waiting"].mean
    assert found == (f"undetermined +0.5 +{mean:.4g} ?configured" if capped else f"supported +0.5 +{mean:.4g}")


def test_without_waiting_requests_no_cap_shows():
    signals = times(0.5, 1.0, **pool(10, running=(4, 4, 4)))
    del signals.gauges["waiting"]
    assert says(RULE, signals, make_signals(), itl_moved=False) == "supported +0.5"


STEADY = (LoadPoint(5, 2, 4, 0.5, 26, 0), LoadPoint(5, 2, 4, 0.5, 20.2, 100))
SLOWED = (LoadPoint(5, 2, 4, 0.5, 26, 0), LoadPoint(5, 2, 4, 0.5, 20, 100))
STUCK = (LoadPoint(5, 2, 4, 0.5, 20, 0), LoadPoint(5, 2, 4, 0.5, 20, 0))
SILENT = (LoadPoint(5, 2, 4, 0.5, None, 100), LoadPoint(5, 2, 4, 0.5, None, 100))
ASKED = "?queue"


def counted(waiting: Any = (2, 2), running: Any = (2, 2), load: Any = STEADY, **gauges: Any) -> Signals:
    levels = {"waiting": waiting, "running": running, **gauges}
    named = {name: level for name, level in levels.items() if level is not None}
    return make_signals(gauges=named, load=load, usage=Usage.ACTIVE)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (counted(), "supported +0.5 + +1.287"),
        (counted((2, 2), (2, 3)), f"undetermined .0.4444 {ASKED}"),
        (counted((4, 0)), f"undetermined +0.5 {ASKED}"),
        (counted((4, 1), (3, 2)), "supported +0.5 + +1.287"),
        (counted((2,), (2,)), f"undetermined +0.5 {ASKED}"),
        (counted((4, 4), (4, 1)), f"undetermined +0.6154 {ASKED}"),  # one at a time may be too large
        (counted((4, 4), (4, 2)), "supported +0.5714 + +1.287"),
        (counted(load=SLOWED), f"undetermined +0.5 + -1.3 {ASKED}"),
        (counted(load=STUCK), f"undetermined +0.5 - {ASKED}"),
        (counted(load=SILENT), f"undetermined +0.5 + {ASKED}"),
        (counted(load=()), f"undetermined +0.5 - {ASKED}"),
        (counted(load=STUCK, pool_usage=0.85), "supported +0.5 +1"),  # the pool is what the head of the line waits for
        (counted(load=STUCK, pool_usage=0.84), f"undetermined +0.5 - {ASKED}"),
        (counted((0, 0)), "refuted -0"),
        (counted((0,), (2,)), f"undetermined {ASKED}"),
        (counted((0, 0), waiting_upstream=0), "refuted -0"),
        (counted((0, 0), waiting_upstream=1), f"undetermined -0 {ASKED}"),
        (counted((0, 0), None, waiting_upstream=1), f"undetermined -0 {ASKED}"),
        (counted((0, 1)), f"undetermined .0.2 {ASKED}"),
        (counted(None), f"undetermined {ASKED}"),
        (counted((2, 2), None), f"undetermined {ASKED}"),
    ],
)
def test_without_queue_times_the_numbers_waiting_and_running_tell(signals, expected):
    assert says(RULE, signals) == expected


def busier(
    tokens: float = 0, prompts: float = 0, *, queue: float, gap: float, first: float | None = None, **gauges: Any
) -> Signals:
    """Ten requests that waited `queue` seconds each, and 100 gaps of `gap` seconds between what was generated."""
    histograms = {"queue_time": {queue: 10} if queue else {}, "time_to_first_token": {first or queue * 1.25: 10}}
    return make_signals(
        counters={"tokens_decode": tokens, "tokens_prefill": prompts},
        histograms=histograms | {"inter_token_latency": {gap: 100}},
        gauges={"waiting": (0, 4), **gauges},
    )


USUAL = busier(100, 100, queue=0.0, first=0.25, gap=0.05)
FREE_SLOTS = {"waiting_blocks": 0, "waiting_sequences": 0}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        # 10 tokens a request, 25 ms later each: 0.25 s. Behind tokens 1.5 times as slow 0.507 of 0.76 s are the queue's own.
        (busier(100, 160, queue=0.76, gap=0.075, **FREE_SLOTS), "supported +0.8 +2 +0.5017"),
        (busier(100, 160, queue=0.74, gap=0.075, **FREE_SLOTS), f"undetermined +0.8 +2 -0.4983 {OPEN}"),
        (busier(100, 159, queue=8.0, gap=0.075, **FREE_SLOTS), f"undetermined +0.8 +2 - {OPEN}"),
        (busier(160, 100, queue=8.0, gap=0.075, **FREE_SLOTS), "supported +0.8 +2 +0.6349"),
        (busier(160, 100, queue=300.0, gap=0.1, **FREE_SLOTS), f"undetermined +0.8 +2 -0.4987 {OPEN}"),
        # A wait for a slot or blocks that others hold longer, too, is a consequence; so it may be where no reason is told.
        (
            busier(160, 100, queue=8.0, gap=0.075, waiting_blocks=0, waiting_sequences=1),
            f"undetermined +0.8 +2 - {OPEN}",
        ),
        (
            busier(160, 100, queue=8.0, gap=0.075, waiting_blocks=1, waiting_sequences=0),
            f"undetermined +0.8 +2 - {OPEN}",
        ),
        (busier(160, 100, queue=8.0, gap=0.075, waiting_blocks=0), f"undetermined +0.8 +2 - {OPEN}"),
        # The wait decides nothing where it is the smaller part of the time to the first token.
        (busier(160, 100, queue=8.0, gap=0.075, first=20.0, **FREE_SLOTS), f"undetermined -0.4 +2 +0.6349 {OPEN}"),
    ],
)
def test_slower_tokens_of_a_server_that_has_more_to_do_are_no_slower_service(now, expected):
    assert says(RULE, now, USUAL) == expected


def test_without_queue_times_of_the_baseline_slower_tokens_are_a_slower_service():
    now, usual = busier(160, 100, queue=8.0, gap=0.1), busier(100, 100, queue=0.0, first=0.25, gap=0.05)
    del usual.histograms["queue_time"]
    assert says(RULE, now, usual) == f"undetermined +0.8 +2 - {OPEN}"


@pytest.mark.parametrize("unknown", ["now", "usual"])
def test_a_window_of_unknown_length_has_no_rate(unknown):
    windows = {"now": busier(160, 100, queue=8.0, gap=0.1, **FREE_SLOTS), "usual": USUAL}
    windows[unknown] = replace(windows[unknown], length_seconds=None)
    assert says(RULE, windows["now"], windows["usual"]) == f"undetermined +0.8 +2 - {OPEN}"


def test_beside_a_baseline_in_which_nothing_was_computed_there_is_no_ratio():
    now, idle = busier(160, 100, queue=8.0, gap=0.1, **FREE_SLOTS), busier(0, 0, queue=0.0, first=0.25, gap=0.05)
    assert says(RULE, now, idle) == f"undetermined +0.8 +2 - {OPEN}"
