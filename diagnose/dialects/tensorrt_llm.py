"""TensorRT-LLM: trtllm-serve's /prometheus/metrics, and the same engine behind Triton (`nv_trt_llm_*`, Triton's metrics port).

The JSON that trtllm-serve gives on /metrics is another thing (see `states`), and reading it takes records from other readers.
"""

from diagnose.dialects.base import Combine, Dialect, Failures, Usage, alias

_AT_FINISH = "booked when a request finishes: none booked proves nothing"
_LAST = "of the last iteration alone: a scrape sees one of thousands"
_USED = "blocks of live requests: released blocks that can be used again count as free"
_BLOCKS = "in blocks, not tokens"
_CANNOT = {
    "steps": "enable_iter_perf_stats: true (PyTorch backend), then GET /metrics gives a record per iteration, to be given as a "
    "file; reading it takes the records away from any other reader. print_iter_log: true logs them",
    "host": "print_iter_log: true: host_step_time beyond prev_device_step_time is host overhead (--log FILE)",
    "evictions": "KV events: kv_cache_config.event_buffer_max_size > 0, then POST /kv_cache_events",
    "preemptions": "no counter: num_paused_requests shows them while they last (policy MAX_UTILIZATION only)",
    "blocks": "used and free only: the split of the free ones needs KV events",
    "latency": "return_perf_metrics: true; inter-token latency is not exported by any setting",
}

TENSORRT_LLM = Dialect(
    name="tensorrt-llm",
    prefixes=("trtllm_",),
    counters={
        "tokens_prefill": (alias("trtllm_prompt_tokens", late=True, coverage=_AT_FINISH),),
        "tokens_decode": (alias("trtllm_generation_tokens", late=True, coverage=_AT_FINISH),),
        "tokens_cached": (alias("trtllm_prompt_cached_tokens", late=True, coverage=_AT_FINISH),),
        "prefix_hit_tokens": (alias("trtllm_kv_cache_reused_blocks", coverage=_BLOCKS),),
        "prefix_query_tokens": (
            alias("trtllm_kv_cache_reused_blocks", plus=("trtllm_kv_cache_missed_blocks",), coverage=_BLOCKS),
        ),
        "requests_finished": (alias("trtllm_request_success"),),
    },
    gauges={
        "running": (
            alias("trtllm_num_requests_running", coverage="active, also when not scheduled in this iteration"),
        ),
        "waiting": (alias("trtllm_num_requests_waiting"),),
        "paused": (alias("trtllm_num_paused_requests", coverage="preempted at this moment"),),
        "pool_usage": (alias("trtllm_kv_cache_utilization", combine=Combine.MAX, coverage=_USED),),
        "pool_blocks": (alias("trtllm_kv_cache_max_blocks"),),
        "block_size": (alias("trtllm_kv_cache_tokens_per_block", combine=Combine.MAX),),
        "max_batched_tokens": (alias("trtllm_max_num_tokens_runtime", combine=Combine.MAX),),
        "max_sequences": (
            alias("trtllm_max_batch_size_runtime", combine=Combine.MAX),
            alias("trtllm_max_batch_size_static", combine=Combine.MAX),
        ),
        "start_time": (alias("process_start_time_seconds", combine=Combine.MAX),),
    },
    histograms={
        "time_to_first_token": (alias("trtllm_time_to_first_token_seconds"),),
        "e2e_latency": (alias("trtllm_e2e_request_latency_seconds"),),
        "queue_time": (alias("trtllm_request_queue_time_seconds", coverage="one bucket to 300 ms"),),
    },
    failures=(Failures("trtllm_request_error", "http_code", {"500": "request_error"}),),
    info={"trtllm_num_requests_running": {"model_name": "model"}},
    usage=Usage.ACTIVE,
    free_includes_reclaimable=True,
    knobs={"max_batched_tokens": "--max_num_tokens", "max_sequences": "--max_batch_size"},
    cannot=_CANNOT,
)

TRITON_TRTLLM = Dialect(
    name="tensorrt-llm in triton",
    prefixes=("nv_trt_llm_",),
    counters={
        "steps": (
            alias("nv_trt_llm_general_metrics", coverage="iterations: time over their growth is a mean step",
                  general_type="iteration_counter"),
        ),
        "requests_finished": (alias("nv_inference_request_success"),),
    },
    gauges={
        "running": (alias("nv_trt_llm_request_metrics", coverage=_LAST, request_type="active"),),
        "waiting": (alias("nv_trt_llm_request_metrics", coverage=_LAST, request_type="waiting"),),
        "max_sequences": (alias("nv_trt_llm_request_metrics", request_type="max"),),
        "paused": (
            alias("nv_trt_llm_inflight_batcher_metrics", coverage=_LAST, inflight_batcher_specific_metric="paused_requests"),
        ),
        "pool_usage": (
            alias("nv_trt_llm_kv_cache_block_metrics", combine=Combine.MAX, coverage=_USED, kv_cache_block_type="fraction"),
        ),
        "pool_blocks": (alias("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="max"),),
        "block_size": (
            alias("nv_trt_llm_kv_cache_block_metrics", combine=Combine.MAX, kv_cache_block_type="tokens_per"),
        ),
    },
    histograms={
        "time_to_first_token": (alias("nv_inference_first_response_histogram_ms", factor=1e-3),),
    },
    failures=(Failures("nv_inference_request_failure", "reason", {"BACKEND": "request_error", "OTHER": "request_error"}),),
    usage=Usage.ACTIVE,
    free_includes_reclaimable=True,
    cannot={**_CANNOT, "latency": "--metrics-config histogram_latencies=true gives time to first token; nothing gives the rest"},
)  # fmt: skip
