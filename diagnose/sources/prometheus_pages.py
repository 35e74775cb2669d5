"""Pages of a fleet from queries: counters and histograms are at zero on the first page and on the last at what they gained,
gauges are on all of them. They are then read through the dialect as a server's own pages are."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from diagnose.dialects.base import Alias, Combine, Dialect
from diagnose.dialects.reading import named
from diagnose.dialects.view import PageView
from diagnose.exposition import Exposition
from diagnose.signals import Signals
from diagnose.sources.prometheus_ask import NUM_POINTS, Asker
from diagnose.sources.prometheus_replicas import Roster
from diagnose.sources.promql import combined
from diagnose.windows import read_pages

_ADD_UP = frozenset(
    {
        "running", "waiting", "waiting_blocks", "waiting_sequences", "waiting_capacity", "waiting_transfer", "waiting_upstream",
        "swapped", "blocks_active", "blocks_reclaimable", "blocks_free", "pool_blocks", "pool_tokens", "pool_reserved",
        "working_set_blocks", "max_sequences", "decode_context", "device_memory_total", "device_memory_reserved",
    }
)  # fmt: skip
"""Gauges of which a fleet's is the sum. Of the others that one page would add up, only what all replicas agree on is used."""


@dataclass(slots=True)
class _Pages:
    ask: Asker
    view: PageView
    dialect: Dialect
    roster: Roster
    pages: list[Exposition] = field(default_factory=lambda: [Exposition() for _ in range(NUM_POINTS + 1)])
    notes: list[str] = field(default_factory=list)

    def put(self, metric: str, labels: dict[str, str], values: dict[int, float]) -> None:
        key = tuple(sorted(labels.items()))
        for place, value in values.items():
            self.pages[place].samples.setdefault(metric, {})[key] = value


def fleet_signals(ask: Asker, view: PageView, dialect: Dialect, roster: Roster, length: float) -> Signals:
    """What all replicas did in the window, which is `length` seconds long."""
    pages = _Pages(ask, view, dialect, roster)
    if roster.present:
        _add_growth(pages)
    _add_gauges(pages)
    differing = _add_info(pages)
    filled = [page for page in pages.pages if page.samples]
    signals = read_pages([PageView(page) for page in filled], dialect, length)
    if differing:
        signals.info = {name: value for name, value in signals.info.items() if name not in differing}
        pages.notes.append(f"replicas differ in {', '.join(sorted(differing))}: none of their values is used")
    signals.notes = (*signals.notes, *pages.notes)
    return signals


def _add_growth(pages: _Pages) -> None:
    """Two queries per metric, by the labels that the dialect tells apart."""
    members, ranks, selector = pages.roster.membership, pages.dialect.rank_labels, pages.ask.selector
    for metric, keep in _cumulative(pages.view, pages.dialect).items():
        for point in pages.ask.growth(partial(selector.of, metric), sorted(keep), members, ranks):
            pages.put(metric, point.labels, {0: 0.0, NUM_POINTS: point.value})


def _cumulative(view: PageView, dialect: Dialect) -> dict[str, set[str]]:
    """Own names of counters and of the parts of histograms -> labels to keep."""
    keep: dict[str, set[str]] = {}

    def want(metric: str, *labels: str) -> None:
        if metric in view.page.samples:
            keep.setdefault(metric, set()).update(labels)

    for aliases in dialect.counters.values():
        name = named([view], aliases)
        for metric in (name.metric, *name.plus) if name is not None else ():
            want(view.own_name(metric), *_label_names(name))
    for failures in dialect.failures:
        want(view.own_name(failures.metric), failures.label)
    for aliases in dialect.histograms.values():
        for name in aliases:
            buckets = view.own_name(name.metric + "_bucket")
            want(buckets, "le", *_label_names(name))
            want(buckets.removesuffix("_bucket") + "_sum", *_label_names(name))
    return keep


def _label_names(name: Alias | None) -> list[str]:
    return [label for label, _ in name.labels] if name is not None else []


@dataclass(slots=True)
class _Level:
    """How one metric of gauges is asked for."""

    operator: str
    keep: set[str]
    must_agree: bool = False
    """It does not add up over replicas."""


def _levels(pages: _Pages) -> Iterator[tuple[str, _Level]]:
    view, dialect = pages.view, pages.dialect
    found: dict[str, _Level] = {}
    is_fleet = len(pages.roster.engines) > 1
    stated = {view.own_name(metric): set(names) for metric, names in dialect.info.items()}
    for signal, aliases in dialect.gauges.items():
        name = named([view], aliases)
        if name is None or name.value_label or (is_fleet and signal == "start_time"):
            continue
        operator = "max" if name.combine is Combine.MAX else "sum"
        must_agree = is_fleet and operator == "sum" and signal not in _ADD_UP
        for metric in (name.metric, *name.plus):
            own = view.own_name(metric)
            if own in view.page.samples:
                level = found.setdefault(own, _Level(operator, set(stated.get(own, ())), must_agree))
                level.keep.update(_label_names(name))
    yield from found.items()


def _add_gauges(pages: _Pages) -> None:
    ask, ranks = pages.ask, pages.dialect.rank_labels
    apart: list[str] = []
    for metric, level in _levels(pages):
        keep, series = sorted(level.keep), ask.selector.of(metric)
        if level.must_agree and not _agreed(pages, metric, keep):
            apart.append(metric)
            continue
        operator = "max" if level.must_agree else level.operator
        for line in ask.ranged(combined(operator, keep, series, ranks)):
            values = {_place(ask, at): value for at, value in line.points}
            pages.put(metric, line.labels, values)
    if apart:
        pages.notes.append(
            f"{', '.join(apart)}: of one replica each and not the same in all, so that the fleet's is not known; "
            "ask for one replica to have them"
        )


def _agreed(pages: _Pages, metric: str, keep: list[str]) -> bool:
    series = pages.ask.selector.of(metric)
    spread = f"{combined('max', keep, series)} - {combined('min', keep, series)}"
    points = pages.ask.instant(spread)
    return bool(points) and all(point.value == 0 for point in points)


def _place(ask: Asker, at: float) -> int:
    return min(NUM_POINTS, max(0, round((at - ask.start) / ask.length * NUM_POINTS)))


def _add_info(pages: _Pages) -> set[str]:
    """Series whose labels are configuration, as they are at the window's end. What the replicas differ in."""
    view, dialect = pages.view, pages.dialect
    values: dict[str, set[str]] = {}
    gauges = {metric for metric, _ in _levels(pages)}
    numbers = {
        name.metric
        for aliases in dialect.gauges.values()
        for name in aliases
        if name.value_label and view.has(name.metric)
    }
    for metric in dict.fromkeys([*dialect.info, *sorted(numbers)]):
        own = view.own_name(metric)
        names = dialect.info.get(metric, {})
        if own in gauges or own not in view.page.samples:
            continue
        for point in pages.ask.instant(pages.ask.selector.of(own)):
            labels = {name: value for name, value in point.labels.items() if name != "__name__"}
            if metric in dialect.info and not names:
                labels = {name: value for name, value in labels.items() if name not in pages.roster.ambient}
            pages.put(own, labels, dict.fromkeys(range(NUM_POINTS + 1), point.value))
            for label, value in labels.items():
                if not names or label in names:
                    values.setdefault(names.get(label, label), set()).add(value)
    return {name for name, found in values.items() if len(found) > 1}
