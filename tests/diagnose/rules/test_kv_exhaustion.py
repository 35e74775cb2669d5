"""Each condition of kv_exhaustion, from both sides."""

from dataclasses import replace
from typing import Any

import pytest

from diagnose.dialects.base import Usage
from diagnose.hypotheses.kv_exhaustion import KvExhaustion
from diagnose.load import LoadPoint
from diagnose.signals import Signals
from tests.builders import make_signals
from tests.diagnose.rules.alone import events, excess, judged, pool, says

RULE = KvExhaustion()
ASKED = "?preemptions"
CLOSER = "?buckets"


def filled(active: float | None, preempted: float | None = None, *, late: bool = False, **gauges: Any) -> Signals:
    signals = make_signals(
        counters={} if preempted is None else {"preemptions": preempted},
        gauges=gauges if active is None else pool(active, **gauges),
    )
    if late:
        signals.counters["preemptions"] = replace(signals.counters["preemptions"], late=True)
    return signals


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (filled(90, 1), "supported +0.9 +1"),
        (filled(89, 1), f"undetermined -0.89 +1 {CLOSER}"),
        (filled(84, 1), f"undetermined -0.84 +1 {CLOSER}"),
        (filled(90, 0), f"undetermined +0.9 -0 {ASKED}"),
        (filled(89, 0), f"undetermined -0.89 -0 {CLOSER}"),
        (filled(85, 0), f"undetermined -0.85 -0 {CLOSER}"),
        (filled(84, 0), "refuted -0.84 -0"),
        (filled(90, 0, late=True), f"undetermined +0.9 .0 {ASKED}"),
        (filled(90, 1, late=True), "supported +0.9 +1"),
        (filled(90, waiting_blocks=1), "supported +0.9 +1"),
        (filled(90, waiting_blocks=0), f"undetermined +0.9 -0 {ASKED}"),
        (filled(84, waiting_blocks=1), f"undetermined -0.84 +1 {CLOSER}"),
        (filled(84, waiting_blocks=0), "refuted -0.84 -0"),
        (filled(90, 0, waiting_blocks=1), "supported +0.9 -0 +1"),
        (filled(90, 1, waiting_blocks=0), "supported +0.9 +1 -0"),
        (filled(90, swapped=1), "supported +0.9 +1"),
        (filled(90, paused=1), "supported +0.9 +1"),
        (filled(90, swapped=1, paused=2), "supported +0.9 +2"),
        (filled(84, swapped=1), f"undetermined -0.84 +1 {CLOSER}"),
        (filled(90, swapped=0, paused=0), f"undetermined +0.9 {ASKED}"),
        (filled(90, 0, swapped=1), "supported +0.9 -0 +1"),
        (filled(90), f"undetermined +0.9 {ASKED}"),
        (filled(None, 1), "undetermined +1 ?block"),
        (filled(None, 0, waiting_blocks=0), "undetermined -0 -0 ?block"),
        (filled(None), f"undetermined ?block {ASKED}"),
    ],
)
def test_a_full_pool_and_what_was_denied(signals, expected):
    assert says(RULE, signals) == expected


@pytest.mark.parametrize(
    ("active", "waiting", "expected"),
    [
        (49, (0, 3), "refuted -0.49 -3"),
        (50, (0, 3), f"undetermined -0.5 {ASKED}"),
        (49, (0, 0), "refuted -0.49"),
        (49, (0,), f"undetermined -0.49 {ASKED}"),
        (49, (1,), "refuted -0.49 -1"),
        (49, None, f"undetermined -0.49 {ASKED}"),
    ],
)
def test_without_figures_of_denial_requests_that_wait_beside_room_speak_against_it(active, waiting, expected):
    gauges = {} if waiting is None else {"waiting": waiting}
    assert says(RULE, filled(active, **gauges)) == expected


def samples(active: Any, waiting: Any, running: Any, cap: float | None = None, **gauges: Any) -> Signals:
    named = {"waiting": waiting, "running": running, "max_sequences": cap, **gauges}
    levels = {name: level for name, level in named.items() if level is not None}
    return make_signals(
        gauges={"pool_usage": tuple(share / 100 for share in active), "pool_blocks": 100, **levels}, usage=Usage.ACTIVE
    )


OPEN = f"undetermined +0.95 {ASKED}"


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        # Fewer ran than may, while the pool was full.
        (samples((95, 95), (2, 0), (7, 8), 8), "supported +0.95 +2"),
        (samples((95, 95), (2, 0), (8, 8), 8), OPEN),
        (samples((95, 85), (0, 3), (8, 7), 8), "supported +0.95 +3"),  # a victim's blocks are free again
        (samples((95, 84), (0, 3), (8, 7), 8), OPEN),
        (samples((95, 95), (2, 3), (7, 7), 8), "supported +0.95 +3"),
        # Without a cap: fewer than ran before.
        (samples((95, 95), (0, 2), (8, 7)), "supported +0.95 +2"),
        (samples((95, 95), (0, 2), (8, 8)), OPEN),
        (samples((95, 95), (2, 2), (8, 8)), OPEN),
        (samples((95, 95), (0, 0), (8, 7)), OPEN),
        (samples((95, 95), (2, 0), (7, 8), waiting_capacity=(0, 0)), OPEN),
        (samples((95, 95), None, (7, 8), waiting_capacity=(2, 0)), "supported +0.95 +2"),
        (samples((95, 95), None, (7, 8)), OPEN),
        (samples((95, 95), (2, 0), None), OPEN),
        # Held at every one of three samples.
        (samples((95, 90, 95), (2, 1, 2), (8, 8, 8)), "supported +0.95 +0.9"),
        (samples((95, 89, 95), (2, 1, 2), (8, 8, 8)), OPEN),
        (samples((95, 90, 95), (2, 0, 2), (8, 8, 8)), OPEN),
        (samples((95, 95), (2, 2), (8, 8)), OPEN),
        (samples((95, 95, 95), (2, 2, 2), (8, 8, 8), 8), OPEN),  # the cap may be why
        (samples((95, 95, 95), (2, 2, 2), (8, 8, 8), 9), "supported +0.95 +2"),
        # Not asked where waits for blocks are counted, or where the pool has room.
        (samples((95, 95), (2, 0), (7, 8), 8, waiting_blocks=0), f"undetermined +0.95 -0 {ASKED}"),
        (samples((89, 89), (2, 0), (7, 8), 8), f"undetermined -0.89 {ASKED}"),
    ],
)
def test_requests_that_wait_beside_a_full_pool_with_slots_left(signals, expected):
    assert says(RULE, signals) == expected


def test_who_was_held_back_is_told_with_what_may_run():
    below_cap = judged(RULE, samples((95, 95), (2, 0), (7, 8), 9)).evidence[1].text
    below_peak = judged(RULE, samples((95, 95), (2, 0), (7, 8))).evidence[1].text
    assert "fewer than 9 ran" in below_cap
    assert "fewer than 8 ran" in below_peak


@pytest.mark.parametrize(
    ("active", "told", "expected"),
    [
        (85, ("preempted",), f"supported -0.85 +1 {ASKED}"),
        (84, ("preempted",), f"undetermined -0.84 +1 {ASKED}"),
        (85, ("preempted", "preempted"), f"supported -0.85 +2 {ASKED}"),
        (85, ("no_kv_space", "no_kv_space"), f"supported -0.85 +2 {ASKED}"),
        (85, ("no_kv_space",), f"undetermined -0.85 +1 {ASKED}"),
        (85, ("leak",), f"undetermined -0.85 {ASKED}"),
        (None, ("preempted",), f"supported +1 ?block {ASKED}"),
        (None, ("no_kv_space",), f"undetermined +1 ?block {ASKED}"),
        (None, ("preempted", "no_kv_space"), f"supported +1 +1 ?block {ASKED}"),
    ],
)
def test_a_log_that_tells_of_a_denial(active, told, expected):
    assert says(RULE, filled(active), events=events(*told)) == expected


@pytest.mark.parametrize(
    ("signals", "told", "expected"),
    [
        (filled(90, 1), (), "supported +0.9 +1 =0.4"),
        (filled(84, 0), (), "refuted -0.84 -0 =0.4"),
        (filled(89, 0), (), f"undetermined -0.89 -0 {CLOSER} =0.4"),
        (filled(90, 0), (), f"undetermined +0.9 -0 {ASKED} =0.4"),
        (filled(None, 1), (), "undetermined +1 ?block =0.4"),
        (filled(49, waiting=1), (), "refuted -0.49 -1 =0.4"),
        (filled(50), (), f"undetermined -0.5 {ASKED} =0.4"),
        (filled(85, 0), ("preempted",), "supported -0.85 +1 -0 =0.4"),
    ],
)
def test_its_share_of_the_excess_is_time_away_and_time_of_recompute(signals, told, expected):
    given = excess(preempted=0.25, recompute=0.15, prefill=0.3)
    assert says(RULE, signals, events=events(*told), excess=given) == expected


def growing(*levels: float, seconds: float = 10.0) -> Signals:
    load = tuple(LoadPoint(seconds, 2, 0, level) for level in levels)
    return make_signals(gauges={"pool_usage": levels, "waiting": (0, 0)}, usage=Usage.ACTIVE, load=load)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (growing(0.25, 0.375, 0.4375), "refuted -0.4375 +60"),  # 0.1875 in 20 s, and 0.5625 are left
        (growing(0.25, 0.25, 0.3125, seconds=27), "refuted -0.3125 +594"),
        (growing(0.25, 0.25, 0.3125, seconds=28), "refuted -0.3125"),
        (growing(0.25, 0.375, 0.25), "refuted -0.375"),
    ],
)
def test_a_pool_that_only_grows_will_be_full(signals, expected):
    assert says(RULE, signals) == expected
