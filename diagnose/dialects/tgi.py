"""Hugging Face text-generation-inference. Its pool figure is a reservation; its step times by phase are the best of any engine.

It never preempts: a request starts only when its prompt and its longest answer fit.
"""

from diagnose.dialects.base import Dialect, Failures, Usage, alias

_AT_FINISH = "booked when a request finishes: none booked proves nothing"
_RESERVED = "prompt and longest answer of every running request: a reservation, not what is occupied"

TGI = Dialect(
    name="tgi",
    prefixes=("tgi_",),
    counters={
        "tokens_prefill": (alias("tgi_request_input_length_sum", late=True, coverage=_AT_FINISH),),
        "tokens_decode": (alias("tgi_request_generated_tokens_sum", late=True, coverage=_AT_FINISH),),
        "requests_finished": (alias("tgi_request_success", coverage="no reason is given"),),
        "steps": (alias("tgi_batch_inference_count", coverage="prefill and decode batches"),),
    },
    gauges={
        "running": (alias("tgi_batch_current_size"),),
        "waiting": (alias("tgi_queue_size"),),
        "pool_reserved": (alias("tgi_batch_current_max_tokens", coverage=_RESERVED),),
        "pool_tokens": (alias("tgi_batch_max_total_tokens"),),
        "start_time": (alias("process_start_time_seconds"),),
    },
    histograms={
        "step_decode": (alias("tgi_batch_inference_duration", method="decode"),),
        "step_mixed": (
            alias(
                "tgi_batch_inference_duration",
                coverage="prefill batches: running requests wait meanwhile, if there are any",
                method="prefill",
            ),
        ),
        "forward_decode": (alias("tgi_batch_forward_duration", method="decode"),),
        "forward_mixed": (alias("tgi_batch_forward_duration", method="prefill"),),
        "e2e_latency": (alias("tgi_request_duration"),),
        "queue_time": (alias("tgi_request_queue_duration"),),
    },
    failures=(Failures("tgi_request_failure", "err", {"generation": "request_error", "incomplete": "request_error"}),),
    usage=Usage.RESERVED,
    pool_unit="tokens",
    state_paths=("/info",),
    impossible={"preemptions": "TGI never preempts: it reserves at admission"},
    commands={"limits": "curl -s {address}/info"},
    knobs={"max_batched_tokens": "--max-batch-prefill-tokens"},
    cannot={
        "steps": "batch durations by phase are exported; which streams waited for a prefill is not",
        "blocks": "nothing says how full the pool is: tgi_batch_current_max_tokens is a reservation",
        "host": "inference minus forward duration per batch is host time (tgi_batch_inference_duration, _forward_duration)",
        "evictions": "not exported",
        "limits": "the start-up Args line (--log FILE) has MAX_BATCH_PREFILL_TOKENS; GET /info has the rest",
        "latency": "no time to first token, no inter-token latency: measure at the client",
    },
)
