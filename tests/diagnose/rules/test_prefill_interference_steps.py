"""Each condition of prefill_interference on step records, from both sides."""

from dataclasses import replace
from typing import Any

import pytest

from diagnose.hypotheses.prefill_interference import PrefillInterference
from diagnose.signals import Signals
from probes.records import StepKind, StepRecord
from tests.builders import Plan, make_signals, make_steps, varied
from tests.diagnose.rules.alone import excess, judged, says
from tests.probes.records import MS, make_record

RULE = PrefillInterference()


def stepped(*doses: int, count: int = 30) -> Signals:
    """A chunk of one of `doses` in every fifth step of 30: six mixed ones."""

    def plan(index: int) -> Plan:
        dose = doses[index // 5 % len(doses)]
        return replace(varied(index), prefill=dose) if index % 5 == 4 else varied(index)

    return make_signals(counters={"tokens_prefill": 600}, steps=tuple(make_steps(count, plan)))


STEPS = stepped(100)
STALLS: dict[str, Any] = {"itl_moved": True, "has_stalls": False, "stall_share": 0.1, "median_shift": None}


@pytest.mark.parametrize(
    ("ratio", "part", "given", "expected"),
    [
        (1.5, 0.5, {}, "supported .600 +1.5 +0.1 +0.5 =0.5"),
        (1.4375, 0.5, {}, "undetermined .600 -1.438 +0.1 +0.5 ?same =0.5"),
        (1.4375, 0.5, {"has_stalls": True}, "supported .600 -1.438 +0.1 +0.5 =0.5"),
        (1.125, 0.5, {"has_stalls": True}, "supported .600 -1.125 +0.1 +0.5 =0.5"),
        (1.1, 0.5, {"has_stalls": True}, "refuted .600 -1.1 =0.5"),
        (1.5, 0.4375, {}, "undetermined .600 +1.5 +0.1 -0.4375 ?same =0.4375"),
        (1.5, 0.4375, {"has_stalls": True}, "undetermined .600 +1.5 +0.1 -0.4375 ?same =0.4375"),
        (1.5, 0.1, {}, "undetermined .600 +1.5 +0.1 -0.1 ?same =0.1"),
        (1.5, 0.09375, {}, "refuted .600 +1.5 +0.1 -0.09375 =0.09375"),
        (1.5, None, {}, "refuted .600 +1.5 +0.1 -0 =0"),
        (1.5, 0.5, {"itl_moved": False}, "refuted .600 +1.5 +0.1 =0.5"),
        (1.5, 0.5, {"itl_moved": None}, "refuted .600 +1.5 +0.1 =0.5"),
        (1.5, 0.5, {"stall_share": 0.0999}, "supported .600 +1.5 -0.0999 +0.5 =0.5"),
        (1.5, 0.5, {"stall_share": None}, "supported .600 +1.5 -0 +0.5 =0.5"),
        (1.5, 0.5, {"median_shift": 1.29}, "supported .600 +1.5 +0.1 +0.5 +1.29 =0.5"),
        (1.5, 0.5, {"median_shift": 1.3}, "supported .600 +1.5 +0.1 +0.5 .1.3 =0.5"),
    ],
)
def test_mixed_steps_against_like_decode_steps(ratio, part, given, expected):
    lies = None if part is None else excess(prefill=part, schedule=0.2)
    assert says(RULE, STEPS, mixed_ratio=ratio, excess=lies, **(STALLS | given)) == expected


def test_a_median_that_stayed_is_called_so():
    near = judged(RULE, STEPS, mixed_ratio=1.5, excess=excess(prefill=0.5), **(STALLS | {"median_shift": 1.0}))
    far = judged(RULE, STEPS, mixed_ratio=1.5, excess=excess(prefill=0.5), **(STALLS | {"median_shift": 1.5}))
    assert near.evidence[-1].text.endswith("the tail moved, the middle did not")
    assert far.evidence[-1].text == "p50 ITL is 1.50x the baseline's"


def dosed(*doses: int) -> str:
    """Evidence of the dose response alone, of mixed steps that are no slower than others."""
    found = says(RULE, stepped(*doses), mixed_ratio=1.0, excess=None, **STALLS)
    return found.removeprefix("refuted .600 -1").removesuffix("=0").strip()


@pytest.mark.parametrize(
    ("doses", "expected"),
    [
        ((100, 120, 140, 150, 110, 130), "+1"),
        ((100, 120, 140, 149, 110, 130), ""),  # they differ too little
        ((100,), ""),
    ],
)
def test_a_dose_response_takes_doses_that_differ_by_half(doses, expected):
    assert dosed(*doses) == expected


def mixed_steps(*costs: tuple[int | None, float]) -> Signals:
    """Twelve pure decode steps of 8 ms, then mixed ones of (prompt tokens, ms)."""
    plain = [make_record(i) for i in range(12)]
    late: list[StepRecord] = []
    for dose, ms in costs:
        fields: dict[str, Any] = {"kind": StepKind.MIXED, "num_prefill_seqs": 1, "prefill_tokens": dose}
        late.append(make_record(12 + len(late), forward_ns=round(ms * MS), forward_cpu_ns=None, **fields))
    return make_signals(counters={"tokens_prefill": 600}, steps=(*plain, *late))


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        (((10, 20), (20, 30), (30, 40), (40, 50), (50, 60)), "+1"),
        (((10, 60), (20, 50), (30, 40), (40, 30), (50, 20)), ".-1"),
        (((10, 30), (20, 20), (30, 50), (40, 60), (50, 40)), "+0.6"),
        (((10, 20), (20, 50), (30, 60), (40, 30), (50, 40)), ".0.2"),
        (((10, 30), (20, 20), (30, 60), (40, 50), (50, 40)), "+0.5"),
        (((None, 20), (None, 20), (10, 20), (20, 30), (30, 40)), ""),  # three doses are known
        (((None, 20), (10, 20), (20, 30), (30, 40), (40, 50)), "+1"),
        (((None, 20),) * 5, ""),
        (((10, 20), (20, 20), (30, 20), (40, 20), (50, 20)), ""),
    ],
)
def test_a_dose_response_is_a_rank_correlation(costs, expected):
    found = says(RULE, mixed_steps(*costs), mixed_ratio=1.0, excess=None, **STALLS)
    assert found == " ".join(filter(None, ["refuted .600 -1", expected, "=0"]))


@pytest.mark.parametrize(
    ("num_mixed", "given", "expected"),
    [
        (5, {"mixed_ratio": 1.0}, "refuted .600 -1 =0"),
        (4, {"mixed_ratio": 1.0}, "undetermined .600 ?mixed"),
        (5, {"mixed_ratio": None}, "undetermined .600 ?mixed"),
        (4, {"mixed_ratio": 9.0, "itl_moved": False}, "refuted .600 -4"),
        (0, {"itl_moved": None}, "refuted .600 -0"),
    ],
)
def test_a_few_mixed_steps_are_anecdotes(num_mixed, given, expected):
    signals = mixed_steps(*[(100, 20.0)] * num_mixed)
    assert says(RULE, signals, excess=None, **(STALLS | given)) == expected


def blocked(*, waits: int = 5, streams: int = 1, ms: float = 16.0, floor: bool = True) -> Signals:
    """An engine that schedules prefill first: after every two decode steps of 8 ms a prefill step of `ms`."""
    steps: list[StepRecord] = []
    now = 0
    for index in range(3 * waits):
        prefill = index % 3 == 2
        cost = round((ms if prefill else 8.0) * MS)
        after = index % 3 == 0 and index
        steps.append(
            make_record(
                index,
                start_ns=now,
                emit_ns=now + cost,
                end_ns=now + cost,
                kind=StepKind.PREFILL if prefill else StepKind.DECODE,
                num_decode_seqs=0 if prefill else streams,
                decode_context_tokens=0 if prefill else 100,
                prefill_tokens=100 if prefill else 0,
                num_prefill_seqs=int(prefill),
                forward_ns=cost if floor or prefill else 0,
                sample_ns=0,
                forward_cpu_ns=None,
                num_regular_gaps=0 if prefill or after or not index else streams,
                late_gaps_ns=(round((ms + 8.0) * MS),) * streams if after else (),
            )
        )
        now += cost
    tail = [make_record(3 * waits, start_ns=now, emit_ns=now + 8 * MS, end_ns=now + 8 * MS, forward_ns=8 * MS,
                        sample_ns=0, forward_cpu_ns=None, late_gaps_ns=(round((ms + 8.0) * MS),) * streams)]  # fmt: skip
    return make_signals(counters={"tokens_prefill": 600}, steps=(*steps, *tail))


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (blocked(waits=5), "refuted .600 +3 +0.1 -0 =0"),
        (blocked(waits=6, ms=8.0), "refuted .600 +2 +0.1 -0 =0"),
        (blocked(waits=5, ms=2.0), "refuted .600 -1.25 +0.1 -0 =0"),
        (blocked(waits=5, streams=3), "refuted .600 +3 +0.1 -0 =0"),
    ],
)
def test_streams_that_wait_for_whole_prefill_steps(signals, expected):
    assert says(RULE, signals, excess=None, **STALLS) == expected


def test_streams_that_waited_together_count_once():
    """Four waits of three streams each are four."""
    few = blocked(waits=4, streams=3)
    more = tuple(make_record(100 + i, forward_ns=8 * MS, sample_ns=0, forward_cpu_ns=None) for i in range(4))
    few.steps = (*few.steps, *more)
    assert says(RULE, few, excess=None, **STALLS) == "undetermined .600 ?mixed"
