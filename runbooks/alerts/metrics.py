"""What each engine calls the series that the alerts read: the names of its dialect, so that alerts and diagnosis cannot drift.

A dialect holds canonical names; here they get back what the engine puts on the wire. Where an engine renamed a metric, the
dialect's first name is the one of today.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from diagnose.dialects.base import Alias, Dialect, Table
from diagnose.dialects.sglang import SGLANG
from diagnose.dialects.stallscope import STALLSCOPE
from diagnose.dialects.vllm import VLLM
from probes.catalog import LATENCY_BOUNDS_SECONDS, METRICS


@dataclass(frozen=True, slots=True)
class Latency:
    """A histogram in seconds."""

    metric: str
    bounds: tuple[float, ...]
    """An objective must be one of them: between two bounds nobody can count."""
    limit: float
    """The objective unless another is asked for."""


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Selectors of one engine; None where it exports nothing that would say it."""

    engine: str
    since: str
    """The first version that has all of them; empty: not known to begin."""
    inter_token: Latency
    first_token: Latency
    tokens: str
    """Counter of tokens that were generated."""
    running: str
    finished: str
    """Counter of finished requests."""
    preemptions: str
    capacity_waits: str
    """Expression: requests that wait for KV blocks."""
    evictions: str | None = None
    ghost_hits: str | None = None
    failures: str | None = None


def ours(name: str, **labels: str) -> str:
    """Selector of a metric of our engine; a label that it does not have is a mistake of the caller's."""
    metric = METRICS[name]
    unknown = labels.keys() - set(metric.labels)
    assert not unknown, f"{name} has no label {unknown}"
    return metric.wire_name + _braces(labels.items())


class _Names:
    """Series of one dialect as Prometheus has them, and the versions that have those that were asked for."""

    def __init__(self, dialect: Dialect, separator: str) -> None:
        """`separator` stands between the engine's name and the metric's on the wire: a dialect has `_` for any."""
        self._dialect, self._separator = dialect, separator
        self._since: list[str] = []

    @property
    def since(self) -> str:
        return max(self._since, key=lambda text: tuple(map(int, text.split("."))), default="")

    def counter(self, signal: str) -> str:
        return self._counter(*self._named(self._dialect.counters, signal))

    def gauge(self, signal: str) -> str:
        name, labels = self._named(self._dialect.gauges, signal)
        return name + _braces(labels)

    def latency(self, signal: str, bounds: tuple[float, ...], limit: float) -> Latency:
        """The histogram's own name: its parts have endings."""
        name, labels = self._named(self._dialect.histograms, signal)
        assert not labels, f"{name}: a histogram with chosen labels is not read here"
        return Latency(name, bounds, limit)

    def failures(self) -> str:
        (found,) = self._dialect.failures
        return self._counter(
            self._on_the_wire(found.metric), () if found.kinds is None else [(found.label, "|".join(found.kinds))]
        )

    def _named(self, table: Table, signal: str) -> tuple[str, tuple[tuple[str, str], ...]]:
        alias: Alias = table[signal][0]
        self._since += [alias.since] if alias.since else []
        return self._on_the_wire(alias.metric), alias.labels

    def _on_the_wire(self, metric: str) -> str:
        engine = self._dialect.name
        return f"{engine}{self._separator}{metric.removeprefix(f'{engine}_')}"

    @staticmethod
    def _counter(name: str, labels: Iterable[tuple[str, str]]) -> str:
        return name.removesuffix("_total") + "_total" + _braces(labels)


def _braces(labels: Iterable[tuple[str, str]]) -> str:
    """A value may be several, `a|b`."""
    chosen = ",".join(f'{label}{"=~" if "|" in value else "="}"{value}"' for label, value in labels)
    return f"{{{chosen}}}" if chosen else ""


_VLLM_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_VLLM_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
    2560.0,
)  # fmt: skip
_SGLANG_ITL = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0,
    6.0, 8.0,
)  # fmt: skip
_SGLANG_TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0)


def _metrics(
    names: _Names,
    engine: str,
    bounds: tuple[tuple[float, ...], tuple[float, ...]],
    first_token_limit: float,
    capacity_waits: str,
    **others: str,
) -> EngineMetrics:
    """`bounds`: of the gaps between tokens, and of the first token."""
    return EngineMetrics(
        engine=engine,
        inter_token=names.latency("inter_token_latency", bounds[0], 0.2),
        first_token=names.latency("time_to_first_token", bounds[1], first_token_limit),
        # Live tokens: those that an engine books when a request ends would let a long one look stuck.
        tokens=names.counter("tokens_decode"),
        running=names.gauge("running"),
        finished=names.counter("requests_finished"),
        preemptions=names.counter("preemptions"),
        capacity_waits=capacity_waits,
        since=names.since,
        **others,
    )


def _stallscope() -> EngineMetrics:
    names = _Names(STALLSCOPE, "_")
    bounds = LATENCY_BOUNDS_SECONDS, LATENCY_BOUNDS_SECONDS
    others = {"evictions": names.counter("evictions"), "ghost_hits": names.counter("ghost_hits")}
    waits = names.gauge("waiting_blocks")
    return _metrics(names, "stallscope", bounds, 2.0, waits, failures=names.failures(), **others)


def _vllm() -> EngineMetrics:
    names = _Names(VLLM, ":")
    waits = names.gauge("waiting_capacity")
    return _metrics(names, "vllm", (_VLLM_ITL, _VLLM_TTFT), 2.5, waits, failures=names.failures())


def _sglang() -> EngineMetrics:
    names = _Names(SGLANG, ":")
    # Its queue does not say what it waits for; usage leaves evictable tokens out, so that near 1 the pool binds.
    waits = f"{names.gauge('waiting')} and {names.gauge('pool_usage')} > 0.95"
    return _metrics(names, "sglang", (_SGLANG_ITL, _SGLANG_TTFT), 2.0, waits)


ENGINES: dict[str, EngineMetrics] = {table.engine: table for table in (_stallscope(), _vllm(), _sglang())}
