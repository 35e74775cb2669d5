"""LMDeploy. Its usage counts cached blocks too, so that it sits near 1 on a healthy warm cache: the opposite of vLLM's.

Scheduler gauges change every 10 s: a shorter scrape interval sees plateaus.
"""

from diagnose.dialects.base import Combine, Dialect, Usage, alias

_PLATEAU = "changes every 10 s"
_USAGE = "live and cached blocks together (PyTorch backend): near 1 on a warm cache that is not short of anything"

LMDEPLOY = Dialect(
    name="lmdeploy",
    prefixes=("lmdeploy_",),
    counters={
        "tokens_prefill": (alias("lmdeploy_prompt_tokens", late=True, coverage="cached tokens are counted"),),
        "tokens_decode": (alias("lmdeploy_generation_tokens"),),
        "tokens_cached": (alias("lmdeploy_cached_tokens"),),
        "prefix_hit_tokens": (alias("lmdeploy_cached_tokens"),),
        "prefix_query_tokens": (alias("lmdeploy_prompt_tokens"),),
        "requests_finished": (
            alias("lmdeploy_request_success"),
            alias("lmdeploy_num_requests_succeeded", coverage="typed as a gauge, and cumulative"),
        ),
    },
    gauges={
        "running": (alias("lmdeploy_num_requests_running", coverage=_PLATEAU),),
        "waiting": (
            alias(
                "lmdeploy_num_requests_waiting",
                coverage=f"requests that hold blocks and wait for a turn included; {_PLATEAU}",
            ),
        ),
        "pool_usage": (alias("lmdeploy_gpu_cache_usage_perc", combine=Combine.MAX, coverage=f"{_USAGE}; {_PLATEAU}"),),
        "start_time": (alias("process_start_time_seconds", combine=Combine.MAX),),
    },
    histograms={
        "inter_token_latency": (
            alias("lmdeploy_iter_token_latency", coverage="time between two outputs of a request"),
        ),
        "time_to_first_token": (alias("lmdeploy_time_to_first_token_seconds"),),
        "e2e_latency": (alias("lmdeploy_e2e_request_latency_seconds"),),
        "queue_time": (alias("lmdeploy_request_queue_time_seconds"),),
    },
    info={"lmdeploy_num_requests_running": {"model_name": "model"}},
    usage=Usage.WITH_CACHED,
    commands={
        "host": "stallscope diagnose {address} --pid PID",
        "limits": "stallscope diagnose {source} --window 60s --log FILE",
        "failures": "stallscope diagnose {source} --window 60s --log FILE",
    },
    knobs={"max_batched_tokens": "--max-prefill-token-num", "max_sequences": "--max-batch-size"},
    cannot={
        "steps": "not exported: iteration_tokens_total is per request output; LMDEPLOY_PROFILE_CPU=1 and _CUDA=1 trace steps",
        "blocks": "usage counts cached blocks: only a low one decides; waiting requests and queue time tell the rest",
        "host": "py-spy dump --pid PID",
        "evictions": "not exported",
        "preemptions": "not exported",
        "limits": "the start-up log: --log FILE",
        "failures": "num_requests_failed counts them without a reason: --log FILE",
    },
)
