"""From a read log to signals: levels become gauges, rates and counts become growth, step lines become step durations."""

from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from diagnose.dialects.log import Figure, Reads
from diagnose.load import LoadPoint
from diagnose.observation import Event, Span
from diagnose.signals import Counter, Gauge, Signals
from diagnose.sources.engine_log import FACTS_AS_GAUGES, UNTIMED, EngineLog, LoadSample, LoggedStep, read_log
from diagnose.sources.steps import add_steps, histogram_of
from diagnose.stats import median
from probes.recording import Entry

_FAILURES = frozenset(
    {"out_of_memory", "engine_dead", "collective_timeout", "collective_failed", "device_error", "leak"}
    | {"connection_dropped"}
)
"""Events that a healthy engine never logs: counted as failures."""
_OF_EACH_ENGINE = frozenset({"max_sequences", "pool_tokens", "pool_blocks"})
"""Stated by each engine for itself: several engines of one log have so much together."""
_LOOK_BACK_SECONDS = 600.0
"""What happened so long before a window may still be what is seen in it."""
_CLOCKS_APART_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """A log as a source beside metrics pages."""

    log: EngineLog

    @property
    def origin(self) -> str:
        log = self.log
        engine = f"a log of {log.engine.engine}" if log.engine is not None else "a log of no engine this version knows"
        version = f" {log.facts['version']}" if "version" in log.facts else ""
        kinds = (
            (len(log.samples), "periodic lines"),
            (len(log.steps), "step lines"),
            (sum(log.tally.values()), "events"),
            (len(log.facts), "settings"),
        )
        found = ", ".join(f"{count:,} {kind}" for count, kind in kinds if count) or "nothing that a rule reads"
        return f"{log.name}: {engine}{version}, {log.num_lines:,} lines: {found}"

    def events(self, span: Span | None) -> Iterable[Event]:
        """A failure of last week is not one of this window."""
        events = self.log.events
        if span is None:
            return events
        near = Span(span.start - _LOOK_BACK_SECONDS, span.end + _CLOCKS_APART_SECONDS)
        return [event for event in events if event.unix == UNTIMED or _within(event.unix, near)]

    def signals(self, span: Span | None) -> Signals:
        """Of the lines within the window's time where both know theirs. Settings hold whenever they were stated."""
        log = self.log
        samples = [
            sample for sample in log.samples if span is None or sample.unix is None or _within(sample.unix, span)
        ]
        steps = [step for step in log.steps if span is None or step.unix is None or _within(step.unix, span)]
        engine = log.engine
        signals = Signals(
            dialect=f"{engine.engine} log" if engine is not None else "log",
            length_seconds=_length(samples, steps),
            num_scrapes=0,
            usage=engine.usage if engine is not None else None,
            free_includes_reclaimable=True if engine is not None and engine.usage is not None else None,
            advice=engine.cannot if engine is not None else {},
            notes=(*self._of_another_time(span, bool(samples or steps)), *self._silent(span)),
            info={name: value for name, value in log.facts.items() if name not in FACTS_AS_GAUGES},
        )
        _read_load(signals, samples)
        signals.load = _load_points(samples)
        _read_replicas(signals, samples)
        for name in FACTS_AS_GAUGES & log.facts.keys():
            count = (signals.num_replicas or 1) if name in _OF_EACH_ENGINE else 1
            signals.gauges[name] = Gauge((count * float(log.facts[name].replace(",", "")),), "start-up log")
        if steps:
            counted = [step.counted for step in steps]
            add_steps(signals, counted, steps[0].line.name, steps[0].line.coverage)
        self._read_failures(signals, span)
        return signals

    def _silent(self, span: Span | None) -> tuple[str, ...]:
        log = self.log
        if span is not None or log.samples or log.steps:
            return ()
        why = log.engine.silent if log.engine is not None else ""
        return (f"{log.name}: none of its {log.num_lines:,} lines tells of load{f' ({why})' if why else ''}",)

    def _of_another_time(self, span: Span | None, used: bool) -> tuple[str, ...]:
        log = self.log
        if span is None or used or not (log.samples or log.steps) or log.first_unix is None or log.last_unix is None:
            return ()
        return (
            f"{log.name}: its lines are of another time ({_moment(log.first_unix)} to {_moment(log.last_unix)}, the window is "
            f"{_moment(span.start)} to {_moment(span.end)} by this machine's clock): only its settings are used",
        )

    def _read_failures(self, signals: Signals, span: Span | None) -> None:
        """A log that was read to its end and holds no failure counted none."""
        tally = self.log.tally if span is None else Tally(event.kind for event in self.events(span))
        signals.failures = {kind: float(count) for kind, count in tally.items() if kind in _FAILURES}
        signals.counters["failures"] = Counter(
            sum(signals.failures.values()),
            "log",
            "failures that the log tells of: a process that is killed writes nothing",
        )
        preempted = tally.get("preempted")
        if preempted and "preemptions" not in signals.counters:
            signals.counters["preemptions"] = Counter(float(preempted), "preemption warnings")
        moved = sum(tally.get(kind, 0) for kind in ("transfer_failed", "transfer_timeout"))
        if moved:
            signals.counters["transfer_failures"] = Counter(float(moved), "log")


def logs_of(entries: Iterable[Entry]) -> list[LogEvidence]:
    """The log that was recorded beside a target, if it was."""
    kept = [entry for entry in entries if entry.kind == "log"]
    if not kept:
        return []
    lines = (line for entry in kept for line in entry.body.split("\n"))
    log = read_log("recorded log", lines, kept[-1].unix)
    return [LogEvidence(log)] if log.num_read else []


def _moment(unix: float) -> str:
    return datetime.fromtimestamp(unix).isoformat(" ", "seconds")


def _within(unix: float | None, span: Span) -> bool:
    return unix is not None and span.start <= unix <= span.end


def _length(samples: Sequence[LoadSample], steps: Sequence[LoggedStep]) -> float | None:
    """From the first line's interval on to the last line, of the engine that was heard longest."""
    instances: dict[str, list[LoadSample]] = {}
    for sample in samples:
        instances.setdefault(sample.instance, []).append(sample)
    lengths = [
        known[-1] - known[0] + _intervals(own)[0]
        for own in instances.values()
        if own[0].line.every_seconds is not None
        and len(known := [sample.unix for sample in own if sample.unix is not None]) >= 2
    ]
    if lengths:
        return max(lengths)
    stamps = [sample.unix for sample in samples if sample.unix is not None]
    stamps = stamps or [step.unix for step in steps if step.unix is not None]
    if len(stamps) >= 2 and stamps[-1] > stamps[0]:
        return stamps[-1] - stamps[0]
    return sum(step.counted.seconds for step in steps) or None


def _intervals(samples: Sequence[LoadSample]) -> list[float]:
    """Seconds that each line speaks of. After a silence (idle engines write nothing) it is the usual interval."""
    usual = samples[0].line.every_seconds or 0.0
    gaps = [
        after.unix - before.unix if after.unix is not None and before.unix is not None else usual
        for before, after in pairwise(samples)
    ]
    shortest = median(gaps) if gaps else usual
    if 0 < shortest < usual:
        usual = shortest
    return [usual, *(gap if 0 < gap <= 1.5 * usual or not usual else usual for gap in gaps)]


def _read_load(signals: Signals, samples: list[LoadSample]) -> None:
    """One signal may stand in several kinds of lines: its levels are read from all of them, its growth from the first kind."""
    lines = list({id(sample.line): sample.line for sample in samples}.values())
    for signal in dict.fromkeys(figure.signal for line in lines for figure in line.figures):
        stated = [(line, index, f) for line in lines for index, f in enumerate(line.figures) if f.signal == signal]
        if stated[0][2].reads is Reads.LEVEL:
            places = {id(line): index for line, index, _ in stated}
            levels = _levels(signal, places, samples)
            if levels:
                source = " and ".join(line.name for line, _, _ in stated)
                signals.gauges[signal] = Gauge(tuple(levels), source, stated[0][2].coverage)
            continue
        line, index, figure = stated[0]
        if figure.reads is Reads.DURATION:
            known = [value for sample in samples if sample.line is line and (value := sample.values[index]) is not None]
            if known:
                signals.histograms[signal] = histogram_of(known, line.name, figure.coverage)
            continue
        instances: dict[str, list[LoadSample]] = {}
        for sample in samples:
            if sample.line is line:
                instances.setdefault(sample.instance, []).append(sample)
        if any(sample.values[index] is not None for one in instances.values() for sample in one):
            growth = sum(_growth(figure, index, one) for one in instances.values())
            signals.counters[signal] = Counter(growth, line.name, figure.coverage, figure.late)


def _read_replicas(signals: Signals, samples: Sequence[LoadSample]) -> None:
    """Each of several engines whose lines are in one log (data parallelism, several pods) as a replica."""
    each: dict[str, list[LoadSample]] = {}
    for sample in samples:
        if sample.instance and any(figure.signal == "running" for figure in sample.line.figures):
            each.setdefault(sample.instance, []).append(sample)
    if len(each) < 2:
        return
    signals.num_replicas = len(each)
    for name, own in sorted(each.items()):
        one = Signals(signals.dialect, _length(own, ()), 0, num_replicas=1, usage=signals.usage)
        _read_load(one, own)
        one.load = _load_points(own)
        signals.replicas[name] = one


def _load_points(samples: Sequence[LoadSample]) -> tuple[LoadPoint, ...]:
    """Of one engine's lines that state its load; lines of several engines in one log do not make one series."""
    stating = [sample for sample in samples if any(figure.signal == "running" for figure in sample.line.figures)]
    if len({sample.instance for sample in stating}) > 1:
        return ()
    timed = [sample for sample in stating if sample.line.every_seconds is not None]
    lengths = dict(zip(map(id, timed), _intervals(timed) if timed else [], strict=True))
    return tuple(_load_point(sample, lengths.get(id(sample), 0.0)) for sample in stating)


def _load_point(sample: LoadSample, seconds: float) -> LoadPoint:
    stated = {figure.signal: value for figure, value in zip(sample.line.figures, sample.values, strict=True)}
    return LoadPoint(
        seconds,
        stated.get("running"),
        stated.get("waiting"),
        stated.get("pool_usage"),
        stated.get("tokens_decode"),
        stated.get("tokens_prefill"),
        stated.get("streams_before_prefill"),
    )


def _levels(signal: str, places: dict[int, int], samples: list[LoadSample]) -> list[float]:
    """One value per line that states it; of several engines the sum of the last known ones, and of shares the highest."""
    stating = [
        (sample.instance, value)
        for sample in samples
        if id(sample.line) in places and (value := sample.values[places[id(sample.line)]]) is not None
    ]
    num_instances = len({instance for instance, _ in stating})
    latest: dict[str, float] = {}
    values: list[float] = []
    for instance, value in stating:
        latest[instance] = value
        if len(latest) == num_instances:
            values.append(max(latest.values()) if signal == "pool_usage" else sum(latest.values()))
    return values


def _growth(figure: Figure, index: int, samples: list[LoadSample]) -> float:
    values = [sample.values[index] for sample in samples]
    if figure.reads is Reads.RATE:
        return sum((value or 0.0) * seconds for value, seconds in zip(values, _intervals(samples), strict=True))
    known = [value for value in values if value is not None]
    if figure.reads is Reads.COUNT:
        return sum(known)
    return sum(after - before if after >= before else after for before, after in pairwise(known))
