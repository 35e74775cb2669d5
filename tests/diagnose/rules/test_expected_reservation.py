"""Each condition of expected_reservation, from both sides."""

import pytest

from diagnose.hypotheses.expected_reservation import ExpectedReservation
from diagnose.signals import Signals
from tests.builders import make_signals
from tests.diagnose.rules.alone import pool, says

RULE = ExpectedReservation()


def reserved(share: float | None, active: float | None, total: float | None = 100.0) -> Signals:
    named = {"device_memory_reserved": share, "device_memory_total": total}
    gauges = {name: level for name, level in named.items() if level is not None}
    return make_signals(gauges=gauges | ({} if active is None else pool(active)))


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (reserved(80, 49), "supported +0.8 +0.49"),
        (reserved(79, 49), "refuted -0.79"),
        (reserved(80, 50), "undetermined +0.8 -0.5"),
        (reserved(80, 89), "undetermined +0.8 -0.89"),
        (reserved(80, 90), "refuted +0.8 -0.9"),
        (reserved(80, None), "undetermined +0.8 ?block"),
        (reserved(0, 49), "refuted -0"),
        (reserved(None, 49), "undetermined +0.49 ?device"),
        (reserved(80, 49, None), "undetermined +0.49 ?device"),
        (reserved(80, 49, 0.0), "undetermined +0.49 ?device"),
        (reserved(None, 50), "undetermined -0.5 ?device"),
        (reserved(None, 90), "refuted -0.9"),
        (reserved(None, None), "undetermined ?device ?block"),
    ],
)
def test_reserved_memory_and_occupied_blocks(signals, expected):
    assert says(RULE, signals) == expected
