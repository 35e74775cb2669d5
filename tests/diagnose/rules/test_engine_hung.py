"""Each condition of engine_hung, from both sides."""

from typing import Any

import pytest

from diagnose.hypotheses.engine_hung import EngineHung
from diagnose.observation import SPIN_EVENT, STACK_EVENT
from diagnose.signals import Signals
from tests.builders import make_signals
from tests.diagnose.rules.alone import events, judged, pool, says

RULE = EngineHung()
WINDOW, STACKS = "?window", "?stacks"


def still(
    running: Any = (1, 1),
    waiting: Any = None,
    seconds: float | None = 30.0,
    decoded: float | None = 0,
    active: float | None = 20,
    **counters: float,
) -> Signals:
    named = {"running": running, "waiting": waiting} | ({} if active is None else pool(active))
    return make_signals(
        counters=counters if decoded is None else {"tokens_decode": decoded, **counters},
        gauges={name: level for name, level in named.items() if level is not None},
        length_seconds=seconds,
    )


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (still(), "supported +1"),
        (still((3, 2)), "supported +2"),
        (still((3, 2), (4, 1)), "supported +3"),
        (still(seconds=29.9), f"undetermined +1 {WINDOW}"),
        (still(seconds=None), f"undetermined +1 {WINDOW}"),
        (still(decoded=1), "refuted -"),
        (still(decoded=0, steps=1), "refuted -"),
        (still(decoded=None), "undetermined ?token"),
        (still(None), "undetermined ?token"),
        (still((1, 0)), "refuted -"),
        (still((1, 0), (1, 1)), f"undetermined +1 {STACKS}"),
        (still((0, 0), (1, 0)), "refuted -"),
        (still((0, 0), (1, 1), 20.0), f"undetermined +1 {STACKS}"),
        (still((1, 1), (0, 0)), "supported +1"),
    ],
)
def test_work_without_progress(signals, expected):
    assert says(RULE, signals) == expected


@pytest.mark.parametrize(
    ("seconds", "active", "expected"),
    [
        (299.9, 0, f"undetermined +1 .0 {STACKS}"),
        (300.0, 0, "supported +1"),
        (30.0, 0, f"undetermined +1 .0 {STACKS}"),
        (30.0, 1, "supported +1"),
        (30.0, None, "supported +1"),
        (29.0, 0, f"undetermined +1 {WINDOW}"),
    ],
)
def test_requests_that_hold_no_blocks_yet_may_wait_for_a_compilation(seconds, active, expected):
    assert says(RULE, still(seconds=seconds, active=active)) == expected


def test_a_pool_that_held_blocks_at_any_sample_has_begun():
    signals = still(active=0)
    signals.gauges |= make_signals(gauges={"blocks_active": (1, 0)}).gauges
    assert says(RULE, signals) == "supported +1"


def test_pasted_stacks_are_told():
    told = events(STACK_EVENT, SPIN_EVENT, "leak")
    assert says(RULE, still(), events=told) == "supported +1 - ."


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (30.0, "at least 1 requests were inside at every scrape, and no token was computed for 30.0 s"),
        (None, "at least 1 requests were inside at every scrape, and no token was computed"),
    ],
)
def test_how_long_is_told_where_it_is_known(seconds, text):
    assert judged(RULE, still(seconds=seconds)).evidence[0].text == text


@pytest.mark.parametrize(("decoded", "source"), [(1, "x_tokens_decode"), (None, "")])
def test_the_source_of_progress_is_the_counter_of_decoded_tokens(decoded, source):
    assert judged(RULE, still(decoded=decoded, steps=1)).evidence[0].source == source
