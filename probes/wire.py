"""Step records as JSON lines, with a schema version; decoding is strict and says where it failed."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
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
            value = _parse(line)
            if number == 1:
                if not is_steps_header(value):
                    raise WireError("the first line is not a step header")
                header = decode_header(value)
            else:
                records.append(_known_step(value) or decode_step(value))
        except (json.JSONDecodeError, WireError) as error:
            raise WireError(f"line {number}: {error}") from None
    assert header is not None
    return header, records


_raw_decode = json.JSONDecoder().raw_decode


def _parse(line: str) -> Any:
    """`json.loads` without its search for margins, which our own encoder does not write."""
    try:
        value, end = _raw_decode(line)
    except json.JSONDecodeError:
        return json.loads(line)
    return value if end == len(line) else json.loads(line)


_values = itemgetter(*StepRecord._fields)
_census_values = itemgetter(*BlockCensus._fields)
_device_values = itemgetter(*DeviceTime._fields)
_KIND, _DEVICE, _LATE, _CENSUS = (StepRecord._fields.index(n) for n in ("kind", "device_ns", "late_gaps_ns", "census"))
_KINDS = {kind.value: kind for kind in StepKind}
_CENSUS_TYPES = (int,) * len(BlockCensus._fields)
_DEVICE_TYPES = (int,) * len(DeviceTime._fields)
_MAX_SHAPES = 256
_shapes: set[tuple[type, ...]] = set()
"""Types of the fields of records that `decode_step` has accepted. Few: a field is an integer or unknown."""


def _known_step(value: Any) -> StepRecord | None:
    """A record of a shape that was accepted before, in half the time; None when `decode_step` has to look at it closely."""
    try:
        values = _values(value)
        shape = tuple(map(type, values))
        kind, device, late, census = _KINDS[values[_KIND]], values[_DEVICE], tuple(values[_LATE]), values[_CENSUS]
        if census is not None:
            census = _exact(census, _census_values, _CENSUS_TYPES, BlockCensus)
        if device is not None:
            device = _exact(device, _device_values, _DEVICE_TYPES, DeviceTime)
    except (KeyError, TypeError):
        return None
    if shape not in _shapes:
        if len(_shapes) < _MAX_SHAPES:
            decode_step(value)
            _shapes.add(shape)
        return None
    if late and set(map(type, late)) != {int}:
        return None
    fields = list(values)
    fields[_KIND], fields[_DEVICE], fields[_LATE], fields[_CENSUS] = kind, device, late, census
    return StepRecord._make(fields)


N = TypeVar("N", BlockCensus, DeviceTime)


def _exact(value: Any, get: Callable[[Any], tuple[Any, ...]], types: tuple[type, ...], made: type[N]) -> N:
    """Raises KeyError or TypeError when it does not hold these fields, these only, and integers in them."""
    values = get(value)
    if len(value) != len(types) or tuple(map(type, values)) != types:
        raise TypeError
    return made._make(values)
