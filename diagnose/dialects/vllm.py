"""vLLM 0.6 to 0.33, checked against scrapes of a real 0.32.0. Names moved a lot; the table says which version had which.

What its metrics cannot say, whatever the version: what a step computed, how long it took, host time, evictions, the split of
the pool's unused part, the token budget and the sequence cap.
"""

from diagnose.dialects.base import Combine, Dialect, Era, Failures, Usage, alias

_AT_PREFILL_END = "a prompt is booked whole in the step that ends its prefill: none booked does not mean that none ran"
_USAGE = "blocks of live requests only: cached blocks that nobody uses count as free; the fullest engine where there are several"
_STEPS = "once per engine step and request; with speculation one gap covers several tokens; nothing finer than 10 ms"
_SAMPLED = (
    "a sample of blocks (1 % unless --kv-cache-metrics-sample is set); counts blocks that are used again without ever having "
    "held cached content, too: not evictions"
)

_PLUGIN = "the probe plugin, once vLLM was restarted with a checkout of stallscope in its environment, counts"

VLLM = Dialect(
    name="vllm",
    prefixes=("vllm_",),
    counters={
        "tokens_prefill": (
            alias(
                "vllm_prompt_tokens_by_source",
                since="0.18",
                late=True,
                coverage=_AT_PREFILL_END,
                source="local_compute",
            ),
            alias(
                "vllm_prompt_tokens",
                late=True,
                coverage=f"{_AT_PREFILL_END}; prompt tokens found in the cache are counted, tokens computed again after a "
                "preemption are not",
            ),
        ),
        "tokens_decode": (alias("vllm_generation_tokens"),),
        "tokens_cached": (alias("vllm_prompt_tokens_cached", since="0.18", late=True, coverage=_AT_PREFILL_END),),
        "prefix_query_tokens": (
            alias("vllm_prefix_cache_queries", since="0.10.1", coverage="without the look-ups of preempted requests"),
            alias("vllm_gpu_prefix_cache_queries", since="0.8.5", until="0.11"),
        ),
        "prefix_hit_tokens": (
            alias("vllm_prefix_cache_hits", since="0.10.1"),
            alias("vllm_gpu_prefix_cache_hits", since="0.8.5", until="0.11"),
        ),
        "preemptions": (
            alias(
                "vllm_num_preemptions",
                late=True,
                coverage="booked when the preempted request next yields a token: under pressure it lags by many seconds",
            ),
        ),
        "spec_draft_tokens": (alias("vllm_spec_decode_num_draft_tokens"),),
        "spec_accepted_tokens": (alias("vllm_spec_decode_num_accepted_tokens"),),
        "transfer_failures": (
            alias("vllm_nixl_num_failed_transfers", since="0.12", plus=("vllm_nixl_num_failed_notifications",)),
            alias("vllm_mooncake_num_failed_transfers", since="0.33", plus=("vllm_mooncake_num_failed_recvs",)),
        ),
        "requests_finished": (alias("vllm_request_success", coverage="aborted and failed requests included"),),
    },
    gauges={
        "running": (
            alias("vllm_num_requests_running", coverage="as of the last step's end: frozen during a long step"),
        ),
        "waiting": (
            alias("vllm_num_requests_waiting", coverage="deferred requests (grammar, adapter, transfer) included"),
        ),
        "waiting_capacity": (
            alias(
                "vllm_num_requests_waiting_by_reason",
                since="0.24",
                coverage="could not be scheduled, for want of blocks or of a sequence slot",
                reason="capacity",
            ),
        ),
        "waiting_transfer": (
            alias("vllm_num_requests_kv_fetch_by_stage", since="0.32", stage="waiting_to_start|in_progress"),
        ),
        "swapped": (alias("vllm_num_requests_swapped", until="0.9"),),
        "pool_usage": (
            alias("vllm_kv_cache_usage_perc", since="0.10.1", combine=Combine.MAX, coverage=_USAGE),
            alias("vllm_gpu_cache_usage_perc", until="0.11", combine=Combine.MAX, coverage=_USAGE),
        ),
        "pool_blocks": (alias("vllm_cache_config_info", value_label="num_gpu_blocks"),),
        "pool_tokens": (alias("vllm_cache_config_info", since="0.32", value_label="kv_cache_size_tokens"),),
        "block_size": (alias("vllm_cache_config_info", combine=Combine.MAX, value_label="block_size"),),
        "start_time": (alias("process_start_time_seconds", combine=Combine.MAX),),
    },
    histograms={
        "inter_token_latency": (
            alias("vllm_inter_token_latency_seconds", since="0.11", coverage=_STEPS),
            alias("vllm_time_per_output_token_seconds", until="0.13", coverage=_STEPS),
        ),
        "time_to_first_token": (
            alias("vllm_time_to_first_token_seconds", coverage="on the front end's clock, tokenisation included"),
        ),
        "e2e_latency": (alias("vllm_e2e_request_latency_seconds"),),
        "queue_time": (
            alias(
                "vllm_request_queue_time_seconds",
                coverage="the first wait alone: a preempted request's second wait is in its decode time; one bucket to 300 ms",
            ),
            alias("vllm_time_in_queue_requests", until="0.9"),
        ),
        "kv_transfer": (
            alias("vllm_nixl_xfer_time_seconds", since="0.12"),
            alias("vllm_mooncake_xfer_time_seconds", since="0.33"),
        ),
        "kv_transfer_post": (alias("vllm_nixl_post_time_seconds", since="0.12"),),
        "block_residency": (alias("vllm_kv_block_lifetime_seconds", since="0.12", coverage=_SAMPLED),),
        "block_reuse": (alias("vllm_kv_block_reuse_gap_seconds", since="0.12", coverage=_SAMPLED),),
    },
    failures=(Failures("vllm_request_success", "finished_reason", {"error": "request_error"}),),
    info={
        "vllm_cache_config_info": {
            "block_size": "block_size",
            "cache_dtype": "kv_dtype",
            "enable_prefix_caching": "prefix_cache",
            "gpu_memory_utilization": "memory_utilization",
            "num_gpu_blocks": "kv_blocks",
        },
        "vllm_num_requests_running": {"model_name": "model"},
    },
    eras=(
        Era("vllm_num_requests_swapped", until="0.9"),
        Era("vllm_gpu_prefix_cache_queries", since="0.8.5", until="0.11"),
        Era("vllm_gpu_cache_usage_perc", until="0.11"),
        Era("vllm_kv_cache_usage_perc", since="0.10.1"),
        Era("vllm_inter_token_latency_seconds", since="0.11"),
        Era("vllm_time_per_output_token_seconds", until="0.13"),
        Era("vllm_engine_sleep_state", since="0.12"),
        Era("vllm_request_prefill_kv_computed_tokens", since="0.13"),
        Era("vllm_prompt_tokens_by_source", since="0.18"),
        Era("vllm_num_requests_waiting_by_reason", since="0.24"),
        Era("vllm_request_num_preemptions", since="0.32"),
    ),
    replica_labels=("engine",),
    usage=Usage.ACTIVE,
    state_paths=("/server_info?config_format=json", "/version"),
    commands={
        "steps": "stallscope diagnose {source} --window 60s --log FILE",
        "blocks": "pip install .",
        "host": "stallscope diagnose {address} --pid PID",
        "evictions": "pip install .",
        "preemptions": "pip install .",
        "limits": "stallscope diagnose {source} --window 60s --log FILE",
    },
    knobs={"max_batched_tokens": "--max-num-batched-tokens", "max_sequences": "--max-num-seqs"},
    cannot={
        "steps": "start vLLM with --enable-logging-iteration-details (0.18 and later) and give its log with --log FILE, or "
        "install stallscope in its environment: the probe plugin adds step records",
        "blocks": f"{_PLUGIN} active, reclaimable and free blocks; without it KV events do (--kv-events-config)",
        "host": "the probe plugin times scheduling; without it: py-spy dump --pid PID_OF_ENGINECORE",
        "evictions": f"{_PLUGIN} them, and so do KV events (--kv-events-config); --kv-cache-metrics samples re-use, "
        "not evictions",
        "preemptions": f"{_PLUGIN} them when they happen, and what they cost; vLLM's counter lags",
        "limits": "the start-up log (--log FILE), /server_info under VLLM_SERVER_DEV_MODE=1, or --setting max_sequences=N",
    },
)
