"""What stands before or beside an engine and speaks for it only in part: Triton, Dynamo's front end, Ray Serve, DCGM."""

from diagnose.dialects.base import Combine, Dialect, Failures, alias

_UPSTREAM = "requests that wait before the engine, which its own queue does not know"

TRITON = Dialect(
    name="triton",
    prefixes=("nv_inference_",),
    counters={
        "requests_finished": (alias("nv_inference_request_success"),),
        "upstream_queue_seconds": (
            alias("nv_inference_queue_duration_us", factor=1e-6, coverage="Triton's own queue, not the engine's"),
        ),
    },
    gauges={"waiting_upstream": (alias("nv_inference_pending_request_count", coverage=_UPSTREAM),)},
    failures=(
        Failures("nv_inference_request_failure", "reason", {"BACKEND": "request_error", "OTHER": "request_error"}),
    ),
    cannot={
        "steps": "a vLLM behind Triton exports eight metrics, nothing of load or pool, and only with REPORT_CUSTOM_METRICS: "
        "give the engine's log (--log FILE)",
        "blocks": "not exported by Triton's vLLM backend",
    },
    is_engine=False,
)

DYNAMO = Dialect(
    name="dynamo",
    prefixes=("dynamo_",),
    counters={"requests_finished": (alias("dynamo_frontend_requests"),)},
    gauges={
        "waiting_upstream": (
            alias(
                "dynamo_frontend_router_queue_pending_requests",
                plus=("dynamo_router_queue_pending_requests", "dynamo_work_handler_queue_depth"),
                coverage=_UPSTREAM,
            ),
            alias("dynamo_work_handler_queue_depth", coverage=_UPSTREAM),
        ),
        "max_batched_tokens": (alias("dynamo_frontend_model_max_num_batched_tokens", combine=Combine.MAX),),
        "max_sequences": (alias("dynamo_frontend_model_max_num_seqs", combine=Combine.MAX),),
        "pool_blocks": (alias("dynamo_frontend_model_total_kv_blocks"), alias("dynamo_component_total_blocks")),
        "block_size": (alias("dynamo_frontend_model_kv_cache_block_size", combine=Combine.MAX),),
    },
    histograms={
        "inter_token_latency": (alias("dynamo_frontend_inter_token_latency_seconds", coverage="at the front end"),),
        "time_to_first_token": (alias("dynamo_frontend_time_to_first_token_seconds", coverage="at the front end"),),
        "e2e_latency": (alias("dynamo_frontend_request_duration_seconds"),),
    },
    cannot={
        "steps": "the worker's own page (DYN_SYSTEM_PORT) passes the engine's metrics through: give its URL as well",
        "blocks": "the worker's own page (DYN_SYSTEM_PORT)",
    },
    is_engine=False,
)

RAY_SERVE = Dialect(
    name="ray serve",
    prefixes=("serve_deployment_", "serve_num_", "serve_replica_"),
    gauges={"waiting_upstream": (alias("serve_deployment_queued_queries", coverage=_UPSTREAM),)},
    cannot={
        "steps": "Ray's metrics agent publishes the engine's metrics too (ray_vllm_*), unless log_engine_metrics is off"
    },
    is_engine=False,
)

DCGM = Dialect(
    name="dcgm exporter",
    prefixes=("dcgm_fi_",),
    cannot={"steps": "a device exporter knows no steps: give the engine's metrics or log beside it"},
    is_engine=False,
)
"""Recognised here; its pages are read by `diagnose.dialects.dcgm`, GPU by GPU."""
