"""stallscope's own engine and its probe in others, checked against version 0.1. The metric table itself is `probes.catalog`."""

from diagnose.dialects.base import Alias, Combine, Dialect, Failures
from probes.catalog import PREFIX


def _own(name: str, coverage: str = "", combine: Combine = Combine.SUM, **labels: str) -> tuple[Alias]:
    return (Alias(PREFIX + name, tuple(sorted(labels.items())), coverage=coverage, combine=combine),)


STALLSCOPE = Dialect(
    name="stallscope",
    prefixes=(PREFIX,),
    counters={
        "tokens_prefill": _own(
            "tokens_total", "first-time prompt tokens, booked in the step that computed them", phase="prefill"
        ),
        "tokens_decode": _own("tokens_total", phase="decode"),
        "tokens_recompute": _own("tokens_total", phase="recompute"),
        "tokens_cached": _own("tokens_total", phase="cached"),
        "prefix_query_tokens": _own("prefix_query_tokens_total"),
        "prefix_hit_tokens": _own("prefix_hit_tokens_total"),
        "preemptions": _own("preemptions_total"),
        "evictions": _own("kv_evictions_total"),
        "ghost_hits": _own(
            "kv_ghost_hits_total", "blocks of started requests that were among the latest evictions: a lower bound"
        ),
        "transfer_failures": _own("kv_transfer_failures_total"),
        "requests_finished": _own("requests_finished_total"),
        "stall_prefill_seconds": _own("stall_seconds_total", cause="prefill", extent="some"),
        "stall_host_seconds": _own("stall_seconds_total", cause="host", extent="some"),
        "stall_lock_seconds": _own("stall_seconds_total", cause="lock", extent="some"),
        "stall_waiting_seconds": _own("stall_seconds_total", cause="preemption_or_deferral", extent="some"),
        "probe_errors": _own("probe_errors_total"),
        "gpu_throttled_power_seconds": _own("gpu_throttled_seconds_total", reason="power"),
        "gpu_throttled_thermal_seconds": _own("gpu_throttled_seconds_total", reason="thermal"),
        "gpu_ecc_corrected": _own("gpu_ecc_errors_total", kind="corrected"),
        "gpu_ecc_uncorrected": _own("gpu_ecc_errors_total", kind="uncorrected"),
        "gpu_xid_errors": _own("gpu_xid_errors_total"),
        "gpu_pcie_replays": _own("gpu_pcie_replays_total"),
    },
    gauges={
        "running": _own("requests", state="running"),
        "waiting": _own("requests", state="waiting"),
        "waiting_blocks": _own("requests_waiting", reason="kv_blocks"),
        "waiting_sequences": _own("requests_waiting", reason="max_sequences"),
        "waiting_transfer": _own(
            "requests", "the prefill instance's own work on their prompts included", state="transferring"
        ),
        "blocks_active": _own("kv_blocks", state="active"),
        "blocks_reclaimable": _own("kv_blocks", state="reclaimable"),
        "blocks_free": _own("kv_blocks", state="free"),
        "working_set_blocks": _own(
            "kv_working_set_blocks", "smallest LRU pool that would have served 95 % of the reuse of the last 5 minutes"
        ),
        "device_memory_total": _own("device_memory_bytes", kind="total"),
        "device_memory_reserved": _own("device_memory_bytes", kind="reserved"),
        "max_batched_tokens": _own("max_batched_tokens"),
        "max_sequences": _own("max_sequences"),
        "bandwidth_ceiling": _own("device_bandwidth_bytes_per_second"),
        "flops_ceiling": _own("device_flops_per_second"),
        "start_time": _own("process_start_time_seconds", combine=Combine.MAX),
        "gpu_lost": _own("gpu_lost"),
        "gpu_busy": _own("gpu_busy_ratio", "share of time with any kernel running: idle or not, nothing more"),
        "gpu_sm_clock": _own("gpu_clock_hertz", clock="sm"),
        "gpu_sm_clock_limit": _own("gpu_clock_limit_hertz", clock="sm"),
        "gpu_memory_clock": _own("gpu_clock_hertz", clock="memory"),
        "gpu_throttle_hw_slowdown": _own("gpu_throttle", reason="hw_slowdown"),
        "gpu_throttle_hw_thermal": _own("gpu_throttle", reason="hw_thermal"),
        "gpu_throttle_sw_thermal": _own("gpu_throttle", reason="sw_thermal"),
        "gpu_throttle_power_brake": _own("gpu_throttle", reason="hw_power_brake"),
        "gpu_throttle_power_cap": _own("gpu_throttle", reason="sw_power_cap"),
        "gpu_power": _own("gpu_power_watts"),
        "gpu_power_limit": _own("gpu_power_limit_watts"),
        "gpu_temperature": _own("gpu_temperature_celsius"),
        "gpu_pcie_tx": _own("gpu_pcie_bytes_per_second", direction="tx"),
        "gpu_pcie_rx": _own("gpu_pcie_bytes_per_second", direction="rx"),
        "gpu_memory_used": _own("gpu_memory_bytes", kind="used"),
        "gpu_last_xid": _own("gpu_last_xid"),
    },
    histograms={
        "inter_token_latency": _own("inter_token_latency_seconds", "one sample per token, on the engine's clock"),
        "time_to_first_token": _own("time_to_first_token_seconds"),
        "e2e_latency": _own("e2e_request_latency_seconds"),
        "queue_time": _own("queue_time_seconds"),
        "frontend_delay": _own(
            "frontend_delay_seconds",
            "one sample per step: how long its tokens lay between the engine and the event loop",
        ),
        "step_decode": _own("step_duration_seconds", kind="decode"),
        "step_mixed": _own("step_duration_seconds", kind="mixed"),
        "step_prefill": _own("step_duration_seconds", kind="prefill"),
        "schedule": _own("schedule_duration_seconds"),
        "lock_wait": _own("scheduler_lock_wait_seconds"),
        "block_residency": _own("kv_block_residency_seconds"),
        "block_reuse": _own("kv_block_reuse_seconds"),
        "ghost_age": _own("kv_ghost_age_seconds"),
        "kv_transfer": _own(
            "kv_transfer_exposed_seconds",
            "what a transfer added to the prefill instance's own time; overlap is not in it",
        ),
    },
    failures=(Failures(PREFIX + "failures_total"),),
    info={PREFIX + "engine_info": {}},
    free_includes_reclaimable=False,
    features_absent=frozenset({"speculation", "disaggregation"}),
    features_with={"disaggregation": ("role", ("prefill", "decode"))},
    debug_steps_path="/debug/steps",
    commands={"blocks": "curl -s {address}/debug/census", "steps": "curl -s '{address}/debug/steps?since=0'"},
)
