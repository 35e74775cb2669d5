"""Reads the canonical levels off one metrics page: counters and histograms as they stand, gauges as they are.

A page has hundreds of series and the dashboard reads two a second: by which name it has a signal is looked up once and kept for
as long as the page has as many names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, isfinite

from dashboard.model.update import Cumulative, Levels
from diagnose.dialects.base import Alias, Dialect
from diagnose.dialects.reading import SUM, buckets, cumulative, level, named
from diagnose.dialects.view import PageView
from diagnose.exposition import Exposition, Labels
from diagnose.signals import HistogramWindow

HISTOGRAMS = ("inter_token_latency", "time_to_first_token", "queue_time", "e2e_latency", "schedule", "lock_wait",
              "block_residency", "block_reuse", "kv_transfer", "step_decode", "step_mixed", "step_prefill")  # fmt: skip
"""Those that a page of the dashboard shows."""


@dataclass(slots=True)
class LevelReader:
    """One per target. Of several dialects on a page, the first that has a signal gives it."""

    dialects: Sequence[Dialect]
    _found: dict[str, tuple[Dialect, Alias]] = field(default_factory=dict)
    """Signal -> the name by which the page has it."""
    _names: int = -1
    """Names on the page for which `_found` was made."""
    _layouts: dict[str, "_Layout"] = field(default_factory=dict)
    """Signal -> where its buckets stand."""

    def read(self, unix: float, page: Exposition) -> Levels:
        view = PageView(page)
        if len(view.names) != self._names:
            self._names, self._found = len(view.names), self._look_up(view)
        counters, gauges, histograms = {}, {}, {}
        for signal, (dialect, name) in self._found.items():
            if signal in dialect.counters and (value := cumulative(view, name, dialect)) is not None:
                counters[signal] = value
            elif signal in dialect.gauges and (value := level(view, name, dialect)) is not None:
                gauges[signal] = value
            elif signal in dialect.histograms and (found := self._histogram(signal, view, name)) is not None:
                histograms[signal] = found
        waiting, lock = self._found.get("waiting_blocks"), self._found.get("lock_wait")
        return Levels(
            unix=unix,
            counters=counters,
            gauges=gauges,
            histograms=histograms,
            waiting_reasons={} if waiting is None else _by_label(view, waiting[1].metric, "reason"),
            lock_sites={} if lock is None else _lock_sites(view, lock[1].metric),
            failures=self._failures(view),
            info=self._info(view),
        )

    def _histogram(self, signal: str, view: PageView, name: Alias) -> Cumulative | None:
        """Buckets are most of a page: where they stand is looked up again only when the page lists other series."""
        own = view.names.get(name.metric + "_bucket")
        series = {} if own is None else view.page.samples[own]
        layout = self._layouts.get(signal)
        if layout is None or layout.series != list(series):
            found = _layout(view, name, list(series))
            if found is None:
                self._layouts.pop(signal, None)
                return _histogram(view, name)
            layout = self._layouts[signal] = found
        values = list(series.values())
        counts = tuple([sum([values[place] for place in places]) for places in layout.places])
        total = sum([value for _, value in view.series(name.metric + "_sum", name.labels)])
        return Cumulative(layout.bounds, counts, total) if all(map(isfinite, counts)) and isfinite(total) else None

    def _look_up(self, view: PageView) -> dict[str, tuple[Dialect, Alias]]:
        found: dict[str, tuple[Dialect, Alias]] = {}
        for dialect in self.dialects:
            shown = {name: aliases for name, aliases in dialect.histograms.items() if name in HISTOGRAMS}
            for signal, aliases in (*dialect.counters.items(), *dialect.gauges.items(), *shown.items()):
                if signal not in found and (name := named([view], aliases)) is not None:
                    found[signal] = dialect, name
        return found

    def _failures(self, view: PageView) -> dict[str, float]:
        counted: dict[str, float] = {}
        for failures in (failures for dialect in self.dialects for failures in dialect.failures):
            for kind, value in _by_label(view, failures.metric, failures.label).items():
                name = kind if failures.kinds is None else failures.kinds.get(kind)
                if name is not None:
                    counted[name] = counted.get(name, 0.0) + value
        return counted

    def _info(self, view: PageView) -> dict[str, str]:
        stated: dict[str, str] = {}
        for metric, names in (item for dialect in self.dialects for item in dialect.info.items()):
            for key, _ in view.series(metric):
                for label, value in key:
                    stated.setdefault(names.get(label, label) if names else label, value)
        return stated


@dataclass(frozen=True, slots=True)
class _Layout:
    series: list[Labels]
    """Of the family, as the page lists them."""
    bounds: tuple[float, ...]
    places: tuple[tuple[int, ...], ...]
    """By bound: which of the series count up to it."""


def _layout(view: PageView, name: Alias, series: list[Labels]) -> _Layout | None:
    """None where buckets or sum are not there yet, or one bound is no number: such a page is read the long way."""
    place_of = {key: place for place, key in enumerate(series)}
    places: dict[float, list[int]] = {}
    for key, _ in view.series(name.metric + "_bucket", name.labels):
        try:
            bound = float(dict(key).get("le", ""))
        except ValueError:
            return None
        if not bound > -inf:
            return None
        places.setdefault(bound, []).append(place_of[key])
    bounds = tuple(sorted(places))
    if not bounds or bounds[-1] != inf or not any(view.series(name.metric + "_sum", name.labels)):
        return None
    return _Layout(series, bounds, tuple(tuple(places[bound]) for bound in bounds))


def _histogram(view: PageView, name: Alias) -> Cumulative | None:
    found = buckets(view, name)
    if not found:
        return None
    total = found.pop(SUM)
    bounds = tuple(sorted(found))
    if bounds[-1] != inf:
        return None
    return Cumulative(bounds, tuple(found[bound] for bound in bounds), total)


def _by_label(view: PageView, metric: str, label: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in view.series(metric):
        name = dict(key).get(label)
        if name is not None and isfinite(value):
            found[name] = found.get(name, 0.0) + value
    return found


def _lock_sites(view: PageView, metric: str) -> dict[str, tuple[float, float]]:
    takings = _by_label(view, metric + "_count", "site")
    waited = _by_label(view, metric + "_sum", "site")
    return {site: (takings[site], waited.get(site, 0.0)) for site in takings}


def growth(before: Mapping[str, float], after: Mapping[str, float], *, restarted: bool) -> dict[str, float]:
    """What counters gained between two pages; after a reset all of the new value is growth."""
    gained: dict[str, float] = {}
    for name, value in after.items():
        known = before.get(name)
        if known is not None:
            gained[name] = value if restarted or value < known else value - known
    return gained


def histogram_growth(before: Cumulative | None, after: Cumulative | None, *, restarted: bool) -> HistogramWindow | None:
    """What a histogram gained between two pages; None when either lacks it or their buckets differ."""
    if before is None or after is None or before.bounds != after.bounds:
        return None
    reset = restarted or after.counts[-1] < before.counts[-1]
    base = (0.0,) * len(after.counts) if reset else before.counts
    at_most = [now - then for now, then in zip(after.counts, base, strict=True)]
    counts = (at_most[0], *(max(0.0, high - low) for low, high in pairwise(at_most)))
    return HistogramWindow(after.bounds[:-1], counts, after.sum - (0.0 if reset else before.sum), "")
