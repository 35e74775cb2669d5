"""Reads the canonical levels off one metrics page: counters and histograms as they stand, gauges as they are.

A page has hundreds of series and the dashboard reads two a second: which series belong to a signal is looked up once and kept
for as long as the family has the same number of series.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, isfinite
from typing import NamedTuple

from diagnose.dialects.base import Dialect, Pick
from diagnose.exposition import Exposition, Labels
from diagnose.signals import HistogramWindow

HISTOGRAMS = ("inter_token_latency", "time_to_first_token", "queue_time", "e2e_latency", "schedule", "lock_wait",
              "block_residency", "block_reuse", "step_decode", "step_mixed", "step_prefill")  # fmt: skip
"""Those that a page of the dashboard shows."""


class Cumulative(NamedTuple):
    """A histogram as it stands: cumulative counts by bound, the last bound infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class Levels:
    """One page."""

    unix: float
    counters: Mapping[str, float]
    gauges: Mapping[str, float]
    histograms: Mapping[str, Cumulative]
    waiting_reasons: Mapping[str, float]
    """Waiting requests by reason, where the engine says so."""
    lock_sites: Mapping[str, tuple[float, float]]
    """Lock takings and seconds waited by site, since the start."""
    failures: Mapping[str, float]
    info: Mapping[str, str]


@dataclass(slots=True)
class LevelReader:
    """One per target and dialect."""

    dialect: Dialect
    _keys: dict[Pick, tuple[int, list[Labels]]] = field(default_factory=dict)
    _buckets: dict[Pick, tuple[int, list[tuple[float, list[Labels]]]]] = field(default_factory=dict)

    def read(self, unix: float, page: Exposition) -> Levels:
        dialect = self.dialect
        waiting = dialect.gauges.get("waiting_blocks")
        return Levels(
            unix=unix,
            counters=self._values(page, dialect.counters),
            gauges=self._values(page, dialect.gauges),
            histograms={
                name: found
                for name in HISTOGRAMS
                if (pick := dialect.histograms.get(name)) is not None and (found := self._histogram(page, pick))
            },
            waiting_reasons={} if waiting is None else _by_label(page, waiting.metric, "reason"),
            lock_sites=_lock_sites(page, dialect),
            failures={} if dialect.failures is None else _by_label(page, dialect.failures, "kind"),
            info=_info(page, dialect.info),
        )

    def _values(self, page: Exposition, picks: Mapping[str, Pick]) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, pick in picks.items():
            family = page.samples.get(pick.metric)
            if family is None:
                continue
            keys = self._matching(pick, family)
            # A declared family without the label says zero.
            if not keys and not pick.labels:
                continue
            value = sum(family[key] for key in keys)
            if isfinite(value):
                found[name] = value
        return found

    def _matching(self, pick: Pick, family: Mapping[Labels, float]) -> list[Labels]:
        size, keys = self._keys.get(pick, (-1, []))
        if size != len(family) or any(key not in family for key in keys):
            keys = [key for key in family if all(pair in key for pair in pick.labels)]
            self._keys[pick] = (len(family), keys)
        return keys

    def _histogram(self, page: Exposition, pick: Pick) -> Cumulative | None:
        family = page.samples.get(pick.metric + "_bucket")
        if family is None:
            return None
        size, buckets = self._buckets.get(pick, (-1, []))
        if size != len(family) or any(key not in family for _, keys in buckets for key in keys):
            buckets = _group_buckets(pick, family)
            self._buckets[pick] = (len(family), buckets)
        if not buckets or buckets[-1][0] != inf:
            return None
        total = self._values(page, {"sum": Pick(pick.metric + "_sum", pick.labels)}).get("sum", 0.0)
        counts = tuple(sum(family[key] for key in keys) for _, keys in buckets)
        return Cumulative(tuple(bound for bound, _ in buckets), counts, total)


def _group_buckets(pick: Pick, family: Mapping[Labels, float]) -> list[tuple[float, list[Labels]]]:
    by_bound: dict[float, list[Labels]] = {}
    for key in family:
        if all(pair in key for pair in pick.labels):
            try:
                bound = float(dict(key).get("le", ""))
            except ValueError:
                continue
            by_bound.setdefault(bound, []).append(key)
    return sorted(by_bound.items())


def _by_label(page: Exposition, metric: str, label: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in page.samples.get(metric, {}).items():
        name = dict(key).get(label)
        if name is not None and isfinite(value):
            found[name] = found.get(name, 0.0) + value
    return found


def _lock_sites(page: Exposition, dialect: Dialect) -> dict[str, tuple[float, float]]:
    pick = dialect.histograms.get("lock_wait")
    if pick is None:
        return {}
    takings = _by_label(page, pick.metric + "_count", "site")
    waited = _by_label(page, pick.metric + "_sum", "site")
    return {site: (takings[site], waited.get(site, 0.0)) for site in takings}


def _info(page: Exposition, metric: str | None) -> dict[str, str]:
    series = page.samples.get(metric or "", {})
    return dict(next(iter(series), ()))


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
