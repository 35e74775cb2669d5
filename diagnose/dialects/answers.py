"""What each engine can and cannot answer, read off the dialects themselves."""

from enum import StrEnum
from typing import NamedTuple

from diagnose.dialects.base import Alias, Dialect, Usage
from diagnose.dialects.logs import ENGINE_LOGS

UNMETERED = {
    "transformers serve": "no metrics and no settings over HTTP in any version: /health, /v1/models and the API. Measure at the "
    "client, and see the process with py-spy dump --pid PID",
}
"""Servers without a dialect, and what remains."""


class Level(StrEnum):
    YES = "yes"
    PART = "part"
    NO = "no"


class Answer(NamedTuple):
    level: Level
    sources: tuple[str, ...]
    """The metrics or paths that give it."""
    coverage: tuple[str, ...]
    """What they count, where that is not obvious."""
    how: str
    """How to get what is missing; empty when nothing is, or nothing is known."""


_NEEDS = {
    "blocks": ("blocks_active", "blocks_reclaimable", "blocks_free"),
    "host": ("schedule", "lock_wait"),
    "evictions": ("evictions", "ghost_hits"),
    "preemptions": ("preemptions", "tokens_recompute"),
    "limits": ("max_batched_tokens", "max_sequences"),
    "latency": ("time_to_first_token", "inter_token_latency"),
}
_STEPS = ("step_decode", "step_mixed")


def answer(dialect: Dialect, topic: str) -> Answer:
    """`part`: some of what the topic needs, or figures that come late or bound it only."""
    if topic == "steps":
        return _steps(dialect)
    if topic == "failures":
        found = tuple(failures.metric for failures in dialect.failures)
        return _answer(dialect, topic, Level.YES if found else Level.NO, found)
    if topic == "preemptions" and topic in dialect.impossible:
        return Answer(Level.YES, (), (dialect.impossible[topic],), "")
    named = {signal: aliases[0] for signal in _NEEDS[topic] if (aliases := _aliases(dialect, signal))}
    complete = len(named) == len(_NEEDS[topic]) and not any(name.late for name in named.values())
    if topic == "blocks" and not named and dialect.usage is Usage.ACTIVE:
        named = {"pool_usage": dialect.gauges["pool_usage"][0]}
    if topic == "limits" and not complete and dialect.state_paths:
        return _answer(dialect, topic, Level.PART, dialect.state_paths, named)
    level = Level.YES if complete else Level.PART if named else Level.NO
    return _answer(dialect, topic, level, tuple(name.name_on(name.metric) for name in named.values()), named)


def _steps(dialect: Dialect) -> Answer:
    found = {signal: aliases[0] for signal in _STEPS if (aliases := _aliases(dialect, signal))}
    names = tuple(name.name_on(name.metric) for name in found.values())
    if dialect.debug_steps_path is not None:
        return _answer(dialect, "steps", Level.YES, (dialect.debug_steps_path, *names))
    return _answer(dialect, "steps", Level.PART if found else Level.NO, names, found)


def _answer(
    dialect: Dialect, topic: str, level: Level, sources: tuple[str, ...], named: dict[str, Alias] | None = None
) -> Answer:
    coverage = tuple(dict.fromkeys(name.coverage for name in (named or {}).values() if name.coverage))
    return Answer(level, sources, coverage, "" if level is Level.YES else dialect.cannot.get(topic, ""))


def _aliases(dialect: Dialect, signal: str) -> tuple[Alias, ...]:
    for table in (dialect.counters, dialect.gauges, dialect.histograms):
        if signal in table:
            return table[signal]
    return ()


def reads_log(dialect: Dialect) -> bool:
    return any(table.engine == dialect.name for table in ENGINE_LOGS)
