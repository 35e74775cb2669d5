"""Each condition of device_degraded, from both sides."""

from typing import Any

import pytest

from diagnose.hypotheses.device_degraded import DeviceDegraded
from diagnose.signals import Signals
from tests.builders import make_signals
from tests.diagnose.rules.alone import excess, judged, says
from tests.probes.records import MS, make_record

RULE = DeviceDegraded()
BOTH = "?reasons ?uncorrected"


def gpu(
    ms: float | None = None,
    *,
    ecc: float | None = 0,
    xids: float | None = None,
    heat: float | None = None,
    worked: float | None = None,
    length: float | None = 20.0,
    info: Any = None,
    **gauges: Any,
) -> Signals:
    """`ms` is what each of 12 decode steps takes; gauges are named without their `gpu_`."""
    named = {
        "gpu_ecc_uncorrected": ecc,
        "gpu_xid_errors": xids,
        "gpu_throttled_thermal_seconds": heat,
        "tokens_decode": worked,
    }
    steps = () if ms is None else tuple(make_record(i, forward_ns=round(ms * MS), sample_ns=0) for i in range(12))
    return make_signals(
        counters={name: n for name, n in named.items() if n is not None},
        gauges={f"gpu_{name}": level for name, level in gauges.items()},
        steps=tuple(step._replace(forward_cpu_ns=None) for step in steps),
        length_seconds=length,
        info=info or {},
    )


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (gpu(throttle_hw_thermal=(1,) + (0,) * 19), "supported +0.05 .0"),
        (gpu(throttle_hw_thermal=(1,) + (0,) * 20), "refuted -0.04762 -0"),
        (gpu(throttle_hw_thermal=0), "refuted -0 -0"),
        (gpu(throttle_hw_slowdown=1), "supported +1 .0"),
        (gpu(throttle_sw_thermal=1), "supported +1 .0"),
        (gpu(throttle_power_brake=1), "supported +1 .0"),
        (gpu(throttle_hw_slowdown=0, throttle_hw_thermal=1), "supported +1 .0"),
        (gpu(heat=1.0), "supported +0.05 .0"),
        (gpu(heat=0.99), "refuted -0.0495 -0"),
        (gpu(heat=40.0), "supported +1 .0"),
        (gpu(heat=40.0, length=None), "undetermined -0 ?reasons"),
        (gpu(heat=1.0, throttle_hw_thermal=0), "supported +0.05 .0"),
        (gpu(throttle_hw_thermal=0, throttle_power_cap=1), "refuted -0 .1 -0"),
        (gpu(throttle_hw_thermal=0, throttle_power_cap=0), "refuted -0 -0"),
        (gpu(throttle_power_cap=1), "undetermined -0 ?reasons"),
        (gpu(ecc=None, throttle_hw_thermal=0), "undetermined -0 ?uncorrected"),
        (gpu(ecc=None, throttle_hw_thermal=1), "supported +1"),
        (gpu(ecc=None), f"undetermined {BOTH}"),
        (gpu(), "undetermined -0 ?reasons"),
    ],
)
def test_what_holds_clocks_down(signals, expected):
    assert says(RULE, signals) == expected


def test_of_several_reasons_the_one_that_lasts_longest_is_told():
    text = judged(RULE, gpu(throttle_hw_slowdown=(0, 1), throttle_power_brake=(1, 1), throttle_hw_thermal=0)).evidence[
        0
    ]
    assert text.text == "clocks were held down by the power brake for 100 % of the window"
    none = judged(RULE, gpu(throttle_hw_slowdown=0, throttle_power_brake=0)).evidence[0]
    assert none.text.startswith("clocks were held down neither by heat")


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (gpu(ecc=1), "supported +1"),
        (gpu(ecc=0, xids=1), "supported +1"),
        (gpu(ecc=0, xids=1, last_xid=79), "supported +1"),
        (gpu(ecc=0, xids=1, last_xid=13), "undetermined .1 ?reasons"),
        (gpu(ecc=1, xids=1, last_xid=13), "supported +1 .1"),
        (gpu(ecc=None, xids=1, last_xid=31), "undetermined .1 ?reasons"),
        (gpu(ecc=None, xids=0), "undetermined -0 ?reasons"),
        (gpu(ecc=0, xids=0), "undetermined -0 ?reasons"),
        (gpu(ecc=None, xids=0, throttle_hw_thermal=0), "refuted -0 -0"),
        (gpu(lost=1), "supported +1"),
        (gpu(lost=(0, 1, 0), ecc=None), "supported +1"),
        (gpu(lost=0), "undetermined -0 ?reasons"),
        (gpu(lost=1, ecc=2, xids=3), "supported +1 +2 +3"),
        (gpu(ecc=1, throttle_hw_thermal=0), "supported -0 +1"),
        (gpu(xids=1, last_xid=13, throttle_hw_thermal=0), "refuted -0 .1"),
    ],
)
def test_errors_of_the_hardware(signals, expected):
    assert says(RULE, signals) == expected


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_an_xid_that_a_program_gives_too_proves_nothing(code):
    assert says(RULE, gpu(xids=1, last_xid=code)) == "undetermined .1 ?reasons"
    assert says(RULE, gpu(xids=1, last_xid=code + 1)) == "supported +1"


def test_what_was_counted_is_named():
    both = judged(RULE, gpu(ecc=0, xids=0)).evidence[-1]
    one = judged(RULE, gpu(ecc=None, xids=0)).evidence[-1]
    assert both.text == "no uncorrected memory error and no XID was counted in the window"
    assert both.source == "x_gpu_ecc_uncorrected, x_gpu_xid_errors"
    assert one.text == "x_gpu_xid_errors did not grow in the window"


HOT = {"throttle_hw_thermal": 1}


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (gpu(650, **HOT), gpu(500), "supported +1 +1.3 .0 =0.25"),
        (gpu(645, **HOT), gpu(500), "undetermined +1 -1.29 .0 ?decode =0.25"),
        (gpu(650, **HOT), gpu(), "supported +1 .0 =0.25"),
        (gpu(650, **HOT), None, "supported +1 .0 =0.25"),
        (gpu(**HOT), gpu(500), "supported +1 .0 =0.25"),
        (gpu(650, **HOT), gpu(0), "supported +1 .0 =0.25"),
        (gpu(645, ecc=1, **HOT), gpu(500), "supported +1 -1.29 +1 =0.25"),
        (gpu(650, throttle_hw_thermal=0), gpu(500), "refuted -0 +1.3 -0"),
        (gpu(650, ecc=1), gpu(500), "supported +1.3 +1"),
        (gpu(650), gpu(500), "undetermined +1.3 -0 ?reasons"),
    ],
)
def test_throttling_and_how_much_slower_decode_steps_are(now, before, expected):
    assert says(RULE, now, before, excess=excess(decode_floor=0.25), median_shift=None) == expected


def test_without_an_account_it_has_no_share():
    assert says(RULE, gpu(650, **HOT), gpu(500), excess=None) == "supported +1 +1.3 .0"


def gaps(seconds: float | None, **fields: Any) -> Signals:
    signals = gpu(**fields)
    if seconds is not None:
        signals.histograms = make_signals(histograms={"inter_token_latency": {seconds: 10}}).histograms
    return signals


@pytest.mark.parametrize(
    ("now", "shift", "expected"),
    [
        (gaps(0.045, **HOT), 1.3, "supported +1 +1.3 .0"),
        (gaps(0.045, **HOT), 1.29, "undetermined +1 -1.29 .0 ?decode"),
        (gaps(0.045, **HOT), None, "supported +1 .0"),
        (gaps(None, **HOT), 1.0, "supported +1 .0"),
    ],
)
def test_without_steps_the_median_gap_says_how_much_slower_it_is(now, shift, expected):
    assert says(RULE, now, gpu(), excess=None, median_shift=shift) == expected


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (gpu(sm_clock=850), gpu(sm_clock=1000), "supported +0.85 .0"),
        (gpu(sm_clock=851), gpu(sm_clock=1000), "refuted -0.851 -0"),
        (gpu(650, sm_clock=850), gpu(500, sm_clock=1000), "supported +1.3 +0.85 .0"),
        (gpu(500, sm_clock=850), gpu(500, sm_clock=1000), "refuted -1 .0.85 -0"),  # lower, and as fast as ever
        (gpu(sm_clock=850), gpu(), "undetermined -0 ?reasons"),
        (gpu(), gpu(sm_clock=1000), "undetermined -0 ?reasons"),
        (gpu(sm_clock=850), gpu(sm_clock=0), "undetermined -0 ?reasons"),
        (gpu(sm_clock=850), None, "undetermined -0 ?reasons"),
        (gpu(sm_clock=850, ecc=None), gpu(sm_clock=1000), "supported +0.85"),
        (gpu(sm_clock=851, ecc=None), gpu(sm_clock=1000), "undetermined -0.851 ?uncorrected"),
        (gpu(sm_clock=850, throttle_hw_thermal=0), gpu(sm_clock=1000), "supported -0 +0.85 .0"),
        # Clocks of a GPU that is idle in one of the windows tell nothing.
        (gpu(sm_clock=850, busy=0.5), gpu(sm_clock=1000, busy=0.5), "supported +0.85 .0"),
        (gpu(sm_clock=850, busy=0.49), gpu(sm_clock=1000, busy=0.5), "undetermined -0 ?reasons"),
        (gpu(sm_clock=850, busy=0.5), gpu(sm_clock=1000, busy=0.49), "undetermined -0 ?reasons"),
        (gpu(sm_clock=850, worked=0), gpu(sm_clock=1000), "undetermined -0 ?reasons"),
        (gpu(sm_clock=850), gpu(sm_clock=1000, worked=0), "undetermined -0 ?reasons"),
        (gpu(sm_clock=850, worked=1), gpu(sm_clock=1000, worked=1), "supported +0.85 .0"),
    ],
)
def test_clocks_against_the_baselines(now, before, expected):
    assert says(RULE, now, before, excess=None, median_shift=None) == expected


def test_dropped_clocks_have_their_share_of_the_excess():
    found = says(RULE, gpu(sm_clock=850), gpu(sm_clock=1000), excess=excess(decode_floor=0.25), median_shift=None)
    assert found == "supported +0.85 .0 =0.25"


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu (16 threads)", "not_applicable ."), ("NVIDIA H200", "supported +1"), (None, "supported +1")],
)
def test_a_cpu_has_none_of_these_figures(device, expected):
    assert says(RULE, gpu(ecc=1, info={} if device is None else {"device": device})) == expected
