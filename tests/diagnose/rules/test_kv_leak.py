"""Each condition of kv_leak, from both sides."""

from typing import Any

import pytest

from diagnose.dialects.base import Usage
from diagnose.hypotheses.kv_leak import KvLeak
from diagnose.observation import Event
from diagnose.signals import Signals
from probes.records import BlockCensus
from tests.builders import make_signals
from tests.diagnose.rules.alone import says
from tests.probes.records import make_record

RULE = KvLeak()
BUSY = "undetermined ?block"


def idle(active: Any, running: Any = 0, waiting: Any = 0, *, size: float = 1000, **fields: Any) -> Signals:
    """A pool of a thousand blocks, of which `active` are held at each sample."""
    gauges = {
        "pool_usage": tuple(a / size for a in active),
        "pool_blocks": size,
        "running": running,
        "waiting": waiting,
    }
    return make_signals(gauges={k: v for k, v in gauges.items() if v is not None}, usage=Usage.ACTIVE, **fields)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (idle((2, 2), (0, 0), (0, 0)), "supported +2"),
        (idle((2, 3), (0, 0), (0, 0)), "supported +3"),
        (idle((1, 1), (0, 0), (0, 0)), "refuted -1"),  # what an engine keeps for itself
        (idle((0, 0), (0, 0), (0, 0)), "refuted -0"),
        (idle((2,)), "undetermined +2 ?buckets"),
        (idle((2, 1), (0, 0), (0, 0)), "undetermined +2 ?buckets"),
        (idle((2, 2, 1), (0, 0, 0), (0, 0, 0)), "undetermined +2 ?buckets"),
        (idle((2, 2, 9), (0, 0, 1), (0, 0, 0)), "supported +2"),  # the others of the busy sample are its own
        (idle((2, 2, 9), (0, 0, 0), (0, 0, 1)), "supported +2"),
        (idle((2, 9), (0, 1), (0, 0)), "undetermined +2 ?buckets"),
        (idle((2, 2), (0, 0), None), "supported +2"),
        (idle((2, 2), (1, 1), None), BUSY),
        (idle((2, 2), (1, 1), (0, 0)), BUSY),
        (idle((2, 2), (0, 0), (1, 1)), BUSY),
        (idle((2, 2), None, (0, 0)), "undetermined ?active"),
        (make_signals(gauges={"running": 0}), "undetermined ?active"),
    ],
)
def test_blocks_that_are_held_while_nobody_is_inside(signals, expected):
    assert says(RULE, signals) == expected


def decode(active: int | None, context: int | None, sequences: int = 2, running: int = 2) -> Any:
    census = None if active is None else BlockCensus(active, 0, 1000 - active)
    return make_record(
        num_decode_seqs=sequences, num_running=running, decode_context_tokens=context, census=census
    )  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "size", "expected"),
    [
        ([decode(6, 64)], "16", "refuted -1"),  # four full blocks, and one begun by each of two sequences
        ([decode(7, 64)], "16", BUSY),
        ([decode(6, 64), decode(7, 64)], "16", BUSY),
        ([decode(6, 64), decode(7, 64, running=3)], "16", "refuted -1"),  # a prompt is inside as well
        ([decode(7, 64, running=3)], "16", BUSY),
        ([decode(6, 64), decode(None, 64), decode(9, None)], "16", "refuted -1"),
        ([decode(None, 64)], "16", BUSY),
        ([], "16", BUSY),
        ([decode(6, 64)], "0", BUSY),
        ([decode(6, 64)], None, BUSY),
    ],
)
def test_under_load_each_block_has_an_owner_when_the_contexts_fill_them(steps, size, expected):
    info = {} if size is None else {"block_size": size}
    assert says(RULE, idle((6, 6), (2, 2), (0, 0), steps=tuple(steps), info=info)) == expected


def checked(total: int | None, available: int | None, evictable: int | None, protected: int | None = None) -> str:
    figures = {
        "max_total_num_tokens": total,
        "available_size": available,
        "evictable_size": evictable,
        "protected_size": protected,
    }
    return ", ".join(f"{name}={number}" for name, number in figures.items() if number is not None)


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        (checked(1000, 800, 150, 40), "supported + +10"),
        (checked(1000, 800, 150), "supported + +50"),
        (checked(1000, 800, 200), "supported + +0"),
        (checked(1000, 800, 201), "refuted + --1"),  # what is too much has a sign of its own
        (checked(None, 800, 201), "supported +"),
        (checked(1000, None, 201), "supported +"),
        (checked(1000, 800, None), "supported +"),
    ],
)
def test_the_engines_own_balance(detail, expected):
    told = (Event(0, "stopped", checked(1, 2, 3)), Event(1, "leak", detail), Event(2, "leak", checked(1, 2, 3)))
    assert says(RULE, idle((0, 0), (0, 0)), events=told) == expected
