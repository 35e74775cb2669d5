"""Canonical signals: what rules read, whatever engine and source they came from. Absent is None, never zero."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from diagnose.kernel_profile import KernelProfile
from diagnose.stats import Bounds, bucket_quantile
from probes.host_profile import HostProfile
from probes.records import StepRecord

# Names of canonical signals. Counters and histograms are window deltas, gauges are series of samples.
COUNTERS = (
    "tokens_prefill",
    "tokens_decode",
    "tokens_recompute",
    "tokens_cached",
    "prefix_query_tokens",
    "prefix_hit_tokens",
    "preemptions",
    "evictions",
    "ghost_hits",
    "requests_finished",
    "failures",
    "spec_draft_tokens",
    "spec_accepted_tokens",
    "transfer_failures",
    "stall_prefill_seconds",
    "stall_host_seconds",
    "stall_lock_seconds",
    "stall_waiting_seconds",
)
GAUGES = (
    "running",
    "waiting",
    "waiting_blocks",
    "waiting_sequences",
    "waiting_transfer",
    "blocks_active",
    "blocks_reclaimable",
    "blocks_free",
    "working_set_blocks",
    "device_memory_total",
    "device_memory_reserved",
    "max_batched_tokens",
    "max_sequences",
    "bandwidth_ceiling",
    "flops_ceiling",
    "start_time",
    "host_delay_share",
    "host_gil_held_share",
)
HISTOGRAMS = (
    "inter_token_latency",
    "time_to_first_token",
    "e2e_latency",
    "queue_time",
    "step_decode",
    "step_mixed",
    "step_prefill",
    "schedule",
    "lock_wait",
    "block_residency",
    "block_reuse",
    "ghost_age",
    "kv_transfer",
)


@dataclass(frozen=True, slots=True)
class Counter:
    delta: float
    source: str
    """The metric as found on the target."""


@dataclass(frozen=True, slots=True)
class Gauge:
    values: tuple[float, ...]
    """In time order, one per scrape that had it."""
    source: str

    @property
    def last(self) -> float:
        return self.values[-1]

    @property
    def peak(self) -> float:
        return max(self.values)

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)


@dataclass(frozen=True, slots=True)
class HistogramWindow:
    """What a histogram gained in the window. Seconds."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    """Per bucket, not cumulative; the last one is beyond the last bound."""
    sum: float
    source: str

    @property
    def count(self) -> float:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    def quantile(self, q: float) -> Bounds | None:
        return bucket_quantile(self.bounds, self.counts, q) if self.count else None

    def share_above(self, limit: float) -> Bounds:
        """Share of observations above `limit`, as bounds: the bucket that holds the limit may be on either side."""
        above = at = 0.0
        for index, count in enumerate(self.counts):
            low = self.bounds[index - 1] if index else 0.0
            high = self.bounds[index] if index < len(self.bounds) else inf
            if low >= limit:
                above += count
            elif high > limit:
                at += count
        return Bounds(above / self.count, (above + at) / self.count)


@dataclass(slots=True)
class Signals:
    """One window of one target."""

    dialect: str
    length_seconds: float | None
    num_scrapes: int
    counters: dict[str, Counter] = field(default_factory=dict)
    gauges: dict[str, Gauge] = field(default_factory=dict)
    histograms: dict[str, HistogramWindow] = field(default_factory=dict)
    failures: dict[str, float] = field(default_factory=dict)
    """Counted failures by kind."""
    info: Mapping[str, str] = field(default_factory=dict)
    """Model geometry and configuration, as the engine states them."""
    free_includes_reclaimable: bool | None = None
    """Whether the free count contains reclaimable blocks; None: unknown, so the two must not be added."""
    steps: tuple[StepRecord, ...] = ()
    steps_lost: int = 0
    steps_source: str = ""
    features_absent: frozenset[str] = frozenset()
    """What this engine does not do at all: speculation, disaggregation."""
    num_replicas: int | None = None
    """How many engines the target stands for; None when nothing says so."""
    replicas: dict[str, "Signals"] = field(default_factory=dict)
    """The same window of each of several replicas, by its name."""
    host: HostProfile | None = None
    """What the server's threads did on their machine."""
    is_traced: bool = False
    """A profiler's trace is among the sources, complete or not."""
    profiles: tuple[KernelProfile, ...] = ()
    """Complete ones, by rank."""
    restarted: bool = False
    running_before_restart: float = 0.0

    def delta(self, name: str) -> float | None:
        counter = self.counters.get(name)
        return None if counter is None else counter.delta

    def rate(self, name: str) -> float | None:
        """Per second; None when the counter or the window's length is unknown."""
        delta = self.delta(name)
        return None if delta is None or not self.length_seconds else delta / self.length_seconds

    def last(self, name: str) -> float | None:
        gauge = self.gauges.get(name)
        return None if gauge is None else gauge.last

    def peak(self, name: str) -> float | None:
        gauge = self.gauges.get(name)
        return None if gauge is None else gauge.peak

    def number(self, name: str) -> float | None:
        """A number from the engine's info labels."""
        try:
            return float(self.info[name])
        except (KeyError, ValueError):
            return None

    @property
    def worked(self) -> bool | None:
        """Whether any token was computed in the window (counters, not gauges: a stale gauge can read busy)."""
        moved = [self.delta(name) for name in ("tokens_decode", "tokens_prefill", "tokens_recompute")]
        known = [delta for delta in moved if delta is not None]
        return any(delta > 0 for delta in known) if known else None
