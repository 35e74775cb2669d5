"""SGLang 0.4.6 to 0.5.23 (`--enable-metrics`, off by default). Of no other engine do the metrics say as much of the pool.

`realtime_tokens_total` moves while requests run; the older counters are booked when a request finishes. Gauges change with
each prefill batch and every 40 decode steps: a shorter scrape interval sees plateaus.
"""

from diagnose.dialects.base import Combine, Dialect, Era, Usage, alias

_AT_FINISH = "booked when a request finishes: long requests give bursts, and none booked proves nothing"
_LIVE = "booked per batch; requests that were retracted are computed, and counted, again"
_PLATEAU = "changes with each prefill batch and every 40 decode steps: in between it stands still"
_USAGE = (
    f"tokens of live requests; what the radix cache could give up counts as free; the fullest pool and rank; {_PLATEAU}"
)
_SMEARED = (
    "time between two outputs at the front end over the tokens in them, once per token: streaming intervals and speculation "
    "smear stalls away"
)

SGLANG = Dialect(
    name="sglang",
    prefixes=("sglang_",),
    counters={
        "tokens_prefill": (
            alias("sglang_realtime_tokens", since="0.5.12", coverage=_LIVE, mode="prefill_compute"),
            alias("sglang_prompt_tokens", late=True, coverage=f"{_AT_FINISH}; cached tokens are counted"),
        ),
        "tokens_decode": (
            alias("sglang_realtime_tokens", since="0.5.12", coverage=_LIVE, mode="decode"),
            alias("sglang_generation_tokens", late=True, coverage=_AT_FINISH),
        ),
        "tokens_cached": (
            alias("sglang_realtime_tokens", since="0.5.12", coverage=_LIVE, mode="prefill_cache"),
            alias("sglang_cached_tokens", late=True, coverage=_AT_FINISH),
        ),
        "prefix_hit_tokens": (
            alias("sglang_realtime_tokens", since="0.5.12", coverage=_LIVE, mode="prefill_cache"),
            alias("sglang_cached_tokens", late=True, coverage=_AT_FINISH),
        ),
        "prefix_query_tokens": (
            alias("sglang_realtime_tokens", since="0.5.12", coverage=_LIVE, mode="prefill_cache|prefill_compute"),
            alias("sglang_prompt_tokens", late=True, coverage=_AT_FINISH),
        ),
        "preemptions": (
            alias(
                "sglang_num_retracted_requests", since="0.5.12", coverage="retractions: SGLang's word for preemption"
            ),
            alias("sglang_num_retractions", since="0.5.6", until="0.5.11"),
        ),
        "preempted_tokens": (
            alias(
                "sglang_num_retracted_input_tokens",
                since="0.5.12",
                plus=("sglang_num_retracted_output_tokens",),
                coverage="tokens of retracted requests, which are computed again",
            ),
        ),
        "evictions": (
            alias(
                "sglang_evicted_tokens",
                since="0.5.6",
                coverage="tokens, not blocks; every rank counts the same tree: one is taken",
            ),
        ),
        "transfer_failures": (alias("sglang_num_transfer_failed_reqs", plus=("sglang_num_bootstrap_failed_reqs",)),),
        "requests_finished": (alias("sglang_num_requests", coverage="no reason is given"),),
    },
    gauges={
        "running": (alias("sglang_num_running_reqs", coverage=_PLATEAU),),
        "waiting": (alias("sglang_num_queue_reqs", plus=("sglang_num_grammar_queue_reqs",), coverage=_PLATEAU),),
        "blocks_active": (alias("sglang_kv_used_tokens", since="0.5.12", coverage=_PLATEAU),),
        "blocks_reclaimable": (alias("sglang_kv_evictable_tokens", since="0.5.12", coverage=_PLATEAU),),
        "blocks_free": (alias("sglang_kv_available_tokens", since="0.5.12", coverage=_PLATEAU),),
        "pool_usage": (alias("sglang_token_usage", combine=Combine.MAX, coverage=_USAGE),),
        "pool_tokens": (alias("sglang_max_total_num_tokens", since="0.5.6"),),
        "block_size": (alias("sglang_page_size", since="0.5.12", combine=Combine.MAX),),
        "waiting_transfer": (
            alias(
                "sglang_num_decode_transfer_queue_reqs",
                plus=("sglang_num_prefill_inflight_queue_reqs",),
                coverage=_PLATEAU,
            ),
        ),
        "reserved_share": (
            alias(
                "sglang_new_token_ratio",
                since="0.5.6",
                combine=Combine.MAX,
                coverage="share of each request's remaining answer that is reserved at admission",
            ),
        ),
        "decode_context": (alias("sglang_decode_sum_seq_lens", since="0.5.12"),),
        "start_time": (alias("process_start_time_seconds", combine=Combine.MAX),),
    },
    histograms={
        "inter_token_latency": (alias("sglang_inter_token_latency_seconds", coverage=_SMEARED),),
        "time_to_first_token": (
            alias("sglang_time_to_first_token_seconds", coverage="on the front end's clock; one bucket to 100 ms"),
        ),
        "e2e_latency": (alias("sglang_e2e_request_latency_seconds"),),
        "kv_transfer": (alias("sglang_kv_transfer_latency_ms", since="0.5.2", factor=1e-3),),
        "queue_time": (
            alias("sglang_queue_time_seconds", since="0.5.6"),
            alias("sglang_queue_time_s", since="0.5.2", until="0.5.5"),
        ),
    },
    info={"sglang_num_running_reqs": {"model_name": "model", "engine_type": "engine_type"}},
    eras=(
        Era("sglang_avg_request_queue_latency", until="0.5.5"),
        Era("sglang_total_retracted_reqs", since="0.4.10", until="0.5.5"),
        Era("sglang_queue_time_seconds", since="0.5.6"),
        Era("sglang_num_retractions", since="0.5.6", until="0.5.11"),
        Era("sglang_realtime_tokens", since="0.5.12"),
        Era("sglang_scheduler_stage_seconds", since="0.5.13"),
        Era("sglang_prefill_effective_tokens", since="0.5.23"),
    ),
    rank_labels=("tp_rank", "pp_rank", "moe_ep_rank"),
    replica_labels=("dp_rank",),
    free_includes_reclaimable=False,
    usage=Usage.ACTIVE,
    pool_unit="tokens",
    state_paths=("/server_info",),
    load_paths=("/v1/loads",),
    commands={
        "steps": "stallscope diagnose {source} --window 60s --log FILE",
        "host": "stallscope diagnose {address} --pid PID",
        "limits": "curl -s {address}/server_info",
        "failures": "stallscope diagnose {source} --window 60s --log FILE",
    },
    knobs={"max_batched_tokens": "--chunked-prefill-size", "max_sequences": "--max-running-requests"},
    cannot={
        "steps": "the log has a line per prefill batch and per 40 decode steps: give it with --log FILE; "
        "SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 adds device time by phase; /start_profile needs no flag",
        "host": "0.5.13 and later count scheduler_stage_seconds by stage; before: py-spy dump --pid PID_OF_SCHEDULER",
        "evictions": "evicted_tokens_total counts them (0.5.6 and later); which are missed needs KV events (--kv-events-config)",
        "limits": "GET /server_info states them, the start-up log does: --log FILE",
        "failures": "no counter by reason: the log tells of failures, --log FILE",
        "latency": "start SGLang with --enable-metrics",
    },
)
