"""Canonical signals: what rules read, whatever engine and source they came from. Absent is None, never zero."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diagnose.dialects.base import Usage
from diagnose.kernel_profile import KernelProfile, KernelTotals
from diagnose.load import LoadPoint
from diagnose.stats import Bounds, bucket_quantile
from probes.host_profile import HostProfile
from probes.records import StepRecord

BENCHMARK = "benchmark"
"""Dialect of what load generators report."""
DEVICE = "nvidia-smi"
STACKS = "py-spy"
KERNELS = "a table of kernels"
STEP_RUNS = "a summary of steps"
BESIDE = frozenset({BENCHMARK, DEVICE, STACKS, KERNELS, STEP_RUNS})
"""Sources that say something of a target without a window of its own."""

# Names of canonical signals. Counters and histograms are window deltas, gauges are series of samples.
COUNTERS = (
    "tokens_prefill",
    "tokens_decode",
    "tokens_recompute",
    "tokens_cached",
    "prefix_query_tokens",
    "prefix_hit_tokens",
    "preemptions",
    "preempted_tokens",
    "evictions",
    "ghost_hits",
    "requests_finished",
    "steps",
    "upstream_queue_seconds",
    "spec_draft_tokens",
    "spec_accepted_tokens",
    "external_query_tokens",
    "external_hit_tokens",
    "external_stored_tokens",
    "transfer_failures",
    "failures",
    "stall_prefill_seconds",
    "stall_host_seconds",
    "stall_lock_seconds",
    "stall_waiting_seconds",
    "probe_errors",
    "gpu_throttled_power_seconds",
    "gpu_throttled_thermal_seconds",
    "gpu_ecc_corrected",
    "gpu_ecc_uncorrected",
    "gpu_xid_errors",
    "gpu_pcie_replays",
)
GAUGES = (
    "running",
    "waiting",
    "waiting_blocks",
    "waiting_sequences",
    "waiting_capacity",
    "swapped",
    "waiting_upstream",
    "waiting_transfer",
    "paused",
    "pool_reserved",
    "reserved_share",
    "decode_context",
    "accept_length",
    "kv_tokens",
    "streams_before_prefill",
    "prefill_run_seconds",
    "prefill_run_steps",
    "prefix_hit_rate",
    "blocks_active",
    "blocks_reclaimable",
    "blocks_free",
    "pool_usage",
    "pool_blocks",
    "pool_tokens",
    "block_size",
    "working_set_blocks",
    "device_memory_total",
    "device_memory_reserved",
    "max_batched_tokens",
    "max_sequences",
    "bandwidth_ceiling",
    "flops_ceiling",
    "start_time",
    *(
        f"client_{metric}_{statistic}"
        for metric in ("ttft", "itl", "tpot", "e2e")
        for statistic in ("mean", "p50", "p99")
    ),
    "host_delay_share",
    "host_gil_held_share",
    "gpu_lost",
    "gpu_busy",
    "gpu_active",
    "gpu_sm_active",
    "gpu_tensor_active",
    "gpu_dram_active",
    "gpu_sm_clock",
    "gpu_sm_clock_limit",
    "gpu_memory_clock",
    "gpu_throttle_hw_slowdown",
    "gpu_throttle_hw_thermal",
    "gpu_throttle_sw_thermal",
    "gpu_throttle_power_brake",
    "gpu_throttle_power_cap",
    "gpu_power",
    "gpu_power_limit",
    "gpu_temperature",
    "gpu_pcie_tx",
    "gpu_pcie_rx",
    "gpu_memory_used",
    "gpu_last_xid",
)
HISTOGRAMS = (
    "inter_token_latency",
    "time_to_first_token",
    "e2e_latency",
    "queue_time",
    "frontend_delay",
    "step_decode",
    "step_mixed",
    "step_prefill",
    "step_recompute",
    "forward_decode",
    "forward_mixed",
    "schedule",
    "lock_wait",
    "block_residency",
    "block_reuse",
    "ghost_age",
    "kv_transfer",
    "kv_transfer_post",
)


@dataclass(frozen=True, slots=True)
class Counter:
    delta: float
    source: str
    """The metric as found on the target, or the kind of log line."""
    coverage: str = ""
    """What exactly it counts, where that is not obvious."""
    late: bool = False
    """Booked later than it happened: no growth in a window proves nothing."""


@dataclass(frozen=True, slots=True)
class Gauge:
    values: tuple[float, ...]
    """In time order, one per scrape that had it."""
    source: str
    coverage: str = ""

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
    coverage: str = ""

    @property
    def count(self) -> float:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    def quantile(self, q: float) -> Bounds | None:
        return bucket_quantile(self.bounds, self.counts, q) if self.count else None


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
    usage: Usage | None = None
    """What `pool_usage` counts; None: unknown, so that it shows nothing."""
    pool_unit: str = "blocks"
    sources: tuple[str, ...] = ()
    """What each source was recognised as."""
    notes: tuple[str, ...] = ()
    """What limits this part of the evidence, for the report."""
    advice: Mapping[str, str] = field(default_factory=dict)
    """Topic -> how to get on this engine what is missing."""
    load: tuple[LoadPoint, ...] = ()
    """What a log of one engine says of its load, line by line; empty without one, and for several engines in one log."""
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
    unseen_share: float = 0.0
    """Share of the window in which scrapes are missing: gauges say nothing of it, counters do."""
    kernels: KernelTotals | None = None
    """A profiler's table of them, which knows no steps."""
    restarted: bool = False
    running_before_restart: float = 0.0

    def coverage(self) -> dict[str, str]:
        """Source -> what exactly it counts, for the sources that need the words."""
        stated: list[Counter | Gauge | HistogramWindow] = [*self.counters.values(), *self.gauges.values()]
        stated += self.histograms.values()
        return {signal.source: signal.coverage for signal in stated if signal.coverage}

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
        names = ("tokens_decode", "tokens_prefill", "tokens_recompute", "steps")
        counters = [counter for name in names if (counter := self.counters.get(name)) is not None]
        if any(counter.delta > 0 for counter in counters):
            return True
        # A counter that is booked late may stand still while the engine works.
        return False if any(not counter.late for counter in counters) else None
