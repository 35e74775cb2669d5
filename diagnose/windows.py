"""From an observation to signals: counters and histograms become window deltas with resets detected."""

from collections.abc import Iterable
from itertools import pairwise
from math import inf, isfinite
from typing import NamedTuple

from diagnose.dialects.base import Dialect, Pick
from diagnose.errors import NotEnough
from diagnose.exposition import Exposition
from diagnose.observation import Observation
from diagnose.signals import Counter, Gauge, HistogramWindow, Signals
from probes.host_profile import HostProfile


def build_signals(observation: Observation, dialect: Dialect) -> Signals:
    """Raises NotEnough when there are fewer than two scrapes: a single one has no window.

    A target that went away after its first answer needs no window: that it is gone is evidence enough.
    """
    gone = any(event.kind == "gone" for event in observation.events)
    if (
        len(observation.scrapes) < 2
        and not observation.steps
        and not observation.profiles
        and not gone
        and not observation.host
    ):
        raise NotEnough(
            f"{observation.target}: {len(observation.scrapes)} scrape has no window; counters need two. "
            "Give a second file, a recording, or watch the live target"
        )
    pages = _mark_restarts([scrape.page for scrape in observation.scrapes], dialect)
    signals = Signals(
        dialect=dialect.name,
        length_seconds=observation.length_seconds,
        num_scrapes=len(pages),
        num_replicas=1 if pages else None,
        features_absent=dialect.features_absent,
        free_includes_reclaimable=dialect.free_includes_reclaimable,
        steps=tuple(observation.steps),
        steps_lost=observation.steps_lost,
        steps_source=dialect.debug_steps_path or "",
    )
    if observation.host is not None:
        _read_host(signals, observation.host)
    if pages:
        _read_gauges(signals, pages, dialect)
        _read_info(signals, pages, dialect)
    if len(pages) >= 2:  # the growth over one page is not zero, it is unknown
        _read_counters(signals, pages, dialect)
        _read_histograms(signals, pages, dialect)
        _detect_restart(signals)
    return signals


def _read_host(signals: Signals, host: HostProfile) -> None:
    signals.host = host
    source = f"host probe of process {host.pid}"
    for name, share in (("host_delay_share", host.delay_share), ("host_gil_held_share", host.gil_held_share)):
        if share is not None:
            signals.gauges[name] = Gauge((share,), source)
    if signals.length_seconds is None and not signals.num_scrapes:
        signals.length_seconds = host.seconds


class _Page(NamedTuple):
    page: Exposition
    life: int
    """Counts up with every restart that the start time shows: counters of two lives do not join."""


def _mark_restarts(pages: list[Exposition], dialect: Dialect) -> list[_Page]:
    pick = dialect.gauges.get("start_time")
    marked: list[_Page] = []
    life, known = 0, None
    for page in pages:
        start = None if pick is None else _level(page, pick)
        if start is not None:
            life += known is not None and abs(start - known) > _SAME_START_SECONDS
            known = start
        marked.append(_Page(page, life))
    return marked


_SAME_START_SECONDS = 1.0


def _increase(values: Iterable[tuple[int, float | None]]) -> float | None:
    """Growth of a cumulative series over the pages that say something; None when fewer than two do.

    A new life or a fall is a reset, after which the new value is all growth.
    """
    known = [(life, value) for life, value in values if value is not None]
    if len(known) < 2:
        return None
    return sum(
        after - before if after >= before and life == life_before else after
        for (life_before, before), (life, after) in pairwise(known)
    )


def _read_counters(signals: Signals, pages: list[_Page], dialect: Dialect) -> None:
    for name, pick in dialect.counters.items():
        increase = _increase((life, _cumulative(page, pick)) for page, life in pages)
        if increase is not None:
            signals.counters[name] = Counter(increase, str(pick))
    if dialect.failures is not None:
        _read_failures(signals, pages, dialect.failures)


def _read_failures(signals: Signals, pages: list[_Page], metric: str) -> None:
    if sum(_has_family(page, metric) for page, _ in pages) < 2:
        return
    kinds = {dict(key).get("kind", "unknown") for page, _ in pages for key in page.samples.get(metric, ())}
    for kind in sorted(kinds):
        pick = Pick(metric, (("kind", kind),))
        increase = _increase((life, _cumulative(page, pick)) for page, life in pages)
        if increase is not None:
            signals.failures[kind] = increase
    signals.counters["failures"] = Counter(sum(signals.failures.values()), metric)


def _read_info(signals: Signals, pages: list[_Page], dialect: Dialect) -> None:
    if dialect.info is not None:
        for page, _ in pages:
            for key in page.samples.get(dialect.info, {}):
                signals.info = dict(key)


def _has_family(page: Exposition, metric: str) -> bool:
    """A declared family without samples says zero; an undeclared one says nothing."""
    return metric in page.samples or metric in page.types


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _cumulative(page: Exposition, pick: Pick) -> float | None:
    """A counter's value on one page. A label not there yet started from zero; NaN and Inf say nothing."""
    value = page.value(pick.metric, **dict(pick.labels))
    if value is None:
        return 0.0 if _has_family(page, pick.metric) else None
    return _finite(value)


def _read_gauges(signals: Signals, pages: list[_Page], dialect: Dialect) -> None:
    for name, pick in dialect.gauges.items():
        values = [value for page, _ in pages if (value := _level(page, pick)) is not None]
        if values:
            signals.gauges[name] = Gauge(tuple(values), str(pick))


def _level(page: Exposition, pick: Pick) -> float | None:
    """A gauge's value on one page. A label that a declared family lacks counts nothing: zero."""
    value = page.value(pick.metric, **dict(pick.labels))
    if value is None:
        return 0.0 if pick.labels and _has_family(page, pick.metric) else None
    return _finite(value)


def _read_histograms(signals: Signals, pages: list[_Page], dialect: Dialect) -> None:
    for name, pick in dialect.histograms.items():
        window = _histogram(pages, pick)
        if window is not None:
            signals.histograms[name] = window


def _histogram(pages: list[_Page], pick: Pick) -> HistogramWindow | None:
    name = pick.metric + "_bucket"
    family = [(page, life) for page, life in pages if name in page.samples or pick.metric in page.types]
    buckets = [(life, found) for page, life in family if (found := _buckets(page, pick)) is not None]
    filled = [found for _, found in buckets if found]
    if len(buckets) < 2 or not filled:
        return None
    # A bucket that only some pages have cannot be followed; its samples count in the next one.
    bounds = sorted(set.intersection(*(set(found) for found in filled)) - {_SUM})
    if not bounds or bounds[-1] != inf:
        return None
    growth = dict.fromkeys([*bounds, _SUM], 0.0)
    for (life_before, before), (life, after) in pairwise(buckets):
        # One bucket that fell means that all of them began again.
        reset = life != life_before or any(after.get(key, 0.0) < before.get(key, 0.0) for key in growth)
        for key in growth:
            growth[key] += after.get(key, 0.0) - (0.0 if reset else before.get(key, 0.0))
    at_most = [growth[bound] for bound in bounds]
    counts = [at_most[0], *(max(0.0, after - before) for before, after in pairwise(at_most))]
    return HistogramWindow(tuple(bounds[:-1]), tuple(counts), growth[_SUM], str(pick))


_SUM = -inf
"""Key of the sum beside the buckets' bounds."""


def _buckets(page: Exposition, pick: Pick) -> dict[float, float] | None:
    """Cumulative counts by bound, and the sum; empty when no series carries the labels yet, None when a value is no number."""
    buckets: dict[float, float] = {}
    for key, value in page.samples.get(pick.metric + "_bucket", {}).items():
        if all(pair in key for pair in pick.labels):
            bound = _bound(dict(key).get("le", ""))
            if bound is None or not isfinite(value):
                return None
            buckets[bound] = buckets.get(bound, 0.0) + value
    total = page.value(pick.metric + "_sum", **dict(pick.labels)) if buckets else 0.0
    if total is None or not isfinite(total):
        return None
    return {**buckets, _SUM: total} if buckets else {}


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound > -inf else None  # NaN is no bound either


def _detect_restart(signals: Signals) -> None:
    starts = signals.gauges.get("start_time")
    if starts is None:
        return
    for index, (before, after) in enumerate(pairwise(starts.values)):
        if abs(after - before) > _SAME_START_SECONDS:
            signals.restarted = True
            running = signals.gauges.get("running")
            if running is not None and index < len(running.values):
                signals.running_before_restart = running.values[index]
