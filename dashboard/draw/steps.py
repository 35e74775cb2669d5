"""Step timelines: one column a step, newest on the right, by kind or by class of device time."""

from collections.abc import Callable, Sequence

from dashboard.draw.chart import AXIS_WIDTH, Series, stacked
from dashboard.draw.spans import Line, Span
from dashboard.model.digest import host_ns
from diagnose.units import seconds
from probes.records import OpClass, StepRecord


def step_seconds(record: StepRecord) -> float:
    return (record.end_ns - record.start_ns) / 1e9


def step_columns(width: int) -> int:
    return max(0, width - AXIS_WIDTH)


def _columns(
    records: Sequence[StepRecord], width: int, parts: Sequence[tuple[str, Callable[[StepRecord], float | None]]]
) -> list[Series]:
    """Right-aligned: a short list leaves the left side empty."""
    empty = [None] * max(0, step_columns(width) - len(records))
    return [Series([*empty, *(value(record) for record in records)], role) for role, value in parts]


def durations(records: Sequence[StepRecord], width: int, height: int) -> list[Line]:
    """Wall time of each step, coloured by its kind."""

    def of_kind(kind: str) -> Callable[[StepRecord], float | None]:
        return lambda record: step_seconds(record) if record.kind == kind else None

    parts = [(kind, of_kind(kind)) for kind in ("decode", "mixed", "prefill")]
    return stacked(_columns(records, width, parts), width, height, seconds)


def device_time(records: Sequence[StepRecord], width: int, height: int) -> list[Line]:
    """Device time of each step, stacked by class."""

    def of_class(place: int) -> Callable[[StepRecord], float | None]:
        return lambda record: None if record.device_ns is None else record.device_ns[place] / 1e9

    parts = [(op.value, of_class(place)) for place, op in enumerate(OpClass)]
    return stacked(_columns(records, width, parts), width, height, seconds)


def host_time(records: Sequence[StepRecord], width: int, height: int) -> list[Line]:
    """Host work, lock wait and the device's idle time before each step."""
    parts: list[tuple[str, Callable[[StepRecord], float | None]]] = [
        ("host", lambda record: host_ns(record) / 1e9),
        ("lock", lambda record: (record.lock_wait_ns or 0) / 1e9),
        ("gap", lambda record: (record.host_gap_ns or 0) / 1e9),
    ]
    return stacked(_columns(records, width, parts), width, height, seconds)


def pointer(records: Sequence[StepRecord], step_id: int, width: int) -> Line:
    """A mark under the selected step's column."""
    places = [place for place, record in enumerate(records) if record.step_id == step_id]
    if not places:
        return [Span(" " * width)]
    text = f"^ step {step_id}"
    x = width - len(records) + places[0]
    if x + len(text) > width:
        text = f"step {step_id} ^"
        x -= len(text) - 1
    return [Span(" " * max(0, x)), Span(text, "cursor")]
