"""Each condition of sequence_cap, from both sides."""

from typing import Any

import pytest

from diagnose.dialects.base import Usage
from diagnose.hypotheses.sequence_cap import SequenceCap
from diagnose.load import LoadPoint
from diagnose.signals import Signals
from tests.builders import make_signals
from tests.diagnose.rules.alone import says

RULE = SequenceCap()
ASKED = "?running"


def capped(
    waiting: Any = (1, 1),
    running: Any = (8, 8),
    cap: float | None = 8,
    slots: Any = None,
    active: float | None = 20,
    load: Any = (),
) -> Signals:
    """Of a pool of a hundred blocks."""
    usage = {} if active is None else {"pool_usage": active / 100, "pool_blocks": 100}
    named = {"waiting": waiting, "running": running, "max_sequences": cap, "waiting_sequences": slots, **usage}
    gauges = {name: level for name, level in named.items() if level is not None}
    return make_signals(gauges=gauges, usage=Usage.ACTIVE, load=load)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (capped((0, 0)), "refuted -0"),
        (capped((0,)), "undetermined -0 ?second"),
        (capped((0, 1), (8, 8)), "supported +8 +0.2 +1"),
        (capped(None), f"undetermined {ASKED}"),
        (capped(running=None), f"undetermined {ASKED}"),
        (capped(cap=None), f"undetermined {ASKED}"),
        (capped(), "supported +8 +0.2 +1"),
        (capped(running=(9, 9)), "supported +9 +0.2 +1"),
        (capped(running=(7, 7)), "refuted -7"),
        (capped(slots=(0, 1)), "supported +8 +1 +0.2"),
        (capped(slots=0), "refuted +8 -0 +0.2"),
        (capped(active=84), "supported +8 +0.84 +1"),
        (capped(active=85), "refuted +8 -0.85"),
        (capped(active=85, slots=1), "refuted +8 +1 -0.85"),
        (capped(active=None), "undetermined +8 ?block"),
        (capped(active=None, slots=0), "undetermined +8 -0 ?block"),
        (capped((1,), (8,)), "undetermined +8 +0.2 +1 ?second"),
        (capped((1,), (8,), slots=1), "undetermined +8 +1 +0.2 ?second"),
        # At most of the samples at which others wait.
        (capped((1, 1, 0), (8, 7, 1)), "supported +8 +0.2 +0.5"),
        (capped((1, 1, 1), (8, 7, 1)), "undetermined +8 +0.2 -0.3333 ?waiting"),
        (capped((1, 1, 1), (8, 7, 1), slots=1), "supported +8 +1 +0.2"),
        (capped((0, 0, 1), (8, 8)), "supported +8 +0.2"),  # samples of different times
    ],
)
def test_a_cap_that_is_told(signals, expected):
    assert says(RULE, signals) == expected


def lines(*points: tuple[float | None, float, float], active: float | None = 20) -> Signals:
    """Lines of a log: (running, waiting, prompt tokens)."""
    load = tuple(LoadPoint(5, running, waiting, 0.2, 40.0, prompt) for running, waiting, prompt in points)
    return capped((1, 1), (8, 8), None, active=active, load=load)


FLAT = ((8, 1, 9), (8, 2, 0), (8, 1, 0))


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (lines(*FLAT), "supported +8 +0.2"),
        (lines(*FLAT, active=49), "supported +8 +0.49"),
        (lines(*FLAT, active=50), f"undetermined .8 {ASKED}"),
        (lines(*FLAT, active=None), f"undetermined .8 {ASKED}"),
        (lines(*FLAT[:2]), f"undetermined {ASKED}"),
        (lines(*FLAT[:2], (7, 1, 0)), f"undetermined {ASKED}"),
        (lines(*FLAT, (7, 0, 0)), "supported +8 +0.2"),  # nobody waits below it
        (lines(*FLAT[:2], (8, 0, 0)), f"undetermined {ASKED}"),
        (lines(*FLAT, (None, 1, 0)), "supported +8 +0.2"),
        (lines(*[(8, 1, 0)] * 3), f"undetermined .8 +0.2 {ASKED}"),  # nobody is known to have been started
        (lines(*[(1, 1, 9)] * 3), f"undetermined {ASKED}"),
        (lines(*[(2, 1, 9)] * 3), "supported +2 +0.2"),
        (lines(*[(0, 1, 9)] * 3), f"undetermined {ASKED}"),
    ],
)
def test_a_cap_that_no_line_states_shows_itself(signals, expected):
    assert says(RULE, signals) == expected


def test_a_cap_that_is_told_needs_no_flat_lines():
    signals = lines(*FLAT)
    signals.gauges |= make_signals(gauges={"max_sequences": 9}).gauges
    assert says(RULE, signals) == "refuted -8"
