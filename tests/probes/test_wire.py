"""Records survive the wire, and what is no record is refused with its line."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.records import BlockCensus, DeferralReason, DeviceTime, StepKind, StepRecord
from probes.wire import StepsHeader, WireError, decode_steps, encode_steps
from tests.probes.records import make_record

HEADER = StepsHeader("engine", 7, 0, 123, 456)

numbers = st.integers(0, 2**62)
records = st.builds(
    make_record,
    numbers,
    start_ns=numbers,
    kind=st.sampled_from(StepKind),
    prefill_tokens=numbers,
    host_gap_ns=st.none() | numbers,
    forward_cpu_ns=st.none() | numbers,
    device_ns=st.none() | st.builds(DeviceTime, *[numbers] * len(DeviceTime._fields)),
    ghost_hits=st.none() | numbers,
    deferral=st.none() | st.sampled_from(DeferralReason),
    late_gaps_ns=st.lists(numbers, max_size=4).map(tuple),
    census=st.builds(BlockCensus, numbers, numbers, numbers),
)
headers = st.builds(StepsHeader, st.text(max_size=20), numbers, numbers, numbers, numbers)


@settings(max_examples=50)
@given(headers, st.lists(records, max_size=4))
def test_round_trip(header: StepsHeader, sent: list[StepRecord]):
    text = "".join(encode_steps(header, sent))
    assert decode_steps(text) == (header, sent)
    assert text.count("\n") == len(sent) + 1


def mutated(**changes: object) -> str:
    lines = "".join(encode_steps(HEADER, [make_record(), make_record(1)])).splitlines()
    value = json.loads(lines[2])
    for name, change in changes.items():
        if change is ...:
            del value[name]
        else:
            value[name] = change
    return "\n".join([*lines[:2], json.dumps(value)])


def test_fields_of_a_newer_engine_are_ignored():
    _, decoded = decode_steps(mutated(something_new=1))
    assert decoded[1] == make_record(1)


def test_fields_that_an_older_engine_did_not_have_are_not_measured():
    _, decoded = decode_steps(mutated(ghost_hits=...))
    assert decoded[1] == make_record(1)
    assert decoded[1].ghost_hits is None


def test_what_a_source_does_not_measure_stays_unmeasured():
    """Zero would be a measurement."""
    record = make_record(0, census=None, schedule_ns=None, decode_context_tokens=None, prefill_tokens=None)
    assert decode_steps("".join(encode_steps(HEADER, [record])))[1] == [record]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"forward_ns": ...}, "forward_ns"),
        ({"forward_ns": 1.5}, "forward_ns"),
        ({"forward_ns": None}, "forward_ns"),
        ({"forward_ns": True}, "forward_ns"),
        ({"host_gap_ns": "1"}, "host_gap_ns"),
        ({"ghost_hits": 0.5}, "ghost_hits"),
        ({"kind": "sleep"}, "sleep"),
        ({"census": {"active": 1}}, "step record 1"),
        ({"census": 7}, "step record 1"),
        ({"census": {"active": 1, "reclaimable": None, "free": 2}}, "step record 1"),
        ({"device_ns": {"warp": 1}}, "warp"),
    ],
)
def test_a_bad_record_is_refused_with_its_line_and_field(changes: dict[str, object], said: str):
    with pytest.raises(WireError, match="line 3") as caught:
        decode_steps(mutated(**changes))
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json", '{"stallscope_steps":99}', '{"stallscope_steps":1}'])
def test_what_is_no_answer_is_refused(text: str):
    with pytest.raises(WireError):
        decode_steps(text)
