"""Which replicas stand behind a selector, who came, went or began again within the window, and what each of them did."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from diagnose.dialects.base import Alias, Dialect
from diagnose.dialects.reading import named
from diagnose.dialects.view import PageView
from diagnose.signals import Counter, Gauge, HistogramWindow, Signals
from diagnose.sources.prometheus_api import Point
from diagnose.sources.prometheus_ask import Asker
from diagnose.sources.promql import Membership, combined, duration, matcher

_TARGET_LABELS = ("instance", "pod", "kubernetes_pod_name", "pod_name", "host", "node")
"""Labels that a scrape gives each target; the first that the series have names the replica."""
_BEFORE_RESTART_SECONDS = 300.0
_MOST_RESTARTS = 10
"""Of more replicas than these it is not asked what ran on them."""


class Presence(NamedTuple):
    """One replica: the times of its last samples before the window's two ends; None where it had none."""

    start: float | None
    end: float | None


@dataclass(frozen=True, slots=True)
class Roster:
    label: str
    """The label that names a target; empty when there is none, and the selector is one replica."""
    engine_label: str
    """The label of several engines in one server, where there are several."""
    targets: Mapping[str, Presence]
    engines: Mapping[str, Presence]
    """As targets, but of each engine within them; what counts as a replica."""
    membership: Membership
    start_times: Mapping[str, float] = field(default_factory=dict)
    """Unix seconds at which the process of a target started, where it says so."""
    ambient: frozenset[str] = frozenset()
    """Labels that say where a series comes from, and nothing of the engine."""

    @property
    def labels(self) -> tuple[str, ...]:
        """That name one replica."""
        return tuple(filter(None, (self.label, self.engine_label)))

    def name(self, labels: Mapping[str, str]) -> str:
        target, engine = labels.get(self.label, "") if self.label else "", labels.get(self.engine_label, "")
        return " ".join(filter(None, (target, f"{self.engine_label}={engine}" if engine and self.engine_label else "")))

    @property
    def present(self) -> int:
        """Replicas at the window's end."""
        return sum(presence.end is not None for presence in self.engines.values())

    @property
    def length_seconds(self) -> float | None:
        """Between the samples that the growth is the difference of, on average; None when no replica has both."""
        lengths = [
            presence.end - presence.start
            for name, presence in self.targets.items()
            if presence.start is not None and presence.end is not None and name not in self.membership.started
        ]
        return sum(lengths) / len(lengths) if lengths else None


def anchor_of(view: PageView, dialect: Dialect) -> Alias | None:
    """The series by which a replica is known to be there: its running requests, else the first figure that it has."""
    tables = (dialect.gauges, dialect.counters)
    aliases = [dialect.gauges.get("running", ()), *(names for table in tables for names in table.values())]
    return next((found for names in aliases if (found := named([view], names)) is not None), None)


def read_roster(ask: Asker, view: PageView, dialect: Dialect) -> Roster:
    """Raises TargetError when the first question cannot be answered: without it there is no diagnosis."""
    anchor = anchor_of(view, dialect)
    metric = view.own_name(anchor.metric if anchor is not None else min(view.names))
    stamps = f"timestamp({ask.selector.of(metric)})"
    at_end = ask.must(stamps, ask.end)
    at_start = ask.must(stamps, ask.start)
    points = [*at_end, *at_start]
    label = next((name for name in _TARGET_LABELS if any(name in point.labels for point in points)), "")
    engine = next((name for name in dialect.replica_labels if _splits(points, label, name)), "")
    blank = Roster(label, engine, {}, {}, Membership(label))
    targets = _presences(at_start, at_end, lambda point: point.labels.get(label, ""))
    engines = _presences(at_start, at_end, lambda point: blank.name(point.labels))
    start_times = _start_times(ask, view, dialect, label)
    restarted = _reset(ask, view, dialect, label)
    started, unknown, gone = [], [], []
    for name, presence in targets.items():
        if presence.end is None:
            gone.append(name)
            continue
        began = start_times.get(name)
        since = presence.start if presence.start is not None else ask.start
        if name in restarted or (began is not None and began > since):
            started.append(name)
        elif presence.start is None:
            unknown.append(name)
    membership = Membership(label, tuple(started), tuple(unknown), tuple(gone))
    ambient = {name for point in points for name in point.labels} - _own_labels(dialect)
    return Roster(label, engine, targets, engines, membership, start_times, frozenset(ambient))


def _own_labels(dialect: Dialect) -> set[str]:
    """Labels that the engine gives its series itself, as far as the dialect knows them."""
    aliases = [name for table in (dialect.counters, dialect.gauges) for names in table.values() for name in names]
    selected = {label for name in aliases for label, _ in name.labels}
    configured = {label for names in dialect.info.values() for label in names}
    return selected | configured | {*dialect.rank_labels, *dialect.replica_labels}


def running_before_restarts(ask: Asker, view: PageView, dialect: Dialect, roster: Roster) -> float | None:
    """Requests on the replicas that restarted, at their last samples before; None when none did, or it is not known when."""
    name = named([view], dialect.gauges.get("running", ()))
    again = [one for one in roster.membership.started if roster.targets[one].start is not None]
    known = [one for one in again if roster.start_times.get(one, 0.0) > ask.start]
    if name is None or not known:
        return None
    total = 0.0
    for one in known[:_MOST_RESTARTS]:
        series = ask.selector.of(view.own_name(name.metric), *_label_matchers(name), matcher(roster.label, [one], "=~"))
        last = f"last_over_time({series}[{duration(_BEFORE_RESTART_SECONDS)}])"
        total += sum(point.value for point in ask.instant(f"sum({last})", roster.start_times[one]))
    return total


def _splits(points: Sequence[Point], label: str, engine: str) -> bool:
    """Whether one target has several engines by that label."""
    values: dict[str, set[str]] = {}
    for point in points:
        if engine in point.labels:
            values.setdefault(point.labels.get(label, ""), set()).add(point.labels[engine])
    return any(len(found) > 1 for found in values.values())


def _presences(
    at_start: Sequence[Point], at_end: Sequence[Point], name_of: Callable[[Point], str]
) -> dict[str, Presence]:
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for points, known in ((at_start, first), (at_end, last)):
        for point in points:
            name = name_of(point)
            known[name] = max(point.value, known.get(name, 0.0))
    return {name: Presence(first.get(name), last.get(name)) for name in sorted({*first, *last})}


def _start_times(ask: Asker, view: PageView, dialect: Dialect, label: str) -> dict[str, float]:
    name = named([view], (*dialect.gauges.get("start_time", ()), Alias("process_start_time_seconds")))
    if name is None:
        return {}
    expression = combined("max", [label] if label else [], ask.selector.of(view.own_name(name.metric)))
    return {point.labels.get(label, ""): point.value for point in ask.instant(expression)}


def _reset(ask: Asker, view: PageView, dialect: Dialect, label: str) -> set[str]:
    """Replicas whose busiest counter fell within the window."""
    tokens = named([view], dialect.counters.get("tokens_decode", ()))
    if tokens is None:
        return set()
    series = ask.selector.of(view.own_name(tokens.metric))
    expression = combined("max", [label] if label else [], f"resets({series}[{duration(ask.length)}])") + " > 0"
    return {point.labels.get(label, "") for point in ask.instant(expression)}


_MEANS = ("inter_token_latency", "time_to_first_token")
_COUNTS = ("tokens_decode", "requests_finished")


def read_replicas(ask: Asker, view: PageView, dialect: Dialect, roster: Roster, length: float) -> dict[str, Signals]:
    """Of each replica: its mean load, its throughput and its mean latencies, one query per figure."""
    found: dict[str, Signals] = {
        name: Signals(dialect.name, length, 2, num_replicas=1)
        for name, presence in roster.engines.items()
        if presence.end is not None
    }
    for signal in ("running", "waiting"):
        _add_gauge(ask, view, dialect, roster, signal, found)
    for signal in _COUNTS:
        name = named([view], dialect.counters.get(signal, ()))
        if name is not None:
            own = view.own_name(name.metric)
            for replica, value in _growth(ask, roster, dialect, own, _label_matchers(name)).items():
                if replica in found:
                    found[replica].counters[signal] = Counter(value * name.factor, name.name_on(own), name.coverage)
    for signal in _MEANS:
        name = next((a for a in dialect.histograms.get(signal, ()) if view.has(a.metric + "_bucket")), None)
        if name is not None:
            own = view.own_name(name.metric + "_bucket").removesuffix("_bucket")
            sums = _growth(ask, roster, dialect, own + "_sum", _label_matchers(name))
            counts = _growth(ask, roster, dialect, own + "_count", _label_matchers(name))
            for replica in sums.keys() & counts.keys() & found.keys():
                window = HistogramWindow((), (counts[replica],), sums[replica] * name.factor, own, name.coverage)
                found[replica].histograms[signal] = window
    return found


def _add_gauge(
    ask: Asker, view: PageView, dialect: Dialect, roster: Roster, signal: str, found: dict[str, Signals]
) -> None:
    """The mean over the window."""
    name = named([view], dialect.gauges.get(signal, ()))
    if name is None:
        return
    means: dict[str, float] = {}
    for metric in (name.metric, *name.plus):
        if not view.has(metric):
            continue
        series = ask.selector.of(view.own_name(metric), *_label_matchers(name))
        inner = f"avg_over_time({series}[{duration(ask.length)}])"
        for point in ask.instant(combined("sum", roster.labels, inner, dialect.rank_labels)):
            replica = roster.name(point.labels)
            means[replica] = means.get(replica, 0.0) + point.value * name.factor
    origin = name.name_on(view.own_name(name.metric))
    for replica, mean in means.items():
        if replica in found:
            found[replica].gauges[signal] = Gauge((mean,), origin, name.coverage)


def _label_matchers(name: Alias) -> list[str]:
    return [f'{label}=~"{values}"' for label, values in name.labels]


def _growth(ask: Asker, roster: Roster, dialect: Dialect, metric: str, matchers: Sequence[str]) -> dict[str, float]:
    series = partial(ask.selector.of, metric, *matchers)
    points = ask.growth(series, roster.labels, roster.membership, dialect.rank_labels)
    return {roster.name(point.labels): point.value for point in points}
