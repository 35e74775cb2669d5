"""What a dialect is: a table from canonical signals to the metrics of one engine, by name, version, unit and label."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from diagnose.dialects.view import PageView


class Combine(StrEnum):
    """What several series of one metric (engines, ranks, models of one server) come to."""

    SUM = "sum"
    MAX = "max"


class Usage(StrEnum):
    """What an engine's figure of pool usage counts. Only the first one is occupancy; the others are bounds above it."""

    ACTIVE = "what live requests hold; cached blocks that nobody uses count as free"
    WITH_CACHED = "what live requests hold and cached blocks that nobody uses"
    RESERVED = "what running requests may come to need, prompt and longest answer, used or not"
    SLOTS = "tokens in slots, those that an idle slot keeps included"


@dataclass(frozen=True, slots=True)
class Alias:
    """One metric that states a signal: the series of `metric` (and of `plus`) whose labels contain `labels`, combined.
    A label's value may be several, `a|b`.

    Names are canonical (see `PageView`), without the `_total` of a counter and the `_bucket` of a histogram.
    """

    metric: str
    labels: tuple[tuple[str, str], ...] = ()
    since: str = ""
    until: str = ""
    """First and last version known to have it; empty: not known to begin or end."""
    factor: float = 1.0
    """To the signal's unit."""
    combine: Combine = Combine.SUM
    plus: tuple[str, ...] = ()
    value_label: str = ""
    """The value is the text of this label of an info metric."""
    late: bool = False
    """Booked later than it happened, at the end of a prefill or of a request: no growth proves nothing."""
    coverage: str = ""
    """What exactly it counts, where that is not obvious."""

    def name_on(self, found: str) -> str:
        """`found`, the page's own name of the metric, with what is selected of it."""
        inner = ",".join(f'{name}="{value}"' for name, value in self.labels)
        return f"{found}{{{self.value_label or inner}}}" if self.value_label or inner else found


def alias(
    metric: str,
    *,
    since: str = "",
    until: str = "",
    factor: float = 1.0,
    combine: Combine = Combine.SUM,
    plus: tuple[str, ...] = (),
    value_label: str = "",
    late: bool = False,
    coverage: str = "",
    **labels: str,
) -> Alias:
    selected = tuple(sorted(labels.items()))
    return Alias(metric, selected, since, until, factor, combine, plus, value_label, late, coverage)


@dataclass(frozen=True, slots=True)
class Failures:
    """A counter whose label names the failure. `kinds` says which values of the label are one, and our name for it."""

    metric: str
    label: str = "kind"
    kinds: Mapping[str, str] | None = None
    """None: every value is a failure's name."""


@dataclass(frozen=True, slots=True)
class Era:
    """A metric that only versions from `since` to `until` have: what tells the version of a server that does not state it."""

    metric: str
    since: str = ""
    until: str = ""


Table = Mapping[str, tuple[Alias, ...]]
"""Canonical signal -> its names, the best first."""


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    prefixes: tuple[str, ...]
    """A page that has metrics with one of these prefixes speaks this dialect."""
    counters: Table = field(default_factory=dict)
    gauges: Table = field(default_factory=dict)
    histograms: Table = field(default_factory=dict)
    failures: tuple[Failures, ...] = ()
    info: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Metrics whose labels are configuration -> the engine's name of a label -> ours. Without names all keep theirs."""
    eras: tuple[Era, ...] = ()
    rank_labels: tuple[str, ...] = ()
    """Labels of ranks that all report the same thing: one rank's value stands for them."""
    replica_labels: tuple[str, ...] = ()
    """Labels of engines within one server, each with its own queue and pool: replicas behind one page."""
    free_includes_reclaimable: bool | None = None
    usage: Usage | None = None
    pool_unit: str = "blocks"
    impossible: Mapping[str, str] = field(default_factory=dict)
    """Counters that stay at zero by the engine's design -> why."""
    features_absent: frozenset[str] = frozenset()
    """What this engine does not do at all: speculation, disaggregation."""
    features_with: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    """Of those, what a configuration turns on -> its label in the info, and the values that say so."""
    debug_steps_path: str | None = None
    """Where step records are served."""
    state_paths: tuple[str, ...] = ()
    """JSON endpoints that state settings; read once when a live target is watched."""
    load_paths: tuple[str, ...] = ()
    """JSON endpoints that state load which the metrics do not; read beside each page."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Topic (see `TOPICS`) -> how to get on this engine what its metrics do not say."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Topic -> the command that gets it on this engine, with `{address}` and `{source}` to be filled in."""
    knobs: Mapping[str, str] = field(default_factory=dict)
    """Setting (`max_batched_tokens`, `max_sequences`) -> the flag that a server of this engine is started with."""
    is_engine: bool = True
    """False for what stands beside an engine: a device exporter, a router."""

    def speaks(self, page: PageView) -> bool:
        """By samples or by what is only declared: a fresh server has counted nothing yet."""
        return any(name.startswith(self.prefixes) for name in (*page.names, *page.declared))

    def versions(self, page: PageView) -> str:
        """The versions that have the metrics of this page: `0.24 or later`, `0.12 to 0.13`; empty when they do not say."""
        here = [era for era in self.eras if page.has(era.metric) or page.has(era.metric + "_bucket")]
        since = max((era.since for era in here if era.since), key=_version_key, default="")
        until = min((era.until for era in here if era.until), key=_version_key, default="")
        if since and until:
            return since if since == until else f"{since} to {until}"
        return f"{since} or later" if since else f"{until} or earlier" if until else ""


def _version_key(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


TOPICS: Mapping[str, str] = {
    "steps": "what each step computed, and how long it took",
    "blocks": "active, reclaimable and free blocks",
    "host": "scheduling time and lock wait",
    "evictions": "evicted blocks, and which of them are asked for again",
    "preemptions": "preemptions, and what they cost",
    "limits": "token budget and sequence cap",
    "latency": "time to first token and inter-token latency",
    "failures": "counted failures",
}
"""What a diagnosis asks for, as topics on which dialects differ."""
