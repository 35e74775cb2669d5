"""The metric table of the engine: exporter, documentation, tests and the diagnose dialect read it. Base units only."""

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "stallscope_"

LATENCY_BOUNDS_SECONDS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0,
)  # fmt: skip
LATENCY_BOUNDS_NS = tuple(round(bound * 1e9) for bound in LATENCY_BOUNDS_SECONDS)

BLOCK_AGE_BOUNDS_SECONDS = (
    0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0,
    14400.0, 28800.0, 86400.0,
)  # fmt: skip
"""Cached blocks live for seconds under pressure and for hours without it."""
BLOCK_AGE_BOUNDS_NS = tuple(round(bound * 1e9) for bound in BLOCK_AGE_BOUNDS_SECONDS)


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """Without prefix; counters end in `_total`, as on the wire."""
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = LATENCY_BOUNDS_SECONDS
    """Seconds; of a histogram."""

    @property
    def wire_name(self) -> str:
        return PREFIX + self.name


GPU_LABELS = _GPU = ("gpu", "uuid")
_C, _G, _H, _I = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM, MetricKind.INFO

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("step_duration_seconds", _H, "Engine iterations, from lock request to tokens handed out.", ("kind",)),
        Metric("step_device_seconds_total", _C, "Device time by operation class and step kind.", ("op", "kind")),
        Metric(
            "tokens_total",
            _C,
            "Tokens by phase: prefill (first-time), decode (sampled), recompute (after preemption), cached (not computed), "
            "received (computed by a prefill instance).",
            ("phase",),
        ),
        Metric("scheduler_lock_wait_seconds", _H, "Wait for the scheduler lock by the site that asked.", ("site",)),
        Metric("scheduler_lock_hold_seconds", _H, "Hold of the scheduler lock by the site that held it.", ("site",)),
        Metric(
            "scheduler_lock_contended_total", _C, "Acquisitions of the scheduler lock that had to wait, by site.", ("site",)
        ),
        Metric(
            "scheduler_lock_blocked_seconds_total",
            _C,
            "Wait for the scheduler lock by the site that asked and the one that held it meanwhile; nobody: it was free, and "
            "the waiter had not got the processor or the interpreter yet.",
            ("site", "held_by"),
        ),
        Metric("schedule_duration_seconds", _H, "Host time in the scheduler per step, lock wait excluded."),
        Metric("host_gap_seconds", _H, "Device idle before a step while work was waiting."),
        Metric(
            "stall_seconds_total",
            _C,
            "Time by which decode gaps exceeded the running decode floor. some: at least one sequence; full: all of them.",
            ("cause", "extent"),
        ),
        Metric("kv_blocks", _G, "KV blocks by disjoint state; free does not include reclaimable.", ("state",)),
        Metric("kv_evictions_total", _C, "Reclaimable blocks whose content was given up (metadata only)."),
        Metric(
            "kv_ghost_hits_total",
            _C,
            "Blocks asked for again after their eviction, by requests that started; from a sample in pools of over 4,096 blocks.",
        ),
        Metric(
            "kv_block_residency_seconds", _H, "Content of a block cached to its eviction.", bounds=BLOCK_AGE_BOUNDS_SECONDS
        ),
        Metric(
            "kv_block_reuse_seconds", _H, "Cached block given back to its next hit.", bounds=BLOCK_AGE_BOUNDS_SECONDS
        ),
        Metric(
            "kv_ghost_age_seconds", _H, "Eviction of a block's content to its next request.", bounds=BLOCK_AGE_BOUNDS_SECONDS
        ),
        Metric("kv_working_set_blocks", _G, "Pool that would have served 95 % of the reuse of the last 5 minutes."),
        Metric("prefix_query_tokens_total", _C, "Prompt tokens looked up in the prefix index."),
        Metric("prefix_hit_tokens_total", _C, "Prompt tokens found in the prefix index."),
        Metric(
            "requests",
            _G,
            "Requests by state; forking: a further choice of a prompt that is being computed; transferring: its KV comes from "
            "a prefill instance.",
            ("state",),
        ),
        Metric("requests_waiting", _G, "Waiting requests by the reason of the last scheduling pass.", ("reason",)),
        Metric("requests_finished_total", _C, "Finished requests by reason.", ("reason",)),
        Metric("preemptions_total", _C, "Sequences preempted (recompute)."),
        Metric("deferrals_total", _C, "Sequence-steps without budget, by reason.", ("reason",)),
        Metric("time_to_first_token_seconds", _H, "Arrival at the server to the first token."),
        Metric("inter_token_latency_seconds", _H, "Gap between consecutive tokens of a sequence, one sample per token."),
        Metric("e2e_request_latency_seconds", _H, "Arrival to the last token."),
        Metric("queue_time_seconds", _H, "Arrival to the first scheduled token."),
        Metric(
            "frontend_delay_seconds",
            _H,
            "Hand-out of a step's tokens by the engine to the event loop taking them, which reads requests and sends tokens: how "
            "late that loop is. One sample per step; none where the probe is in another engine.",
        ),
        Metric("kv_transfer_bytes_total", _C, "KV of prompts sent to decode instances, or received.", ("direction",)),
        Metric("kv_transfer_chunks_total", _C, "Pieces in which it came: blocks that a prefill chunk filled.", ("direction",)),
        Metric(
            "kv_transfer_seconds",
            _H,
            "Time in which a prompt's chunks were sent, summed up, as the sender saw it; hidden behind computation or not.",
        ),
        Metric(
            "kv_transfer_exposed_seconds",
            _H,
            "What the transfer of a prompt added to the prefill instance's own time: asking it to all KV here, less that time.",
        ),
        Metric(
            "kv_transfer_failures_total",
            _C,
            "Transfers that ended early, by kind; the decode instance then computed the prompt itself.",
            ("kind",),
        ),
        Metric(
            "failures_total",
            _C,
            "Failures by kind: oom, forward_error (a step), engine_dead, connection_dropped (a stream that the server cut off).",
            ("kind",),
        ),
        Metric("export_items_total", _C, "Delivered by an exporter: recording entries, spans, metric points.", ("exporter",)),
        Metric("export_lost_total", _C, "Items an exporter will never deliver, by reason.", ("exporter", "reason")),
        Metric("export_failures_total", _C, "Failed attempts of an exporter; the engine went on.", ("exporter",)),
        Metric("probe_errors_total", _C, "Errors inside a probe; the engine went on."),
        Metric(
            "device_memory_bytes", _G, "Device memory by kind: total, reserved (weights + pool), weights, kv_pool.", ("kind",)
        ),
        Metric("step_device_times_lost_total", _C, "Steps whose device time was overwritten before it could be read."),
        Metric("device_bandwidth_bytes_per_second", _G, "Read bandwidth of the device, measured at start."),
        Metric(
            "device_flops_per_second", _G, "Matrix product rate of the device in the model's precision, measured at start."
        ),
        Metric("gpu_lost", _G, "1 once the driver no longer reaches the GPU: it fell off the bus or needs a reset.", _GPU),
        Metric(
            "gpu_memory_bytes",
            _G,
            "Device memory as the driver counts it: total, used (by all processes), driver_reserved, this_process. It says "
            "nothing about the use of the KV pool, which is allocated at start.",
            (*_GPU, "kind"),
        ),
        Metric(
            "gpu_busy_ratio",
            _G,
            "Share of the driver's last period in which at least one kernel ran: tells idle from not idle, and nothing of "
            "saturation.",
            _GPU,
        ),
        Metric(
            "gpu_memory_busy_ratio", _G, "Share of that period in which device memory was accessed: time, not bandwidth.", _GPU
        ),
        Metric("gpu_clock_hertz", _G, "Clocks: sm and memory.", (*_GPU, "clock")),
        Metric("gpu_clock_limit_hertz", _G, "The highest clocks the GPU has.", (*_GPU, "clock")),
        Metric("gpu_throttle", _G, "1 while the driver states this reason for lower clocks.", (*_GPU, "reason")),
        Metric(
            "gpu_throttled_seconds_total", _C, "Clocks held down, by reason: power or thermal.", (*_GPU, "reason")
        ),
        Metric("gpu_power_watts", _G, "Power drawn.", _GPU),
        Metric("gpu_power_limit_watts", _G, "Power limit in force.", _GPU),
        Metric("gpu_temperature_celsius", _G, "Temperature of the GPU.", _GPU),
        Metric("gpu_pcie_bytes_per_second", _G, "PCIe traffic of the driver's last 20 ms.", (*_GPU, "direction")),
        Metric("gpu_pcie_replays_total", _C, "PCIe packets sent again.", _GPU),
        Metric(
            "gpu_ecc_errors_total", _C, "Corrected and uncorrected memory errors since the driver was loaded.", (*_GPU, "kind")
        ),
        Metric("gpu_xid_errors_total", _C, "Critical XID events since the engine started.", _GPU),
        Metric("gpu_last_xid", _G, "Code of the latest XID event; 0 before the first.", _GPU),
        Metric("max_batched_tokens", _G, "Token budget of a step, as in force now."),
        Metric("max_sequences", _G, "Sequence cap, as in force now."),
        Metric("process_start_time_seconds", _G, "Unix time at which the engine started."),
        Metric("engine_info", _I, "Version, model geometry and fixed configuration as labels; value 1."),
    )
}  # fmt: skip
