"""From an observation to signals: counters and histograms become window deltas with resets detected."""

from collections.abc import Iterable
from itertools import pairwise
from math import inf

from diagnose.dialects.base import Dialect, Pick
from diagnose.errors import NotEnough
from diagnose.exposition import Exposition
from diagnose.observation import Observation
from diagnose.signals import Counter, Gauge, HistogramWindow, Signals


def build_signals(observation: Observation, dialect: Dialect) -> Signals:
    """Raises NotEnough when there are fewer than two scrapes: a single one has no window."""
    if len(observation.scrapes) < 2 and not observation.steps:
        raise NotEnough(
            f"{observation.target}: {len(observation.scrapes)} scrape has no window; counters need two. "
            "Give a second file, a recording, or watch the live target"
        )
    pages = [scrape.page for scrape in observation.scrapes]
    signals = Signals(
        dialect=dialect.name,
        length_seconds=observation.length_seconds,
        num_scrapes=len(pages),
        free_includes_reclaimable=dialect.free_includes_reclaimable,
        steps=tuple(observation.steps),
        steps_lost=observation.steps_lost,
        steps_source=dialect.debug_steps_path or "",
    )
    if pages:
        _read_gauges(signals, pages, dialect)
        _read_info(signals, pages, dialect)
    if len(pages) >= 2:  # the growth over one page is not zero, it is unknown
        _read_counters(signals, pages, dialect)
        _read_histograms(signals, pages, dialect)
        _detect_restart(signals)
    return signals


def _increase(values: Iterable[float]) -> float:
    """Growth of a cumulative series; a fall is a reset, after which the new value is all growth."""
    return sum(after - before if after >= before else after for before, after in pairwise(values))


def _read_counters(signals: Signals, pages: list[Exposition], dialect: Dialect) -> None:
    for name, pick in dialect.counters.items():
        series = _series(pages, pick)
        if series is not None:
            signals.counters[name] = Counter(_increase(series), str(pick))
    if dialect.failures is not None and any(_has_family(page, dialect.failures) for page in pages):
        kinds = {dict(key).get("kind", "unknown") for page in pages for key in page.samples.get(dialect.failures, ())}
        for kind in sorted(kinds):
            # A label that first appears inside the window started from zero.
            values = [page.value(dialect.failures, kind=kind) or 0.0 for page in pages]
            signals.failures[kind] = _increase(values)
        signals.counters["failures"] = Counter(sum(signals.failures.values()), dialect.failures)


def _read_info(signals: Signals, pages: list[Exposition], dialect: Dialect) -> None:
    if dialect.info is not None:
        for page in pages:
            for key in page.samples.get(dialect.info, {}):
                signals.info = dict(key)


def _has_family(page: Exposition, metric: str) -> bool:
    """A declared family without samples says zero; an undeclared one says nothing."""
    return metric in page.samples or metric in page.types


def _series(pages: list[Exposition], pick: Pick) -> list[float] | None:
    """One value per page. A series that a page lacks counts as zero only if another page has it."""
    labels = dict(pick.labels)
    values = [page.value(pick.metric, **labels) for page in pages]
    if all(value is None for value in values):
        # A labelled counter without the label yet: the family is there, so zero is known.
        return [0.0] * len(pages) if labels and any(_has_family(page, pick.metric) for page in pages) else None
    return [0.0 if value is None else value for value in values]


def _read_gauges(signals: Signals, pages: list[Exposition], dialect: Dialect) -> None:
    for name, pick in dialect.gauges.items():
        labels = dict(pick.labels)
        family = [page for page in pages if _has_family(page, pick.metric)]
        values = [page.value(pick.metric, **labels) for page in family]
        known = [value for value in values if value is not None]
        if known:
            signals.gauges[name] = Gauge(tuple(0.0 if value is None else value for value in values), str(pick))
        elif family and labels:
            signals.gauges[name] = Gauge((0.0,) * len(family), str(pick))


def _read_histograms(signals: Signals, pages: list[Exposition], dialect: Dialect) -> None:
    for name, pick in dialect.histograms.items():
        window = _histogram(pages, pick)
        if window is not None:
            signals.histograms[name] = window


def _histogram(pages: list[Exposition], pick: Pick) -> HistogramWindow | None:
    cumulative = [_cumulative_buckets(page, pick) for page in pages]
    bounds = sorted({bound for buckets in cumulative for bound in buckets})
    if not bounds or bounds[-1] != inf:
        return None
    growth = [_increase(buckets.get(bound, 0.0) for buckets in cumulative) for bound in bounds]
    counts = [growth[0], *(max(0.0, after - before) for before, after in pairwise(growth))]
    sums = [page.value(pick.metric + "_sum", **dict(pick.labels)) or 0.0 for page in pages]
    return HistogramWindow(tuple(bounds[:-1]), tuple(counts), _increase(sums), str(pick))


def _cumulative_buckets(page: Exposition, pick: Pick) -> dict[float, float]:
    buckets: dict[float, float] = {}
    for key, value in page.samples.get(pick.metric + "_bucket", {}).items():
        if all(pair in key for pair in pick.labels):
            bound = float(dict(key).get("le", "nan"))
            buckets[bound] = buckets.get(bound, 0.0) + value
    return buckets


def _detect_restart(signals: Signals) -> None:
    starts = signals.gauges.get("start_time")
    if starts is None:
        return
    for index, (before, after) in enumerate(pairwise(starts.values)):
        if abs(after - before) > 1.0:
            signals.restarted = True
            running = signals.gauges.get("running")
            if running is not None and index < len(running.values):
                signals.running_before_restart = running.values[index]
