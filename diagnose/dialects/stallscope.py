"""stallscope's own engine, checked against version 0.1. The metric table itself is `probes.catalog`."""

from diagnose.dialects.base import Dialect, Pick
from probes.catalog import PREFIX


def _pick(name: str, **labels: str) -> Pick:
    return Pick(PREFIX + name, tuple(sorted(labels.items())))


STALLSCOPE = Dialect(
    name="stallscope",
    prefix=PREFIX,
    counters={
        "tokens_prefill": _pick("tokens_total", phase="prefill"),
        "tokens_decode": _pick("tokens_total", phase="decode"),
        "tokens_recompute": _pick("tokens_total", phase="recompute"),
        "tokens_cached": _pick("tokens_total", phase="cached"),
        "prefix_query_tokens": _pick("prefix_query_tokens_total"),
        "prefix_hit_tokens": _pick("prefix_hit_tokens_total"),
        "preemptions": _pick("preemptions_total"),
        "evictions": _pick("kv_evictions_total"),
        "ghost_hits": _pick("kv_ghost_hits_total"),
        "requests_finished": _pick("requests_finished_total"),
        "stall_prefill_seconds": _pick("stall_seconds_total", cause="prefill", extent="some"),
        "stall_host_seconds": _pick("stall_seconds_total", cause="host", extent="some"),
        "stall_lock_seconds": _pick("stall_seconds_total", cause="lock", extent="some"),
        "stall_waiting_seconds": _pick("stall_seconds_total", cause="preemption_or_deferral", extent="some"),
    },
    gauges={
        "running": _pick("requests", state="running"),
        "waiting": _pick("requests", state="waiting"),
        "waiting_blocks": _pick("requests_waiting", reason="kv_blocks"),
        "waiting_sequences": _pick("requests_waiting", reason="max_sequences"),
        "blocks_active": _pick("kv_blocks", state="active"),
        "blocks_reclaimable": _pick("kv_blocks", state="reclaimable"),
        "blocks_free": _pick("kv_blocks", state="free"),
        "working_set_blocks": _pick("kv_working_set_blocks"),
        "device_memory_total": _pick("device_memory_bytes", kind="total"),
        "device_memory_reserved": _pick("device_memory_bytes", kind="reserved"),
        "max_batched_tokens": _pick("max_batched_tokens"),
        "max_sequences": _pick("max_sequences"),
        "bandwidth_ceiling": _pick("device_bandwidth_bytes_per_second"),
        "flops_ceiling": _pick("device_flops_per_second"),
        "start_time": _pick("process_start_time_seconds"),
    },
    histograms={
        "inter_token_latency": _pick("inter_token_latency_seconds"),
        "time_to_first_token": _pick("time_to_first_token_seconds"),
        "e2e_latency": _pick("e2e_request_latency_seconds"),
        "queue_time": _pick("queue_time_seconds"),
        "step_decode": _pick("step_duration_seconds", kind="decode"),
        "step_mixed": _pick("step_duration_seconds", kind="mixed"),
        "step_prefill": _pick("step_duration_seconds", kind="prefill"),
        "schedule": _pick("schedule_duration_seconds"),
        "lock_wait": _pick("scheduler_lock_wait_seconds"),
        "block_residency": _pick("kv_block_residency_seconds"),
        "block_reuse": _pick("kv_block_reuse_seconds"),
        "ghost_age": _pick("kv_ghost_age_seconds"),
    },
    failures=PREFIX + "failures_total",
    info=PREFIX + "engine_info",
    free_includes_reclaimable=False,
    features_absent=frozenset({"speculation", "disaggregation"}),
    debug_steps_path="/debug/steps",
    coverage={
        "tokens_prefill": "first-time prompt tokens, booked in the step that computed them",
        "ghost_hits": "blocks of started requests that were among the latest evictions: a lower bound",
        "working_set_blocks": "smallest LRU pool that would have served 95 % of the reuse of the last 5 minutes",
        "inter_token_latency": "one sample per token, on the engine's clock",
    },
)
