"""Each condition of collective_stall, from both sides."""

from typing import Any

import pytest

from diagnose.hypotheses.collective_stall import CollectiveStall
from diagnose.kernel_profile import KernelTotals
from diagnose.rank_skew import RankSkew
from diagnose.signals import Signals
from probes.kernel_patterns import KernelClass
from probes.records import DeviceTime
from tests.builders import make_signals
from tests.diagnose.rules.alone import excess, judged, says
from tests.probes.records import make_record

RULE = CollectiveStall()
OPEN = "?trace"


def timed(*comm: int | None, gemm: int = 1000, **fields: Any) -> Signals:
    """Steps of `gemm` ns in all, of which collectives take `comm`; None: a step that is not timed."""
    times = [None if ns is None else DeviceTime(gemm=gemm - ns, comm=ns) for ns in comm]
    return make_signals(steps=tuple(make_record(i, device_ns=time) for i, time in enumerate(times)), **fields)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (make_signals(), "undetermined ?device"),
        (timed(None), "undetermined ?device"),
        (timed(0, gemm=0), "undetermined ?device"),
        (timed(0), "not_applicable -0"),
        (timed(200), f"undetermined +0.2 {OPEN}"),
        (timed(199), f"undetermined -0.199 {OPEN}"),
        (timed(100), f"undetermined -0.1 {OPEN}"),
        (timed(99), "refuted -0.099"),
        (timed(499), f"undetermined +0.499 {OPEN}"),
        (timed(500), "supported +0.5 ."),
        (timed(0, 400, None), f"undetermined +0.2 {OPEN}"),
    ],
)
def test_the_share_of_a_ranks_device_time(signals, expected):
    assert says(RULE, signals) == expected


@pytest.mark.parametrize(
    ("comm", "part", "moved", "expected"),
    [
        (99, 0.5, True, "supported -0.099 +0.5 . =0.5"),
        (99, 0.4375, True, "refuted -0.099 -0.4375 =0.4375"),
        (100, 0.4375, True, f"undetermined -0.1 -0.4375 {OPEN} =0.4375"),
        (500, 0.0, True, "supported +0.5 -0 . =0"),
        (99, 0.5, False, "refuted -0.099"),
        (99, 0.5, None, "refuted -0.099"),
        (99, None, True, "refuted -0.099"),
    ],
)
def test_most_of_the_excess_decides_where_streams_moved(comm, part, moved, expected):
    given = None if part is None else excess(collective=part, prefill=0.3)
    assert says(RULE, timed(comm), excess=given, itl_moved=moved) == expected


@pytest.mark.parametrize(
    ("wait", "shares", "expected", "slowest"),
    [
        (0.1, (0.3, 0.1), "supported +0.3 -0.25 +0.1 =0.25", True),
        (0.09375, (0.3, 0.1), "refuted +0.3 -0.25 .0.09375 =0.25", False),
        (0.09375, (0.3, 0.2), "supported +0.3 -0.25 .0.09375 + =0.25", False),
        (0.09375, (0.3, 0.1999), "refuted +0.3 -0.25 .0.09375 =0.25", False),
        (0.1, (0.3, 0.2), "supported +0.3 -0.25 +0.1 =0.25", True),
    ],
)
def test_traces_of_all_ranks_tell_a_late_one_from_a_slow_link(monkeypatch, wait, shares, expected, slowest):
    skew = RankSkew(wait, "rank 1", {"rank 0": shares[0], "rank 1": shares[1]}, 7)
    monkeypatch.setattr("diagnose.hypotheses.collective_stall.rank_skew", lambda _: skew)
    given = {"excess": excess(collective=0.25), "itl_moved": True}
    assert says(RULE, timed(300), **given) == expected
    named = judged(RULE, timed(300), **given).evidence[2].text
    assert ("rank 1, whose collectives are the shortest" in named) == slowest


def table(comm: float, gemm: float, total: float = 1000) -> Signals:
    kernels = KernelTotals("nsys", {KernelClass.COMM: comm, KernelClass.GEMM: gemm}, total, 9, (1e3, 2e6))
    return make_signals(kernels=kernels)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (table(200, 800), f"undetermined +0.2 {OPEN}"),
        (table(199, 801), f"undetermined -0.199 {OPEN}"),
        (table(99, 901), "refuted -0.099"),
        (table(100, 900), f"undetermined -0.1 {OPEN}"),
        (table(50, 901), "refuted -0.05"),
        (table(50, 900), f"undetermined -0.05 {OPEN}"),  # what the table leaves out may be collectives
        (table(0, 901), "not_applicable -0"),
        (table(0, 875), f"undetermined -0 {OPEN}"),
        (table(500, 500), "supported +0.5 ."),
        (table(499, 501), f"undetermined +0.499 {OPEN}"),
    ],
)
def test_a_table_of_kernels(signals, expected):
    assert says(RULE, signals) == expected


def test_steps_tell_more_than_a_table():
    signals = timed(99, kernels=table(500, 500).kernels)
    assert says(RULE, signals) == "refuted -0.099"


def test_a_table_names_the_shortest_and_the_longest_collective():
    assert "from 1 us to 2.0 ms each" in judged(RULE, table(200, 800)).evidence[0].text
