"""A Prometheus as a source: one window of all replicas behind a selector, read through the dialects that they speak."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from diagnose.dialects.base import Dialect
from diagnose.dialects.registry import engine_names, spoken, what_it_is
from diagnose.dialects.view import PageView
from diagnose.errors import NotEnough, TargetError
from diagnose.exposition import Exposition
from diagnose.observation import Event, Observation, Span
from diagnose.signals import Signals
from diagnose.sources.prometheus_api import PrometheusApi
from diagnose.sources.prometheus_ask import Asker
from diagnose.sources.prometheus_pages import fleet_signals
from diagnose.sources.prometheus_replicas import Roster, read_replicas, read_roster, running_before_restarts
from diagnose.sources.promql import Selector
from diagnose.units import printable

_NAMED = 5
"""Replicas that a sentence names before it counts the rest."""


@dataclass(slots=True)
class PrometheusEvidence:
    """What the series of one dialect say of the window. Its span is its own, whatever stands beside it."""

    origin: str
    found: Signals
    happened: list[Event] = field(default_factory=list)

    def events(self, span: Span | None) -> Iterable[Event]:
        del span
        return self.happened

    def signals(self, span: Span | None) -> Signals:
        del span
        return self.found


class Reading(NamedTuple):
    target: str
    evidence: list[PrometheusEvidence]
    """One per dialect that is spoken behind the selector; at least one."""
    warnings: list[str]

    def observation(self) -> Observation:
        observation = Observation(self.target, warnings=list(self.warnings))
        for evidence in self.evidence:
            observation.add_source(evidence)
        return observation


def read_prometheus(api: PrometheusApi, selector: Selector, end: float, window: float) -> Reading:
    """The `window` seconds before `end` (unix seconds).

    Raises TargetError when the server cannot be read or nothing of an engine is behind the selector, SourceError when it
    rejects the selector, NotEnough when the window holds no two samples of any replica.
    """
    ask = Asker(api, selector, end - window, end)
    target = f"{printable(str(selector))} at {api.endpoint.url}"
    names = api.names(str(selector), ask.start, ask.end)
    if not names:
        raise TargetError(f"{target}: no series matches in the {window:g} s before the time that is asked for")
    view = PageView(Exposition(samples={name: {} for name in names}))
    dialects = [dialect for dialect in spoken(view) if dialect.is_engine]
    if not dialects:
        raise TargetError(f"{target}: {what_it_is(view)}; it needs the metrics of an engine ({engine_names()})")
    reading = Reading(target, [], [])
    for dialect in dialects:
        _read(ask, view, dialect, reading)
    problems = [*ask.problems, *api.warnings]
    return reading._replace(warnings=list(dict.fromkeys([*reading.warnings, *problems])))


def _read(ask: Asker, view: PageView, dialect: Dialect, reading: Reading) -> None:
    roster = read_roster(ask, view, dialect)
    down = _down(ask, view)
    happened = _gone(ask, roster, down)
    length = roster.length_seconds
    if not happened and not roster.membership.started and not length:
        raise NotEnough(
            f"{reading.target}: no replica has samples at both ends of the {ask.length:g} s before the time that is asked for: "
            "a window has to be longer than the time between scrapes, and the replicas have to be there"
        )
    signals = fleet_signals(ask, view, dialect, roster, length or ask.length)
    signals.num_replicas = len(roster.engines)
    if len(roster.engines) > 1:
        signals.replicas = read_replicas(ask, view, dialect, roster, length or ask.length)
        running = running_before_restarts(ask, view, dialect, roster)
        signals.restarted, signals.running_before_restart = running is not None, running or 0.0
    reading.evidence.append(PrometheusEvidence(_origin(ask, view, dialect, roster), signals, happened))
    reading.warnings.extend(_changes(roster, down))


def _origin(ask: Asker, view: PageView, dialect: Dialect, roster: Roster) -> str:
    count = len(roster.engines)
    versions = dialect.versions(view)
    return (
        f"Prometheus at {ask.api.endpoint.url}: {count} replica{'s' if count != 1 else ''} of {dialect.name}"
        + (f" ({versions}, by their names)" if versions else "")
        + f" behind {printable(str(ask.selector))}"
    )


def _down(ask: Asker, view: PageView) -> list[dict[str, str]]:
    """Labels of the targets that the server could not scrape at the window's end."""
    if "up" not in view.names:
        return []
    return [point.labels for point in ask.instant(f"{ask.selector.of('up')} == 0")]


def _gone(ask: Asker, roster: Roster, down: list[dict[str, str]]) -> list[Event]:
    """That the last replica went away, and not by being taken off the list of targets, is a failure."""
    if roster.present or not down:
        return []
    names = _some([labels.get(roster.label, "the target") for labels in down])
    return [Event(ask.end, "gone", f"{names}: answered before, and is down at the window's end (up = 0)")]


def _changes(roster: Roster, down: list[dict[str, str]]) -> list[str]:
    """What the fleet's figures leave out, and why."""
    targets, membership = roster.targets, roster.membership
    total = len(targets)
    warnings: list[str] = []
    if down and roster.present:
        names = _some([labels.get(roster.label, "?") for labels in down])
        warnings.append(f"{len(down)} target(s) are down at the window's end (up = 0): {names}")
    gone = [name for name, presence in targets.items() if presence.end is None]
    if gone and roster.present:
        warnings.append(
            f"{len(gone)} of {total} replicas were there at the window's start and are not at its end: {_some(gone)}; "
            "what they did in between is left out"
        )
    if membership.unknown:
        warnings.append(
            f"{len(membership.unknown)} of {total} replicas came within the window and had counted before, as far as is known: "
            f"{_some(membership.unknown)}; their counters are left out"
        )
    again = [name for name in membership.started if targets[name].start is not None]
    if again:
        warnings.append(
            f"{len(again)} of {total} replicas restarted within the window: {_some(again)}; what they did before is left out"
        )
    new = [name for name in membership.started if targets[name].start is None]
    if new:
        warnings.append(f"{len(new)} of {total} replicas started within the window: {_some(new)}")
    return warnings


def _some(names: Iterable[str]) -> str:
    known = [printable(name) for name in names]
    rest = len(known) - _NAMED
    return ", ".join(known[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
