"""What each engine calls the series that the alerts read. Ours come from the metric table, so that a name cannot drift."""

from dataclasses import dataclass

from probes.catalog import LATENCY_BOUNDS_SECONDS, METRICS
from probes.records import DeferralReason


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
    chosen = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return metric.wire_name + (f"{{{chosen}}}" if chosen else "")


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

ENGINES: dict[str, EngineMetrics] = {
    table.engine: table
    for table in (
        EngineMetrics(
            "stallscope",
            Latency(ours("inter_token_latency_seconds"), LATENCY_BOUNDS_SECONDS, 0.2),
            Latency(ours("time_to_first_token_seconds"), LATENCY_BOUNDS_SECONDS, 2.0),
            tokens=ours("tokens_total", phase="decode"),
            running=ours("requests", state="running"),
            finished=ours("requests_finished_total"),
            preemptions=ours("preemptions_total"),
            capacity_waits=ours("requests_waiting", reason=DeferralReason.BLOCKS.value),
            evictions=ours("kv_evictions_total"),
            ghost_hits=ours("kv_ghost_hits_total"),
            failures=ours("failures_total"),
        ),
        EngineMetrics(
            "vllm",
            Latency("vllm:inter_token_latency_seconds", _VLLM_ITL, 0.2),
            Latency("vllm:time_to_first_token_seconds", _VLLM_TTFT, 2.5),
            tokens="vllm:generation_tokens_total",
            running="vllm:num_requests_running",
            finished="vllm:request_success_total",
            preemptions="vllm:num_preemptions_total",
            capacity_waits='vllm:num_requests_waiting_by_reason{reason="capacity"}',
            failures='vllm:request_success_total{finished_reason="error"}',
        ),
        EngineMetrics(
            "sglang",
            Latency("sglang:inter_token_latency_seconds", _SGLANG_ITL, 0.2),
            Latency("sglang:time_to_first_token_seconds", _SGLANG_TTFT, 2.0),
            # generation_tokens_total grows when a request ends: a long one would look stuck.
            tokens='sglang:realtime_tokens_total{mode="decode"}',
            running="sglang:num_running_reqs",
            finished="sglang:num_requests_total",
            preemptions="sglang:num_retracted_requests_total",
            # Its queue does not say what it waits for; usage leaves evictable tokens out, so that near 1 the pool binds.
            capacity_waits="sglang:num_queue_reqs and sglang:token_usage > 0.95",
        ),
    )
}
