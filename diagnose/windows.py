"""From scrapes to signals through one dialect: counters and histograms become window deltas with resets detected."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import NamedTuple

from diagnose.dialects.base import Alias, Dialect, Failures
from diagnose.dialects.reading import SUM, buckets, cumulative, level, named, source
from diagnose.dialects.view import PageView
from diagnose.signals import Counter, Gauge, HistogramWindow, Signals
from diagnose.units import printable
from probes.host_profile import HostProfile


def read_pages(views: Sequence[PageView], dialect: Dialect, length_seconds: float | None) -> Signals:
    """What pages in time order say through a dialect. The growth over one page is not zero, it is unknown."""
    pages = _mark_restarts(views, dialect)
    signals = Signals(
        dialect=dialect.name,
        length_seconds=length_seconds,
        num_scrapes=len(pages),
        num_replicas=1 if pages else None,
        features_absent=dialect.features_absent,
        free_includes_reclaimable=dialect.free_includes_reclaimable,
        usage=dialect.usage,
        pool_unit=dialect.pool_unit,
        advice=dialect.cannot,
    )
    if pages:
        _read_gauges(signals, pages, dialect)
        _read_info(signals, pages, dialect)
    if len(pages) >= 2:
        _read_counters(signals, pages, dialect)
        _read_histograms(signals, pages, dialect)
        _detect_restart(signals)
    elif pages:
        _read_never(signals, pages, dialect)
    _leave_out_absent(signals)
    signals.notes = tuple(_several_models(views, dialect))
    engines = _engines(views, dialect)
    if len(engines) > 1:
        signals.num_replicas = len(engines)
        for label, value in engines:
            own = [_of_one_engine(view, label, value) for view in views]
            signals.replicas[f"{label}={value}"] = read_pages(own, dialect, length_seconds)
    return signals


def _several_models(views: Sequence[PageView], dialect: Dialect) -> Iterator[str]:
    running = named(views, dialect.gauges.get("running", ()))
    if running is None:
        return
    keys = {key for view in views for key, _ in view.series(running.metric)}
    models = sorted({value for key in keys for label, value in key if label == "model_name"})
    if len(models) > 1:
        yield (
            f"series of {len(models)} models are on one page ({', '.join(map(printable, models[:4]))}): the figures are sums "
            "over them, of shares the highest"
        )


def _engines(views: Sequence[PageView], dialect: Dialect) -> list[tuple[str, str]]:
    """Label and value of each engine of one server that counts its running requests apart."""
    running = named(views, dialect.gauges.get("running", ()))
    if running is None:
        return []
    found: dict[str, set[str]] = {}
    for view in views:
        for key, _ in view.series(running.metric):
            for label, value in key:
                if label in dialect.replica_labels:
                    found.setdefault(label, set()).add(value)
    label = next((label for label in dialect.replica_labels if label in found), "")
    return [(label, value) for value in sorted(found.get(label, ()), key=lambda text: (len(text), text))]


def _of_one_engine(view: PageView, label: str, value: str) -> PageView:
    """The series of one engine, and those that say of no engine which it is."""
    samples = {
        name: kept
        for name, series in view.page.samples.items()
        if (kept := {key: number for key, number in series.items() if dict(key).get(label, value) == value})
    }
    return PageView(replace(view.page, samples=samples))


def read_host(signals: Signals, host: HostProfile) -> None:
    signals.host = host
    source = f"host probe of process {host.pid}"
    for name, share in (("host_delay_share", host.delay_share), ("host_gil_held_share", host.gil_held_share)):
        if share is not None:
            signals.gauges[name] = Gauge((share,), source)
    if signals.length_seconds is None and not signals.num_scrapes:
        signals.length_seconds = host.seconds


class _Page(NamedTuple):
    view: PageView
    life: int
    """Counts up with every restart that the start time shows: counters of two lives do not join."""


def _views(pages: list[_Page]) -> list[PageView]:
    return [page.view for page in pages]


def _mark_restarts(views: Sequence[PageView], dialect: Dialect) -> list[_Page]:
    aliases = dialect.gauges.get("start_time", ())
    marked: list[_Page] = []
    life, known = 0, None
    for view in views:
        start = next((value for name in aliases if (value := level(view, name, dialect)) is not None), None)
        if start is not None:
            life += known is not None and abs(start - known) > _SAME_START_SECONDS
            known = start
        marked.append(_Page(view, life))
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
    for signal, aliases in dialect.counters.items():
        name = named(_views(pages), aliases)
        if name is None and signal == "preemptions" and all(view.is_sparse for view, _ in pages):
            name = aliases[0]
        if name is None:
            continue
        increase = _increase((life, cumulative(view, name, dialect)) for view, life in pages)
        if increase is not None:
            signals.counters[signal] = Counter(increase, source(_views(pages), name), name.coverage, name.late)
    for signal, reason in dialect.impossible.items():
        signals.counters.setdefault(signal, Counter(0.0, reason))
    _infer_preemptions(signals, pages, dialect)
    for failures in dialect.failures:
        _read_failures(signals, pages, failures)


def _read_never(signals: Signals, pages: list[_Page], dialect: Dialect) -> None:
    """A counter that is still 0 did not grow in any window since the start: all that one page says of growth."""
    views = _views(pages)
    for signal in _NEVER & dialect.counters.keys():
        name = named(views, dialect.counters[signal])
        if name is not None and not name.late and cumulative(views[0], name, dialect) == 0:
            signals.counters[signal] = Counter(0.0, source(views, name), "0 since the engine's start")


_NEVER = frozenset(
    {"preemptions", "evictions", "ghost_hits", "transfer_failures", "gpu_ecc_uncorrected", "gpu_xid_errors"}
)
"""Counters of what should not happen: that they never grew refutes something. Of work it would only say that none was done."""


def _infer_preemptions(signals: Signals, pages: list[_Page], dialect: Dialect) -> None:
    """Of a counter that lags: requests that stopped running, did not finish, and wait again were preempted."""
    counter = signals.counters.get("preemptions")
    tables = (dialect.gauges, dialect.gauges, dialect.counters)
    names = [
        named(_views(pages), table.get(signal, ()))
        for table, signal in zip(tables, ("running", "waiting", "requests_finished"), strict=True)
    ]
    running, waiting, finished = names
    if counter is None or not counter.late or running is None or waiting is None or finished is None:
        return
    seen = 0.0
    states = [
        (life, level(view, running, dialect), level(view, waiting, dialect), cumulative(view, finished, dialect))
        for view, life in pages
    ]
    for (life_before, *before), (life, *after) in pairwise(states):
        if life == life_before and None not in before and None not in after:
            ran, waited, ended = ((b or 0.0) - (a or 0.0) for b, a in zip(before, after, strict=True))
            seen += max(0.0, min(ran + ended, -waited))
    if seen > counter.delta:
        origin = f"{source(_views(pages), running)}, {source(_views(pages), waiting)}"
        text = (
            "at least: so many requests stopped running without finishing, and wait again; the engine's own counter lags "
            f"and says {counter.delta:.0f}"
        )
        signals.counters["preemptions"] = Counter(seen, origin, text)


def _read_failures(signals: Signals, pages: list[_Page], failures: Failures) -> None:
    metric = failures.metric
    if sum(view.has(metric) for view, _ in pages) < 2:
        return
    seen = {dict(key).get(failures.label, "unknown") for view, _ in pages for key, _ in view.series(metric)}
    kinds = {kind: kind for kind in seen} if failures.kinds is None else failures.kinds
    for label in sorted(kinds):
        name = Alias(metric, ((failures.label, label),))
        increase = _increase((life, cumulative(view, name, None)) for view, life in pages)
        if increase is not None:
            signals.failures[kinds[label]] = signals.failures.get(kinds[label], 0.0) + increase
    own = pages[0].view.own_name(metric)
    signals.counters["failures"] = Counter(sum(signals.failures.values()), own)


def _read_info(signals: Signals, pages: list[_Page], dialect: Dialect) -> None:
    info: dict[str, str] = {}
    for metric, names in dialect.info.items():
        for view, _ in pages:
            for key, _ in view.series(metric):
                chosen = {names[label]: value for label, value in key if label in names} if names else dict(key)
                info |= {label: _WORDS.get(value, value) for label, value in chosen.items() if value != "None"}
    signals.info = info
    on = {feature for feature, (label, values) in dialect.features_with.items() if info.get(label) in values}
    signals.features_absent = dialect.features_absent - on


_OF_FEATURES = {"disaggregation": ("transfer_failures", "waiting_transfer", "kv_transfer")}


def _leave_out_absent(signals: Signals) -> None:
    """What a page counts of a feature that it lacks is no measured zero: the engine beside it may have that feature."""
    for feature in signals.features_absent:
        for name in _OF_FEATURES.get(feature, ()):
            for found in (signals.counters, signals.gauges, signals.histograms):
                found.pop(name, None)


_WORDS = {"True": "true", "False": "false"}


def _read_gauges(signals: Signals, pages: list[_Page], dialect: Dialect) -> None:
    for signal, aliases in dialect.gauges.items():
        name = named(_views(pages), aliases)
        if name is None:
            continue
        values = [value for view, _ in pages if (value := level(view, name, dialect)) is not None]
        if values:
            signals.gauges[signal] = Gauge(tuple(values), source(_views(pages), name), name.coverage)


def _read_histograms(signals: Signals, pages: list[_Page], dialect: Dialect) -> None:
    for signal, aliases in dialect.histograms.items():
        for name in aliases:  # a histogram that is declared and empty gives way to the next name
            window = _histogram(pages, name)
            if window is not None:
                signals.histograms[signal] = window
                break


def _histogram(pages: list[_Page], name: Alias) -> HistogramWindow | None:
    family = [(view, life) for view, life in pages if view.has(name.metric + "_bucket") or view.has(name.metric)]
    series = [(life, found) for view, life in family if (found := buckets(view, name)) is not None]
    filled = [found for _, found in series if found]
    if len(series) < 2 or not filled:
        return None
    # A bucket that only some pages have cannot be followed; its samples count in the next one.
    bounds = sorted(set.intersection(*(set(found) for found in filled)) - {SUM})
    if not bounds or bounds[-1] != inf:
        return None
    growth = dict.fromkeys([*bounds, SUM], 0.0)
    for (life_before, before), (life, after) in pairwise(series):
        # One bucket that fell means that all of them began again.
        reset = life != life_before or any(after.get(key, 0.0) < before.get(key, 0.0) for key in growth)
        for key in growth:
            growth[key] += after.get(key, 0.0) - (0.0 if reset else before.get(key, 0.0))
    at_most = [growth[bound] for bound in bounds]
    counts = (at_most[0], *(max(0.0, after - before) for before, after in pairwise(at_most)))
    view = next(view for view, _ in family)
    origin = name.name_on(view.own_name(name.metric + "_bucket").removesuffix("_bucket"))
    finite = tuple(bound * name.factor for bound in bounds[:-1])
    return HistogramWindow(finite, counts, growth[SUM] * name.factor, origin, name.coverage)


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
