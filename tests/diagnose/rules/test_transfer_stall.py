"""Each condition of transfer_stall, from both sides."""

from typing import Any

import pytest

from diagnose.hypotheses.transfer_stall import TransferStall
from diagnose.observation import Event
from diagnose.signals import Signals
from tests.builders import make_signals
from tests.diagnose.rules.alone import judged, says

RULE = TransferStall()
OPEN = "?transfer"


def moved(
    transfer: float | None = None,
    first: float | None = 1.0,
    failed: float | None = None,
    waiting: float | None = None,
    post: float | None = None,
    **fields: Any,
) -> Signals:
    """Mean seconds of ten transfers, to the first token, and of posting; 0: none was timed."""
    named = {"kv_transfer": transfer, "time_to_first_token": first, "kv_transfer_post": post}
    return make_signals(
        counters={} if failed is None else {"transfer_failures": failed},
        gauges={} if waiting is None else {"waiting_transfer": (0, waiting)},
        histograms={name: {s: 10} if s else {} for name, s in named.items() if s is not None},
        **fields,
    )


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (moved(), "undetermined ?transfer"),
        (moved(0.5), "supported . +0.5"),
        (moved(2.0), "supported . +1"),
        (moved(0.46875), f"undetermined . -0.4688 {OPEN}"),
        (moved(0.203125), f"undetermined . -0.2031 {OPEN}"),
        (moved(0.1875), "refuted . -0.1875"),
        (moved(0), "refuted ."),
        (moved(0.5, None), "refuted ."),
        (moved(0.5, 0), "refuted ."),
        (moved(failed=0), "refuted . -0"),
        (moved(failed=1), f"undetermined . +1 {OPEN}"),
        (moved(waiting=0), "refuted . -0"),
        (moved(waiting=1), f"undetermined . +1 {OPEN}"),
        (moved(failed=1, waiting=1), "supported . +1 +1"),
        (moved(failed=1, waiting=0), f"undetermined . +1 -0 {OPEN}"),
        (moved(failed=0, waiting=1), f"undetermined . -0 +1 {OPEN}"),
        (moved(0.1875, failed=1, waiting=1), "supported . +1 +1 .0.1875"),  # quick on average, and some never arrive
        (moved(0.1875, failed=1, waiting=0), f"undetermined . +1 -0 -0.1875 {OPEN}"),
        (moved(0.1875, failed=0, waiting=1), f"undetermined . -0 +1 -0.1875 {OPEN}"),
        (moved(0.1875, failed=0, waiting=0), "refuted . -0 -0 -0.1875"),
        (moved(0.5, failed=0, waiting=0), "supported . .0 .0 +0.5"),  # slow, though none failed
    ],
)
def test_transfers(signals, expected):
    assert says(RULE, signals) == expected


def test_one_process_has_no_transfers():
    signals = moved(0.5, features_absent=frozenset({"disaggregation"}))
    assert says(RULE, signals) == "not_applicable ."


@pytest.mark.parametrize(
    ("transfer", "post", "expected", "is_advised"),
    [
        (0.125, 0.0625, "refuted . .0.5 -0.125", True),
        (0.125, 0.06, "refuted . .0.48 -0.125", False),
        (0.125, 0.25, "refuted . .1 -0.125", True),
        (0.125, 0, "refuted . -0.125", False),
        (0.125, None, "refuted . -0.125", False),
        (0, 0.25, "refuted .", False),
        (None, 0.25, "undetermined ?transfer", False),
    ],
)
def test_posting_descriptors_is_no_matter_of_the_network(transfer, post, expected, is_advised):
    signals = moved(transfer, post=post)
    assert says(RULE, signals) == expected
    told = " ".join(item.text for item in judged(RULE, signals).evidence)
    assert ("a faster network does not" in told) == is_advised


def late(*details: str) -> tuple[Event, ...]:
    return (Event(0, "transfer_failed", "x"), *(Event(1, "transfer_timeout", detail) for detail in details))


@pytest.mark.parametrize(
    ("failed", "waiting", "told", "expected", "sides"),
    [
        (1, None, late("KVPoll.WaitingForInput"), "supported . +1 +1 .", ["the decode side waited for data"]),
        (
            1,
            None,
            late("x", "KVPoll.Bootstrapping; expired KV blocks"),
            "supported . +1 +2 .",
            ["the prefill side waited for the decode side", "the prefill side held blocks"],
        ),
        (1, 0, late("x"), "supported . +1 -0 +1 .", []),
        (1, None, late(), f"undetermined . +1 {OPEN}", []),
        (0, None, late("x"), "refuted . -0", []),
        (1, 1, late("x"), "supported . +1 +1", []),  # who waits is known already
    ],
)
def test_a_deadline_in_a_log_says_that_requests_waited(failed, waiting, told, expected, sides):
    found = judged(RULE, moved(failed=failed, waiting=waiting), events=told)
    assert says(RULE, moved(failed=failed, waiting=waiting), events=told) == expected
    words = " ".join(item.text for item in found.evidence)
    for side in ("the decode side waited", "the prefill side waited", "the prefill side held"):
        assert (side in words) == any(one.startswith(side) for one in sides)
