"""Watches of several targets at once: replicas of one service, or what stands beside a target (an exporter, a router)."""

from collections.abc import Iterable, Mapping
from threading import Thread

from diagnose.dialects.registry import spoken
from diagnose.errors import TargetError
from diagnose.observation import Event, Observation, observe
from diagnose.sources.live import Watch
from probes.recording import Entry

_GRACE_SECONDS = 10.0
"""A last answer may take this long: the endpoint's own limit is shorter."""


class Together:
    """One thread per watch beside the first target's. That one of them fails harms nothing."""

    def __init__(self, watches: list[Watch]) -> None:
        self._watches = watches
        self._threads: list[Thread] = []
        self.problems: list[str] = []

    def start(self, seconds: float, interval: float) -> None:
        for watch in self._watches:
            thread = Thread(target=self._run, args=(watch, seconds, interval), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _run(self, watch: Watch, seconds: float, interval: float) -> None:
        try:
            watch.run(seconds, interval)
        except TargetError as error:
            self.problems.append(f"left out: {error}")

    def entries(self, wait_seconds: float) -> dict[str, list[Entry]]:
        """What they saw until now, or until they end, by URL."""
        for thread in self._threads:
            thread.join(wait_seconds + _GRACE_SECONDS if wait_seconds else 0.0)
        return {watch.endpoint.url: list(watch.entries) for watch in self._watches}


def observe_together(target: str, entries: Iterable[Entry], others: Mapping[str, list[Entry]]) -> Observation:
    """The first target's observation. Those that speak its engine's dialect are replicas of it, each with a window of its own;
    the rest is beside it, in its window."""
    own = observe(target, entries)
    engines = _engines(own)
    seen = {url: observe(url, saw) for url, saw in others.items() if any(entry.kind == "exposition" for entry in saw)}
    replicas = [observation for observation in seen.values() if engines & _engines(observation)]
    # Each target's answers stay in the order in which they came: a clock may have been set in between.
    pages = [entry for url, saw in others.items() if seen.get(url) not in replicas for entry in saw]
    beside = observe(target, [entry for entry in pages if entry.kind == "exposition"])
    own.scrapes += beside.scrapes
    own.warnings += [entry.body for entry in pages if entry.kind == "event" and entry.event != "no_step_records"]
    return _as_one([own, *replicas]) if replicas else own


def _engines(observation: Observation) -> set[str]:
    if not observation.scrapes:
        return set()
    return {dialect.name for dialect in spoken(observation.scrapes[0].view) if dialect.is_engine}


def _as_one(replicas: list[Observation]) -> Observation:
    """A service is gone when all of its replicas are; of one of them it is said."""
    whole = Observation(f"{len(replicas)} replicas: {', '.join(one.target for one in replicas)}", replicas=replicas)
    whole.host = replicas[0].host
    for one in replicas:
        whole.warnings += [f"{one.target}: {text}" for text in one.warnings]
        for event in one.events:
            if event.kind == "gone":
                whole.warnings.append(f"{one.target}: {event.detail}")
            else:
                whole.events.append(Event(event.unix, event.kind, f"{one.target}: {event.detail}"))
    gone = [event for one in replicas for event in one.events if event.kind == "gone"]
    if len(gone) == len(replicas):
        whole.events.append(gone[-1])
    return whole
