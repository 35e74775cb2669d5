"""Each condition of admission_stall, from both sides."""

from typing import Any

import pytest

from diagnose.dialects.base import Usage
from diagnose.hypotheses.admission_stall import AdmissionStall
from diagnose.load import LoadPoint
from diagnose.signals import Signals
from tests.builders import make_signals
from tests.diagnose.rules.alone import says

RULE = AdmissionStall()
ROOM, CAP = "?block", "?configured"
STILL = (LoadPoint(5, 0, 1, 0.0, 0.0, 0), LoadPoint(5, 0, 1, 0.0, 0.0, 0))
MOVING = (LoadPoint(5, 0, 1, 0.0, 0.0, 0), LoadPoint(5, 0, 1, 0.0, 0.0, 9))


def line(
    waiting: Any = (1, 1),
    running: Any = (0, 1),
    active: float | None = 20,
    started: int | None = 0,
    load: Any = (),
    info: Any = None,
    **gauges: Any,
) -> Signals:
    """Of a pool of a hundred blocks; `started` requests left the queue, None: not counted."""
    usage = {} if active is None else {"pool_usage": active / 100, "pool_blocks": 100}
    named = {"waiting": waiting, "running": running, **usage, **gauges}
    return make_signals(
        gauges={name: level for name, level in named.items() if level is not None},
        histograms={} if started is None else {"queue_time": {1.0: started} if started else {}},
        usage=Usage.ACTIVE,
        load=load,
        info=info or {},
    )


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (line(None), "undetermined ?running"),
        (line(running=None), "undetermined ?running"),
        (line((1, 0)), "refuted -0"),
        (line((0,)), "undetermined -0 ?second"),
        (line(), "supported +1 +1 +0.2"),
        (line((3, 2)), "supported +2 +1 +0.2"),
        (line(running=(0, 2)), "refuted +1 -2"),
        (line(started=1), "refuted +1 +1 -1"),
        (line(running=(0, 2), started=1), "refuted +1 -2 -1"),
        (line(active=84), "supported +1 +1 +0.84"),
        (line(active=85), "refuted +1 +1 -0.85"),
        (line(active=None), f"undetermined +1 +1 {ROOM}"),
        (line(started=None), f"undetermined +1 +1 +0.2 {ROOM}"),
        (line(started=None, load=STILL), f"undetermined +1 +1 +0.2 {CAP}"),
        (line(active=None, started=None, load=STILL), f"undetermined +1 +1 {ROOM}"),
    ],
)
def test_a_line_that_waits_beside_idleness(signals, expected):
    assert says(RULE, signals) == expected


THREE: dict[str, Any] = {"waiting": (1, 1, 1), "started": None}


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (line(**THREE, running=(0, 0, 0), load=STILL), "supported +1 +0 +0.2 +"),
        (line(**THREE, running=(0, 1, 0), load=STILL), f"undetermined +1 +1 +0.2 + {CAP}"),
        (line(**THREE, running=(0, 0, 0), load=MOVING), f"undetermined +1 +0 +0.2 {CAP}"),
        (line(**THREE, running=(0, 0, 0)), f"undetermined +1 +0 +0.2 {ROOM}"),
        (line((1, 1), (0, 0), started=None, load=STILL), f"undetermined +1 +0 +0.2 {CAP}"),
        (line(**THREE, running=(0, 0, 0), load=STILL, active=None), f"undetermined +1 +0 + {ROOM}"),
        (line(**THREE, running=(0, 0, 0), load=STILL, active=85), "refuted +1 +0 -0.85"),
    ],
)
def test_a_log_shows_a_line_that_does_not_move(signals, expected):
    assert says(RULE, signals) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"pool_tokens": 1000, "info": {"max_model_len": "1001"}}, "supported +1 +1 +0.2 +0.999 +"),
        ({"pool_tokens": 1000, "info": {"max_model_len": "1000"}}, f"undetermined +1 +1 +0.2 + {CAP}"),
        ({"pool_tokens": 1000}, f"undetermined +1 +1 +0.2 + {CAP}"),
        ({"info": {"max_model_len": "1001"}}, f"undetermined +1 +1 +0.2 + {CAP}"),
        ({"block_size": 10, "info": {"max_model_len": "1250"}}, "supported +1 +1 +0.2 +0.8 +"),
        ({"info": {"max_model_len": "1250", "block_size": "10"}}, "supported +1 +1 +0.2 +0.8 +"),
        ({"info": {"max_model_len": "1000", "block_size": "10"}}, f"undetermined +1 +1 +0.2 + {CAP}"),
        ({"block_size": 10, "info": {"max_model_len": "1250"}, "active": 49}, "supported +1 +1 +0.49 +0.8 +"),
        ({"block_size": 10, "info": {"max_model_len": "1250"}, "active": 50}, f"undetermined +1 +1 +0.5 +0.8 + {CAP}"),
        (
            {"pool_tokens": 1000, "info": {"max_model_len": "1250"}, "active": None},
            f"undetermined +1 +1 +0.8 + {ROOM}",
        ),
    ],
)
def test_a_request_that_is_larger_than_the_pool_is_never_admitted(fields, expected):
    assert says(RULE, line(**THREE, running=(0, 1, 0), load=STILL, **fields)) == expected


def test_a_request_that_may_be_too_large_decides_nothing_while_prompts_are_computed():
    signals = line(**THREE, running=(0, 1, 0), load=MOVING, pool_tokens=1000, info={"max_model_len": "1250"})
    assert says(RULE, signals) == f"undetermined +1 +1 +0.2 +0.8 {CAP}"
