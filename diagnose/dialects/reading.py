"""One page through a dialect: the value of a signal's metric, whatever name, unit and labels the engine gives it."""

from collections.abc import Iterable, Sequence
from math import inf, isfinite

from diagnose.dialects.base import Alias, Combine, Dialect
from diagnose.dialects.view import PageView
from diagnose.exposition import Labels


def named(views: Sequence[PageView], aliases: Sequence[Alias]) -> Alias | None:
    """The first of a signal's names that any page knows. One name serves the whole window: two may count different things."""
    return next((name for name in aliases if any(view.has(name.metric) for view in views)), None)


def source(views: Sequence[PageView], name: Alias) -> str:
    """The metric as the pages spell it."""
    view = next((view for view in views if view.has(name.metric)), views[0])
    return name.name_on(" + ".join(view.own_name(metric) for metric in (name.metric, *name.plus)))


def cumulative(view: PageView, name: Alias, dialect: Dialect | None) -> float | None:
    """A counter's value on one page. A label not there yet started from zero; NaN and Inf say nothing."""
    value = _combined(view, name, dialect)
    if value is None:
        return 0.0 if view.has(name.metric) or view.is_sparse else None
    return value if isfinite(value) else None


def level(view: PageView, name: Alias, dialect: Dialect) -> float | None:
    """A gauge's value on one page. A label that a declared family lacks counts nothing: zero."""
    value = _combined(view, name, dialect)
    if value is None:
        return 0.0 if name.labels and not name.value_label and view.has(name.metric) else None
    return value if isfinite(value) else None


def _combined(view: PageView, name: Alias, dialect: Dialect | None) -> float | None:
    """The value of all series that an alias selects, in the signal's unit; None when there is none."""
    series = [pair for metric in (name.metric, *name.plus) for pair in view.series(metric, name.labels)]
    if name.value_label:
        texts = [dict(key).get(name.value_label, "") for key, _ in series]
        values = [number for text in texts if (number := _number(text)) is not None]
    else:
        values = list(_one_per_rank(series, dialect.rank_labels if dialect is not None else ()))
    if not values:
        return None
    return name.factor * (max(values) if name.combine is Combine.MAX else sum(values))


def _one_per_rank(series: list[tuple[Labels, float]], ranks: tuple[str, ...]) -> Iterable[float]:
    """Ranks that report the same thing count once: the highest value stands for them."""
    if not ranks:
        return [value for _, value in series]
    groups: dict[Labels, float] = {}
    for key, value in series:
        rest = tuple(pair for pair in key if pair[0] not in ranks)
        groups[rest] = max(value, groups.get(rest, value))
    return groups.values()


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


SUM = -inf
"""Key of the sum beside the buckets' bounds."""


def buckets(view: PageView, name: Alias) -> dict[float, float] | None:
    """Cumulative counts by bound, and the sum; empty when no series carries the labels yet, None when a value is no number."""
    found: dict[float, float] = {}
    for key, value in view.series(name.metric + "_bucket", name.labels):
        bound = _bound(dict(key).get("le", ""))
        if bound is None or not isfinite(value):
            return None
        found[bound] = found.get(bound, 0.0) + value
    if not found:
        return {}
    sums = [value for _, value in view.series(name.metric + "_sum", name.labels)]
    total = sum(sums)
    return {**found, SUM: total} if sums and isfinite(total) else None


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound > -inf else None  # NaN is no bound either
