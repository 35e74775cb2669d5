"""llama.cpp's server (`--metrics`). No labels, no histograms; tokens are booked when a request ends.

Reading /metrics starts its throughput gauges anew, for every reader: they are not used here. Pool usage comes from /slots.
"""

from diagnose.dialects.base import Dialect, Usage, alias

_AT_FINISH = "added when a request ends: none booked proves nothing"

LLAMACPP = Dialect(
    name="llamacpp",
    prefixes=("llamacpp_",),
    counters={
        "tokens_prefill": (
            alias("llamacpp_prompt_tokens", coverage="prompt tokens computed; cached ones are not in it"),
        ),
        "tokens_decode": (alias("llamacpp_tokens_predicted", late=True, coverage=_AT_FINISH),),
        "tokens_cached": (alias("llamacpp_prompt_tokens_cached"),),
        "prefix_hit_tokens": (alias("llamacpp_prompt_tokens_cached"),),
        "prefix_query_tokens": (
            alias(
                "llamacpp_prompt_tokens_cached",
                plus=("llamacpp_prompt_tokens",),
                coverage="computed and cached prompt tokens together",
            ),
        ),
        "spec_draft_tokens": (alias("llamacpp_spec_decode_num_draft_tokens"),),
        "spec_accepted_tokens": (alias("llamacpp_spec_decode_num_accepted_tokens"),),
        "steps": (alias("llamacpp_n_decode", coverage="calls of llama_decode: time over their growth is a mean step"),),
    },
    gauges={
        "running": (alias("llamacpp_requests_processing", coverage="busy slots"),),
        "waiting": (alias("llamacpp_requests_deferred", coverage="requests without a slot"),),
        "pool_usage": (alias("llamacpp_kv_cache_usage_ratio", coverage="old builds; what idle slots keep is counted"),),
        "start_time": (alias("process_start_time_seconds"),),
    },
    usage=Usage.SLOTS,
    impossible={"preemptions": "llama.cpp never preempts: requests wait for a slot"},
    pool_unit="tokens",
    state_paths=("/props",),
    load_paths=("/slots",),
    commands={
        "steps": "stallscope diagnose {source} --window 60s --log FILE",
        "blocks": "curl -s {address}/slots",
        "host": "perf record -g -p PID",
        "evictions": "stallscope diagnose {source} --window 60s --log FILE",
        "limits": "stallscope diagnose {source} --window 60s --log FILE",
        "latency": "stallscope diagnose {source} --window 60s --log FILE",
        "failures": "stallscope diagnose {source} --window 60s --log FILE",
    },
    knobs={"max_batched_tokens": "--batch-size", "max_sequences": "--parallel"},
    cannot={
        "steps": "mean step time is the window over the growth of n_decode_total; a split needs the log (--log FILE) or nsys",
        "blocks": "GET /slots (on unless --no-slots): tokens per slot, which is watched beside the metrics",
        "host": "py-spy does not see it: perf record -g -p PID",
        "evictions": "not counted: the log says when a prompt is processed again in full (--log FILE)",
        "limits": "batch sizes (-b, -ub) stand in the start-up log: --log FILE, or --setting max_batched_tokens=N",
        "latency": "no histograms: the log has prompt and generation time per request (--log FILE)",
        "failures": "not counted: --log FILE",
    },
)
