"""The state of a live engine at one moment, as exporters and debug endpoints show it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from probes.catalog import Metric
from probes.locks import Histogram
from probes.records import BlockCensus


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseSnapshot:
    """What became of cached blocks. Histograms are cumulative since the start, in ns."""

    residency: Histogram
    """Content of a block cached to its eviction."""
    reuse: Histogram
    """Cached block given back by its last holder to its next hit."""
    ghost_age: Histogram
    """Eviction of a block's content to its next request; one observation per ghost hit."""
    num_ghosts: int
    """Evicted blocks that are remembered."""
    working_set_blocks: int | None
    """Smallest pool that would have served 95 % of the reuse in the window; None when nothing was asked for again."""
    working_set_window_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """Gauges and the counters that live in the scheduler, read under the scheduler lock: they belong together."""

    census: BlockCensus
    num_running: int
    num_waiting: int
    num_forking: int = 0
    """Further choices of a prompt that is still being computed."""
    num_transferring: int | None = None
    """Requests that wait for KV from a prefill instance, neither running nor waiting; None where there is none."""
    waiting_by_reason: dict[str, int]
    """By `DeferralReason` of the last scheduling pass; prompts not yet looked at count as `not_considered_yet`, and those
    that wait for KV from a prefill instance as `waiting_for_kv_transfer`."""
    prefix_query_tokens: int
    prefix_hit_tokens: int
    max_batched_tokens: int
    max_sequences: int
    memory_bytes: dict[str, int]
    """total, reserved, weights, kv_pool."""
    bandwidth_bytes_per_second: float | None
    start_unix: float
    info: dict[str, str]
    """Labels of `engine_info`: version, model geometry, fixed configuration."""
    reuse: ReuseSnapshot | None = None
    """None when the engine does not measure it."""
    flops_per_second: float | None = None
    """Matrix product rate, measured like the bandwidth; None: not measured."""


Labels = tuple[str, ...]
"""Label values, in the order of their names."""


class Reading(NamedTuple):
    """One metric of the catalog with its series, for whatever form it is exported in."""

    metric: Metric
    label_names: tuple[str, ...]
    numbers: Mapping[Labels, float]
    """Of a counter, gauge or info."""
    histograms: Mapping[Labels, Histogram]
    """Of a histogram; live, so that a reader copies what it keeps."""
