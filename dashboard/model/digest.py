"""From what a target answered to what the dashboard plots: one update per scrape, for live targets and recordings alike."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dashboard.model.history import Point
from dashboard.model.levels import LevelReader, Levels, growth, histogram_growth
from diagnose.dialects.base import Dialect
from diagnose.exposition import Exposition
from diagnose.signals import HistogramWindow
from diagnose.stats import weighted_quantile
from probes.records import StepRecord
from probes.wire import StepsHeader

TRAILING_SECONDS = 10.0
"""Quantiles are taken over this long: a single interval holds too few tokens for a p99."""
_MAX_GAPS = 20_000


@dataclass(frozen=True, slots=True)
class Update:
    """What one scrape changed. Immutable: it crosses from a feed's thread to the interface's."""

    point: Point
    levels: Levels | None = None
    steps: tuple[StepRecord, ...] = ()
    steps_offset_ns: int | None = None
    """Wall time of a step's stamp = stamp + this."""
    restarted: bool = False
    problem: str = ""
    unreachable: bool = False
    """Whether the problem is that nothing answered at all."""
    missing: tuple[str, ...] = ()
    """Signals that the target does not give, in words."""


@dataclass(slots=True)
class Digest:
    """One per target; feed it pages, step records and failures in the order in which they came."""

    dialects: tuple[Dialect, ...]
    """At least one: the engine's comes first."""
    _reader: LevelReader = field(init=False)
    _levels: deque[Levels] = field(default_factory=deque)
    """Of the trailing seconds, and the one before."""
    _gaps: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=_MAX_GAPS))
    """(unix, seconds, tokens) of inter-token gaps."""
    _last_step: StepRecord | None = None
    _engine_id: str = ""

    @property
    def engine(self) -> str:
        return self.dialects[0].name

    @property
    def lists_requests(self) -> bool:
        return any(dialect.debug_steps_path is not None for dialect in self.dialects)

    def __post_init__(self) -> None:
        self._reader = LevelReader(self.dialects)

    def failed(self, unix: float, problem: str, *, unreachable: bool) -> Update:
        """The target did not answer, or not with its metrics."""
        return Update(Point(unix, {"up": 0.0}), problem=problem, unreachable=unreachable)

    def scraped(
        self, unix: float, page: Exposition, header: StepsHeader | None, records: Sequence[StepRecord]
    ) -> Update:
        levels = self._reader.read(unix, page)
        before = self._levels[-1] if self._levels else None
        restarted = before is not None and _restarted(before, levels)
        if restarted:
            self._levels.clear()
        offset = None if header is None else header.unix_ns - header.monotonic_ns
        if header is not None and header.engine_id != self._engine_id:
            self._engine_id, self._last_step = header.engine_id, None
        values = {"up": 1.0, **_gauges(levels)}
        if before is not None and unix > before.unix:
            values |= _rates(before, levels, restarted=restarted)
            values |= _step_shares(records, unix - before.unix)
        self._levels.append(levels)
        while len(self._levels) > 2 and self._levels[1].unix < unix - TRAILING_SECONDS:
            self._levels.popleft()
        self._note_gaps(unix, records)
        values |= self._quantiles(levels)
        return Update(Point(unix, values), levels, tuple(records), offset, restarted, missing=_missing(levels, header))

    def _note_gaps(self, unix: float, records: Sequence[StepRecord]) -> None:
        for record in records:
            before = self._last_step
            if before is not None and record.step_id == before.step_id + 1 and record.num_regular_gaps:
                self._gaps.append((unix, (record.emit_ns - before.emit_ns) / 1e9, record.num_regular_gaps))
            self._gaps.extend((unix, late / 1e9, 1) for late in record.late_gaps_ns)
            self._last_step = record
        while self._gaps and self._gaps[0][0] < unix - TRAILING_SECONDS:
            self._gaps.popleft()

    def _quantiles(self, now: Levels) -> dict[str, float]:
        then = self._levels[0]

        def grown(name: str) -> HistogramWindow | None:
            window = histogram_growth(then.histograms.get(name), now.histograms.get(name), restarted=False)
            return window if window is not None and window.count else None

        found: dict[str, float] = {}
        if self._gaps:
            values, weights = [gap[1] for gap in self._gaps], [gap[2] for gap in self._gaps]
            found |= {f"itl_p{q}": weighted_quantile(values, weights, q / 100) for q in (50, 99)}
        elif (itl := grown("inter_token_latency")) is not None:
            found |= {f"itl_p{q}": _edge(itl, q / 100) for q in (50, 99)}
        if (ttft := grown("time_to_first_token")) is not None:
            found |= {"ttft_p50": _edge(ttft, 0.5), "ttft_p99": _edge(ttft, 0.99)}
        for column, name in (("queue_p50", "queue_time"), ("e2e_p50", "e2e_latency")):
            if (window := grown(name)) is not None:
                found[column] = _edge(window, 0.5)
        for column, name in (("residency", "block_residency"), ("reuse_age", "block_reuse")):
            if (window := grown(name)) is not None and window.mean is not None:
                found[column] = window.mean
        return found


def _edge(window: HistogramWindow, q: float) -> float:
    """Upper edge of the quantile's bucket: a plot cannot show an interval, and the edge never flatters."""
    bounds = window.quantile(q)
    assert bounds is not None
    return bounds.high if bounds.high != float("inf") else bounds.low


def _restarted(before: Levels, after: Levels) -> bool:
    then, now = before.gauges.get("start_time"), after.gauges.get("start_time")
    return then is not None and now is not None and abs(now - then) > 1.0


_GAUGES = {
    "running": "running",
    "waiting": "waiting",
    "active": "blocks_active",
    "reclaimable": "blocks_reclaimable",
    "free": "blocks_free",
    "working_set": "working_set_blocks",
    "memory_total": "device_memory_total",
    "memory_reserved": "device_memory_reserved",
    "budget": "max_batched_tokens",
    "max_sequences": "max_sequences",
}
_RATES = {
    "prefill_rate": "tokens_prefill",
    "decode_rate": "tokens_decode",
    "recompute_rate": "tokens_recompute",
    "cached_rate": "tokens_cached",
    "finished_rate": "requests_finished",
    "eviction_rate": "evictions",
    "ghost_rate": "ghost_hits",
    "preemption_rate": "preemptions",
}


def _gauges(levels: Levels) -> dict[str, float]:
    return {column: levels.gauges[name] for column, name in _GAUGES.items() if name in levels.gauges}


def _rates(before: Levels, after: Levels, *, restarted: bool) -> dict[str, float]:
    seconds = after.unix - before.unix
    gained = growth(before.counters, after.counters, restarted=restarted)
    found = {column: gained[name] / seconds for column, name in _RATES.items() if name in gained}
    found["failure_rate"] = sum(growth(before.failures, after.failures, restarted=restarted).values()) / seconds
    if gained.get("prefix_query_tokens"):
        found["hit_ratio"] = gained.get("prefix_hit_tokens", 0.0) / gained["prefix_query_tokens"]
    stalls = [gained[name] for name in gained if name.startswith("stall_")]
    if stalls:
        found["stall_ratio"] = sum(stalls) / seconds
    for column, name in (("schedule_share", "schedule"), ("lock_share", "lock_wait")):
        window = histogram_growth(before.histograms.get(name), after.histograms.get(name), restarted=restarted)
        if window is not None:
            found[column] = window.sum / seconds
    return found


def _step_shares(records: Sequence[StepRecord], seconds: float) -> dict[str, float]:
    """Shares of the time that went by, from step records: exact for the engine's own thread."""
    if not records:
        return {}
    gaps = sum(record.host_gap_ns or 0 for record in records) / 1e9
    lock = sum(record.lock_wait_ns or 0 for record in records) / 1e9
    host = sum(map(host_ns, records)) / 1e9
    schedule = sum(record.schedule_ns or 0 for record in records) / 1e9
    return {
        "gap_share": gaps / seconds,
        "lock_share": lock / seconds,
        "host_share": host / seconds,
        "schedule_share": schedule / seconds,
    }


def host_ns(record: StepRecord) -> int:
    """Scheduling, preparation and hand-out, as far as they are measured."""
    return (record.schedule_ns or 0) + (record.prepare_ns or 0) + (record.postprocess_ns or 0)


def _missing(levels: Levels, header: StepsHeader | None) -> tuple[str, ...]:
    lacks = []
    if header is None:
        lacks.append("step records")
    if "inter_token_latency" not in levels.histograms:
        lacks.append("inter-token latency")
    if "blocks_active" not in levels.gauges:
        lacks.append("block buckets")
    if "running" not in levels.gauges:
        lacks.append("running requests")
    return tuple(lacks)
