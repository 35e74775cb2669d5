"""From a read log to signals: levels become gauges, rates and counts become growth, step lines become step durations."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from diagnose.dialects.log import Figure, PeriodicLine, Reads
from diagnose.observation import Event, Span
from diagnose.signals import Counter, Gauge, HistogramWindow, Signals
from diagnose.sources.engine_log import FACTS_AS_GAUGES, EngineLog, LoadSample, LoggedStep
from diagnose.stats import median

_MAX_BOUNDS = 500
_FAILURES = frozenset({"out_of_memory", "engine_dead", "collective_timeout", "device_error", "leak"})
"""Events that a healthy engine never logs: counted as failures."""


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """A log as a supplement of an observation."""

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

    @property
    def events(self) -> Iterable[Event]:
        return self.log.events

    def signals(self, span: Span | None) -> Signals:
        """Of the lines within the window's time where both know theirs. Settings hold whenever they were stated."""
        log = self.log
        samples, steps = list(log.samples), list(log.steps)
        if span is not None and (inside := [s for s in samples if _within(s.unix, span)]):
            samples = inside
        if span is not None and (inside_steps := [s for s in steps if _within(s.unix, span)]):
            steps = inside_steps
        engine = log.engine
        signals = Signals(
            dialect=f"{engine.engine} log" if engine is not None else "log",
            length_seconds=_length(samples, steps),
            num_scrapes=0,
            usage=engine.usage if engine is not None else None,
            free_includes_reclaimable=True if engine is not None and engine.usage is not None else None,
            advice=engine.cannot if engine is not None else {},
            info={name: value for name, value in log.facts.items() if name not in FACTS_AS_GAUGES},
        )
        for name in FACTS_AS_GAUGES & log.facts.keys():
            signals.gauges[name] = Gauge((float(log.facts[name].replace(",", "")),), "start-up log")
        for line in {id(sample.line): sample.line for sample in samples}.values():
            _read_load(signals, line, [sample for sample in samples if sample.line is line])
        _read_steps(signals, steps)
        _read_events(signals, log)
        return signals


def _within(unix: float | None, span: Span) -> bool:
    return unix is not None and span.start <= unix <= span.end


def _length(samples: Sequence[LoadSample], steps: Sequence[LoggedStep]) -> float | None:
    """From the first line's interval on to the last line."""
    stamps = [sample.unix for sample in samples if sample.unix is not None]
    if len(stamps) >= 2 and samples[0].line.every_seconds is not None:
        return stamps[-1] - stamps[0] + _intervals(samples)[0]
    stamps = stamps or [step.unix for step in steps if step.unix is not None]
    if len(stamps) >= 2 and stamps[-1] > stamps[0]:
        return stamps[-1] - stamps[0]
    return sum(step.seconds for step in steps) or None


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


def _read_load(signals: Signals, line: PeriodicLine, samples: list[LoadSample]) -> None:
    instances: dict[str, list[LoadSample]] = {}
    for sample in samples:
        instances.setdefault(sample.instance, []).append(sample)
    for index, figure in enumerate(line.figures):
        if not any(sample.values[index] is not None for sample in samples):
            continue
        if figure.reads is Reads.LEVEL:
            values = _levels(figure, index, samples, len(instances))
            signals.gauges.setdefault(figure.signal, Gauge(tuple(values), line.name, figure.coverage))
        else:
            growth = sum(_growth(figure, index, one) for one in instances.values())
            signals.counters.setdefault(figure.signal, Counter(growth, line.name, figure.coverage, figure.late))


def _levels(figure: Figure, index: int, samples: list[LoadSample], num_instances: int) -> list[float]:
    """One value per line; of several engines the sum of the last known ones, and of shares the highest."""
    latest: dict[str, float] = {}
    values: list[float] = []
    for sample in samples:
        value = sample.values[index]
        if value is None:
            continue
        latest[sample.instance] = value
        if len(latest) == num_instances:
            values.append(max(latest.values()) if figure.signal == "pool_usage" else sum(latest.values()))
    return values or list(latest.values())


def _growth(figure: Figure, index: int, samples: list[LoadSample]) -> float:
    values = [sample.values[index] for sample in samples]
    if figure.reads is Reads.RATE:
        return sum((value or 0.0) * seconds for value, seconds in zip(values, _intervals(samples), strict=True))
    known = [value for value in values if value is not None]
    if figure.reads is Reads.COUNT:
        return sum(known)
    return sum(after - before if after >= before else after for before, after in pairwise(known))


def _read_steps(signals: Signals, steps: Sequence[LoggedStep]) -> None:
    if not steps:
        return
    line = steps[0].line
    again = [0] * len(steps) if _speculates(steps) else [max(0, s.decode_tokens - s.decode_requests) for s in steps]
    kinds: dict[str, list[float]] = {}
    for step, extra in zip(steps, again, strict=True):
        kinds.setdefault(_kind(step, extra), []).append(step.seconds)
    for name, values in kinds.items():
        signals.histograms[name] = histogram_of(values, line.name, line.coverage)
    prefill = sum(step.prefill_tokens for step in steps)
    signals.counters["tokens_prefill"] = Counter(prefill, line.name, "in the step that computed them")
    signals.counters.setdefault("tokens_decode", Counter(sum(step.decode_requests for step in steps), line.name))
    if any(again) or not _speculates(steps):
        text = "generation tokens beyond one per request: without speculation they are contexts computed again"
        signals.counters["tokens_recompute"] = Counter(sum(again), line.name, text)
        resumed = sum(extra > 0 for extra in again)
        text = f"at least: preempted requests resume in {resumed} steps"
        if resumed > (signals.delta("preemptions") or 0.0):
            signals.counters["preemptions"] = Counter(resumed, line.name, text)
    if decode := kinds.get("step_decode"):
        floor = sum(decode) / len(decode)
        stalled = sum(max(0.0, seconds - floor) for seconds in kinds.get("step_mixed", ()))
        text = "time of mixed steps beyond the mean pure decode step"
        signals.counters["stall_prefill_seconds"] = Counter(stalled, line.name, text)


def _kind(step: LoggedStep, recomputed: int) -> str:
    if step.prefill_tokens:
        return "step_mixed" if step.decode_requests else "step_prefill"
    return "step_recompute" if recomputed else "step_decode"


def _speculates(steps: Sequence[LoggedStep]) -> bool:
    """More tokens than requests in most decode steps is speculation; in a few, it is recompute."""
    decoding = [step for step in steps if step.decode_requests]
    more = sum(step.decode_tokens > step.decode_requests for step in decoding)
    return more * 2 > len(decoding)


def histogram_of(values: Sequence[float], source: str, coverage: str = "") -> HistogramWindow:
    """Known values as a histogram: a bucket ends at each of them, or at every n-th of very many."""
    ordered = sorted(values)
    distinct = sorted(set(ordered))
    stride = -(-len(distinct) // _MAX_BOUNDS)
    bounds = distinct[stride - 1 :: stride]
    if bounds[-1] != distinct[-1]:
        bounds.append(distinct[-1])
    counts, at = [0.0] * (len(bounds) + 1), 0
    for value in ordered:
        while value > bounds[at]:
            at += 1
        counts[at] += 1
    return HistogramWindow(tuple(bounds), tuple(counts), sum(ordered), source, coverage)


def _read_events(signals: Signals, log: EngineLog) -> None:
    """A log that was read to its end and holds no failure counted none."""
    signals.failures = {kind: float(count) for kind, count in log.tally.items() if kind in _FAILURES}
    signals.counters["failures"] = Counter(
        sum(signals.failures.values()), "log", "failures that the log tells of: a process that is killed writes nothing"
    )
    preempted = log.tally.get("preempted")
    if preempted and "preemptions" not in signals.counters:
        signals.counters["preemptions"] = Counter(float(preempted), "preemption warnings")
