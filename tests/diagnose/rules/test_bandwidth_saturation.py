"""Each condition of bandwidth_saturation, from both sides."""

from typing import Any

import pytest

from diagnose.hypotheses.bandwidth_saturation import BandwidthSaturation
from diagnose.kernel_profile import KernelTotals
from diagnose.load import LoadPoint
from diagnose.signals import Signals
from probes.kernel_patterns import KernelClass
from tests.builders import make_signals
from tests.diagnose.rules.alone import excess, judged, says
from tests.probes.records import MS, make_record

RULE = BandwidthSaturation()
INFO = {"weight_bytes": "600", "kv_bytes_per_token": "1"}
"""With contexts of a hundred tokens a step reads 700 bytes."""


def decode(*ms: float, ceiling: float | None = 1000.0, info: dict[str, str] = INFO) -> Signals:
    """Pure decode steps, so long each."""
    steps = tuple(
        make_record(i, forward_ns=round(each * MS), sample_ns=0, forward_cpu_ns=None) for i, each in enumerate(ms)
    )
    return make_signals(steps=steps, gauges={} if ceiling is None else {"bandwidth_ceiling": ceiling}, info=info)


SECOND = (1000.0,) * 12
SLOW, USUAL = decode(*SECOND), decode(*(500.0,) * 12)
PART: dict[str, Any] = {"excess": excess(decode_floor=0.1, prefill=0.3), "itl_moved": True, "context_share": 0.25}


@pytest.mark.parametrize(
    ("now", "before", "given", "expected"),
    [
        # shift, p50, context, usage
        (SLOW, USUAL, {}, "supported +2 .1 +0.25 +0.7 =0.1"),
        (decode(*SECOND, ceiling=1001), USUAL, {}, "undetermined +2 .1 +0.25 -0.6993 ?pure =0.1"),
        (decode(*SECOND, ceiling=1750), USUAL, {}, "undetermined +2 .1 +0.25 -0.4 ?pure =0.1"),
        (decode(*SECOND, ceiling=1751), USUAL, {}, "refuted +2 .1 +0.25 -0.3998 =0.1"),
        (SLOW, USUAL, {"context_share": 0.2499}, "supported +2 .1 -0.2499 +0.7 =0.1"),
        (SLOW, USUAL, {"context_share": None}, "supported +2 .1 +0.7 =0.1"),
        (SLOW, decode(*(800.0,) * 12), {}, "refuted -1.25 .1 +0.25 +0.7 =0.1"),
        (decode(*(650.0,) * 12), USUAL, {}, "supported +1.3 .0.65 +0.25 +1.077 =0.1"),
        (decode(*(649.0,) * 12), USUAL, {}, "refuted -1.298 .0.649 +0.25 +1.079 =0.1"),
        (SLOW, USUAL, {"excess": excess(decode_floor=0.0999)}, "refuted +2 .1 +0.25 +0.7 -0.0999 =0.0999"),
        (SLOW, USUAL, {"excess": excess(decode_floor=0.0), "itl_moved": False}, "supported +2 .1 +0.25 +0.7 =0"),
        (SLOW, USUAL, {"excess": None}, "supported +2 .1 +0.25 +0.7 =0"),
        # Without a baseline.
        (SLOW, None, {}, "undetermined -1 +0.25 +0.7 ?baseline =0.1"),
        (SLOW, None, {"context_share": 0.2499}, "refuted -1 -0.2499 +0.7 =0.1"),
        (SLOW, None, {"context_share": None}, "undetermined -1 +0.7 ?baseline =0.1"),
        (decode(*SECOND, ceiling=1751), None, {}, "refuted -1 +0.25 -0.3998 =0.1"),
        (SLOW, make_signals(), {}, "undetermined -1 +0.25 +0.7 ?baseline =0.1"),
        (SLOW, decode(*(0.0,) * 12), {}, "undetermined -1 +0.25 +0.7 ?baseline =0.1"),
        # Without a ceiling or the model's bytes.
        (decode(*SECOND, ceiling=None), USUAL, {}, "undetermined +2 .1 +0.25 ?device =0.1"),
        (decode(*SECOND, ceiling=0), USUAL, {}, "undetermined +2 .1 +0.25 ?device =0.1"),
        (decode(*SECOND, info={"weight_bytes": "600"}), USUAL, {}, "undetermined +2 .1 +0.25 ?device =0.1"),
        (decode(*SECOND, info={"kv_bytes_per_token": "1"}), USUAL, {}, "undetermined +2 .1 +0.25 ?device =0.1"),
        (decode(*(0.0,) * 12), None, {}, "undetermined -0 +0.25 ?baseline =0.1"),  # no time to read in
    ],
)
def test_steps(now, before, given, expected):
    assert says(RULE, now, before, **(PART | given)) == expected


def flat(p95: float) -> Signals:
    return decode(*[1000.0] * 18, p95, p95)


@pytest.mark.parametrize(
    ("p95", "before", "expected"),
    [
        (1300.0, None, "refuted -1 -0.1 +0.7 =0.1"),
        (1301.0, None, "undetermined .1 -0.1 +0.7 ?baseline =0.1"),
        (1300.0, USUAL, "supported +2 .1 -0.1 +0.7 =0.1"),
    ],
)
def test_flat_steps_speak_against_it_where_no_baseline_does(p95, before, expected):
    assert says(RULE, flat(p95), before, **(PART | {"context_share": 0.1})) == expected


def test_steps_whose_context_is_not_known_tell_nothing_of_bytes():
    unknown = [record._replace(decode_context_tokens=None) for record in SLOW.steps]
    mixed = decode(*SECOND)
    mixed.steps = (*unknown[:11], SLOW.steps[-1])
    assert says(RULE, mixed, USUAL, **PART) == "supported +2 .1 +0.25 +0.7 =0.1"
    mixed.steps = tuple(unknown)
    assert says(RULE, mixed, USUAL, **PART) == "undetermined +2 .1 +0.25 ?device =0.1"


def listed(gemm: float = 0, moe: float = 0, attention: float = 0, other: float = 0) -> Signals:
    """Of a thousand ns of device time."""
    times = {KernelClass.GEMM: gemm, KernelClass.MOE_GEMM: moe, KernelClass.ATTN_DECODE: attention}
    return make_signals(kernels=KernelTotals("nsys", times | {KernelClass.NORM: other}, 1000, 9))


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (listed(gemm=199, other=801), "refuted -0.199"),
        (listed(gemm=200, other=800), "undetermined .0.2 ?pure"),
        (listed(gemm=100, moe=60, attention=40, other=800), "undetermined .0.2 ?pure"),
        (listed(gemm=100, moe=50, attention=40, other=810), "refuted -0.19"),
        (listed(gemm=125, other=750), "undetermined .0.125 ?pure"),  # what is not listed may read, too
        (listed(gemm=125, other=812), "refuted -0.125"),
        (make_signals(), "undetermined ?pure"),
    ],
)
def test_a_table_of_kernels(signals, expected):
    assert says(RULE, signals) == expected


def paced(last: float, usage: Any = (0.25, 0.5)) -> Signals:
    load = tuple(LoadPoint(5, 1, 0, None, rate) for rate in (130.0, last))
    return make_signals(gauges={} if usage is None else {"pool_usage": usage}, load=load)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (paced(100.0), "undetermined +1.3 ?pure"),
        (paced(101.0), "undetermined -1.287 ?pure"),
        (paced(100.0, (0.5, 0.5)), "undetermined ?pure"),
        (paced(100.0, (0.5, 0.9, 0.25)), "undetermined ?pure"),
        (paced(0.0), "undetermined ?pure"),
        (paced(100.0, None), "undetermined ?pure"),
    ],
)
def test_streams_of_a_log_that_slow_down_while_contexts_grow_are_a_reason_to_look(signals, expected):
    assert says(RULE, signals) == expected


def test_only_a_pace_that_fell_is_called_more_than_variation():
    assert "ordinary variation" not in judged(RULE, paced(100.0)).evidence[0].text
    assert judged(RULE, paced(101.0)).evidence[0].text.endswith(": no more than ordinary variation")


@pytest.mark.parametrize(("steps", "live"), [((1.0,) * 9, True), ((), False)])
def test_more_steps_come_from_a_longer_look_and_any_steps_from_the_engine(steps, live):
    asked = judged(RULE, decode(*steps)).missing[0]
    assert asked.measurement.endswith(f"(found {len(steps)})")
    assert ("--window 60s" in asked.command) == live
