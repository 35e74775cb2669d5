"""JSON answers of a server as evidence: its settings and load (one answer or several in time order), or a list of steps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from diagnose.dialects.registry import DIALECTS
from diagnose.dialects.state import Path, StateShape, StepShape, at, number
from diagnose.dialects.states import STATE_SHAPES, STEP_SHAPES
from diagnose.observation import Event, Span
from diagnose.signals import Counter, Gauge, Signals
from diagnose.sources.readers import parse_json
from diagnose.sources.steps import CountedStep, add_steps
from probes.recording import Entry

_ONLY = "version"
"""A shape of this single key is recognised only when the answer holds nothing else: too many things have a version."""


def shape_of(answer: Any) -> StateShape | StepShape | None:
    """What an answer is, by the keys that it holds."""
    for steps in STEP_SHAPES:
        if isinstance(answer, list) and answer and all(at(answer[0], key) is not None for key in steps.keys):
            return steps
    for shape in STATE_SHAPES:
        record = answer[0] if shape.is_list and isinstance(answer, list) and answer else answer
        if shape.is_list is not isinstance(answer, list) or not all(at(record, key) is not None for key in shape.keys):
            continue
        if shape.keys == ((_ONLY,),) and set(answer) != {_ONLY}:
            continue
        return shape
    return None


def states_of(entries: Iterable[Entry]) -> list["StateEvidence"]:
    """One evidence per path; answers that are of no known shape say nothing."""
    found: dict[str, StateEvidence] = {}
    for entry in entries:
        if entry.kind != "state":
            continue
        answer, path = parse_json(entry.body), entry.event or ""
        shape = shape_of(answer)
        if shape is not None:
            found.setdefault(path, StateEvidence(shape, path)).answers.append(answer)
    return list(found.values())


@dataclass(slots=True)
class StateEvidence:
    """Answers of one endpoint in time order, as a source beside metrics pages."""

    shape: StateShape | StepShape
    where: str
    """The file or path that it came from."""
    answers: list[Any] = field(default_factory=list)

    @property
    def origin(self) -> str:
        if isinstance(self.shape, StepShape):
            return f"{self.where}: {self.shape.name}, {sum(map(len, self.answers)):,} steps"
        count = f", {len(self.answers)} answers" if len(self.answers) > 1 else ""
        return f"{self.where}: {self.shape.name}{count}"

    def events(self, span: Span | None) -> Iterable[Event]:
        return ()

    @property
    def warnings(self) -> list[str]:
        return [self.shape.warning] if isinstance(self.shape, StepShape) and self.shape.warning else []

    def signals(self, span: Span | None) -> Signals:
        """Whatever the window: an answer does not say when it was given."""
        shape = self.shape
        signals = Signals(
            shape.engine, None, 0, usage=shape.usage, free_includes_reclaimable=shape.free_includes_reclaimable
        )
        signals.advice = next((d.cannot for d in DIALECTS if d.name == shape.engine), {})
        if isinstance(shape, StepShape):
            self._read_steps(signals, shape)
        else:
            self._read_state(signals, shape)
        return signals

    def _read_state(self, signals: Signals, shape: StateShape) -> None:
        signals.pool_unit = shape.pool_unit
        for signal, places in shape.gauges.items():
            self._add_gauge(signals, signal, self.answers, places, shape.coverage.get(signal, ""))
        computed = [shape.compute(answer) for answer in self.answers] if shape.compute is not None else []
        for signal in {name for values in computed for name in values}:
            series = tuple(values[signal] for values in computed if signal in values)
            signals.gauges[signal] = Gauge(series, shape.name, shape.coverage.get(signal, ""))
        for name, places in shape.info.items():
            found = next((value for place in places if (value := at(self.answers[-1], place)) is not None), None)
            if found is not None:
                text = str(found).removeprefix("torch.")
                signals.info = {**signals.info, name: {"True": "true", "False": "false"}.get(text, text)}

    def _read_steps(self, signals: Signals, shape: StepShape) -> None:
        records = [record for answer in self.answers for record in answer if isinstance(record, dict)]
        for signal, places in shape.gauges.items():
            self._add_gauge(signals, signal, records, places, "")
        if "blocks_active" in signals.gauges and "blocks_free" in signals.gauges:
            total = signals.gauges["blocks_active"].last + signals.gauges["blocks_free"].last
            used = signals.gauges.pop("blocks_active")
            signals.gauges.pop("blocks_free")
            if total:
                text = "blocks of live requests: the free ones hold released content that can be used again"
                signals.gauges["pool_usage"] = Gauge(tuple(v / total for v in used.values), shape.name, text)
        paused = signals.gauges.get("paused")
        if paused is not None:
            rises = sum(max(0.0, after - before) for before, after in pairwise(paused.values))
            text = "at least: rises of paused requests from record to record"
            signals.counters["preemptions"] = Counter(rises, shape.name, text, late=True)
        steps = [
            CountedStep(
                seconds=(number(at(record, shape.milliseconds)) or 0.0) / 1e3,
                prefill_requests=int(number(at(record, shape.prefill_requests)) or 0),
                prefill_tokens=int(number(at(record, shape.prefill_tokens)) or 0),
                decode_requests=int(number(at(record, shape.decode_requests)) or 0),
            )
            for record in records
        ]
        add_steps(signals, steps, shape.name, shape.coverage)
        signals.length_seconds = sum(step.seconds for step in steps) or None

    def _add_gauge(
        self, signals: Signals, name: str, answers: Sequence[Any], places: tuple[Path, ...], text: str
    ) -> None:
        values = [
            next((value for place in places if (value := number(at(answer, place))) is not None), None)
            for answer in answers
        ]
        known = tuple(value for value in values if value is not None)
        if known:
            signals.gauges[name] = Gauge(known, self.shape.name, text)
