"""Each condition of replica_imbalance, from both sides."""

from typing import Any

import pytest

from diagnose.hypotheses.replica_imbalance import ReplicaImbalance
from diagnose.signals import Signals
from tests.builders import make_signals
from tests.diagnose.rules.alone import judged, says

RULE = ReplicaImbalance()
OPEN = "?completed"


def fleet(*loads: tuple[Any, Any], count: int | None = None) -> Signals:
    """Replicas by what they hold, `(running, waiting)`; None: not told."""
    each = {}
    for index, (running, waiting) in enumerate(loads):
        named = {"running": running, "waiting": waiting}
        gauges = {name: level for name, level in named.items() if level is not None}
        each[f"replica-{index}"] = make_signals(gauges=gauges)
    return make_signals(gauges={"running": 1}, num_replicas=count or len(loads), replicas=each)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (fleet((4, 0)), "not_applicable ."),
        (fleet((4, 0), (None, 1), (1, None)), "undetermined ?running"),
        (fleet(count=2), "undetermined ?running"),
        (fleet((4, 0), (4, 0), (None, 1)), "refuted -1 -0"),
        # One queues while another has room.
        (fleet((2, 0), (4, 0), (3, 1)), "supported +1 +1"),
        (fleet((2, 0), (4, 0), (2, 1)), f"undetermined +1.333 +1 {OPEN}"),
        (fleet((2, 0), (4, 0), (2, 2)), "supported +1 +1"),
        (fleet((2, 0), (3, 0.9)), "refuted -1.95 +1"),
        (fleet((2, 0), (3, 1)), "supported +2 +1"),
        (fleet((1, 1), (4, 1)), "refuted +2.5 -2"),  # all of them queue
        (fleet((1, 1), (2, 1)), "refuted -1.5 -2"),
        (fleet((4, 0), (8, 0)), "refuted +2 -0"),
        (fleet((4, 0), (7, 0)), "refuted -1.75 -0"),
        (fleet((2, 0), (8, 0), (2, 1)), f"undetermined +2.667 +1 {OPEN}"),  # the busiest one has no queue
        (fleet((2, 1), (4, 2), (2, 0), (3, 0)), "supported +2 +2"),
        (fleet((2, 1), (5, 1), (3, 0)), "supported +2 +2"),  # whichever of two that hold as much comes first
        (fleet((3, 0), (5, 1), (2, 1)), "supported +2 +2"),
        (fleet((1, 1), (5, 1), (3, 0)), "supported +2 +2"),  # it has room, and another one holds less and waits
        (fleet((2, 1), (5, 1), (3, 1)), "refuted -1.5 -3"),
        (fleet(((0, 4), 0), ((2, 4), (0, 2))), "supported +2 +1"),  # means over the window
        # Half of them have nothing to do.
        (fleet((0, 0), (2, 0)), "supported +2 -0 +0.5"),
        (fleet((0, 0), (1, 0)), "refuted +1 -0"),
        (fleet((0, 0), (1.9, 0)), "refuted +1.9 -0"),
        (fleet((0.9, 0), (2, 0)), "supported +2 -0 +0.5"),
        (fleet((1, 0), (2, 0)), "refuted +2 -0"),
        (fleet((0, 0), (0, 0), (2, 0), (2, 0)), "supported +2 -0 +0.5"),
        (fleet((0, 0), (1, 0), (4, 0)), "refuted +4 -0"),
        (fleet((0, 0), (0, 0), (3, 0)), "supported +3 -0 +0.6667"),
        (fleet((0, 0), (0, 0), (2.9, 0)), "refuted +2.9 -0"),
    ],
)
def test_how_the_work_is_spread(signals, expected):
    assert says(RULE, signals) == expected


def test_the_busiest_and_the_idlest_are_named():
    text = judged(RULE, fleet((4, 0), (2, 0), (3, 2))).evidence[0].text
    assert text == "replica-2 holds 5.0 requests on average, the median replica 4.0, replica-1 2.0"
