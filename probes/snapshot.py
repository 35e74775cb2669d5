"""The state of a live engine at one moment, as exporters and debug endpoints show it."""

from dataclasses import dataclass

from probes.records import BlockCensus


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """Gauges and the counters that live in the scheduler, read under the scheduler lock: they belong together."""

    census: BlockCensus
    num_running: int
    num_waiting: int
    waiting_by_reason: dict[str, int]
    """By `DeferralReason` of the last scheduling pass; prompts not yet looked at count as `not_considered_yet`."""
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
    flops_per_second: float | None = None
    """Matrix product rate, measured like the bandwidth; None: not measured."""
