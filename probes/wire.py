"""Step records as JSON lines, with a schema version; decoding is strict and says where it failed."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from probes.records import BlockCensus, DeviceTime, StepKind, StepRecord

STEPS_SCHEMA = 1


class WireError(ValueError):
    """A line that is not what its schema says; the text names the line and the field."""


@dataclass(frozen=True, slots=True)
class StepsHeader:
    """First line of a step-record stream."""

    engine_id: str
    """Changes when the engine restarts: step ids of two engines must not be joined."""
    next_id: int
    lost: int
    monotonic_ns: int
    unix_ns: int
    """Both clocks at the time of the answer: monotonic stamps + (unix_ns - monotonic_ns) are wall time."""


def encode_header(header: StepsHeader) -> str:
    return json.dumps(
        {
            "stallscope_steps": STEPS_SCHEMA,
            "engine_id": header.engine_id,
            "next_id": header.next_id,
            "lost": header.lost,
            "monotonic_ns": header.monotonic_ns,
            "unix_ns": header.unix_ns,
        },
        separators=(",", ":"),
    )


def encode_step(record: StepRecord) -> str:
    fields = record._asdict()
    fields["census"] = None if record.census is None else record.census._asdict()
    fields["device_ns"] = None if record.device_ns is None else record.device_ns._asdict()
    return json.dumps(fields, separators=(",", ":"))


def is_steps_header(value: object) -> bool:
    return isinstance(value, dict) and "stallscope_steps" in value


def decode_header(value: dict[str, Any]) -> StepsHeader:
    schema = value.get("stallscope_steps")
    if schema != STEPS_SCHEMA:
        raise WireError(f"step records have schema {schema!r}, this stallscope reads {STEPS_SCHEMA}")
    return StepsHeader(
        engine_id=_field(value, "engine_id", str),
        next_id=_field(value, "next_id", int),
        lost=_field(value, "lost", int),
        monotonic_ns=_field(value, "monotonic_ns", int),
        unix_ns=_field(value, "unix_ns", int),
    )


T = TypeVar("T", str, int)


def _field(value: dict[str, Any], name: str, kind: type[T]) -> T:
    found = value.get(name)
    if type(found) is not kind:
        raise WireError(f"step header: field {name!r} should be {kind.__name__}, found {found!r}")
    return found


_TEXT = frozenset({"kind", "deferral"})
_NESTED = frozenset({"census", "device_ns", "late_gaps_ns"})
_INTEGERS = tuple(name for name in StepRecord._fields if name not in _TEXT | _NESTED)
_REQUIRED = frozenset(
    {
        "step_id",
        "start_ns",
        "emit_ns",
        "end_ns",
        "num_decode_seqs",
        "num_prefill_seqs",
        "forward_ns",
        "num_regular_gaps",
    }
)
"""What a record always knows; the rest is null where its source does not show it."""


def decode_step(value: Any) -> StepRecord:
    """A record from its JSON object.

    Unknown fields of a newer engine are ignored; fields that an older one did not have yet get their default, which says
    that they were not measured. Missing or mistyped ones are an error.
    """
    if not isinstance(value, dict):
        raise WireError(f"step record should be an object, found {type(value).__name__}")
    value = StepRecord._field_defaults | value
    missing = [name for name in StepRecord._fields if name not in value]
    if missing:
        raise WireError(f"step record lacks {', '.join(missing)}")
    for name in _INTEGERS:
        if type(value[name]) is not int and (name in _REQUIRED or value[name] is not None):
            raise WireError(f"step record field {name!r} should be an integer, found {value[name]!r}")
    try:
        kind = StepKind(value["kind"])
        census = None if value["census"] is None else BlockCensus(**value["census"])
        device = None if value["device_ns"] is None else DeviceTime(**value["device_ns"])
        late_gaps = tuple(value["late_gaps_ns"])
    except (TypeError, ValueError) as error:
        raise WireError(f"step record {value['step_id']}: {error}") from None
    if not all(type(number) is int for group in (census or (), device or (), late_gaps) for number in group):
        raise WireError(f"step record {value['step_id']}: census, device_ns and late_gaps_ns should hold integers")
    fields = {name: value[name] for name in StepRecord._fields}
    fields |= {"kind": kind, "census": census, "device_ns": device, "late_gaps_ns": late_gaps}
    return StepRecord(**fields)


def encode_steps(header: StepsHeader, records: Iterable[StepRecord]) -> Iterator[str]:
    """Lines, each ending in a newline, header first."""
    yield encode_header(header) + "\n"
    for record in records:
        yield encode_step(record) + "\n"


def decode_steps(text: str) -> tuple[StepsHeader, list[StepRecord]]:
    """The answer of `/debug/steps`. Raises WireError with the line number."""
    lines = text.splitlines()
    if not lines:
        raise WireError("empty answer where step records were expected")
    header: StepsHeader | None = None
    records: list[StepRecord] = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            if number == 1:
                if not is_steps_header(value):
                    raise WireError("the first line is not a step header")
                header = decode_header(value)
            else:
                records.append(decode_step(value))
        except (json.JSONDecodeError, WireError) as error:
            raise WireError(f"line {number}: {error}") from None
    assert header is not None
    return header, records
