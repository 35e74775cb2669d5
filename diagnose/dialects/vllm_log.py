"""vLLM's log, V0 and V1: the periodic line, the line per iteration, what it states at start, and its warnings."""

import re

from diagnose.dialects.base import Usage
from diagnose.dialects.log import EventLine, FactLine, LogTable, PeriodicLine, Reads, StepLine, figure
from diagnose.dialects.vllm import VLLM

_NUMBER = r"([\d.]+)"
_AT_PREFILL_END = (
    "a prompt is booked whole in the interval that ends its prefill: 0 tokens/s with a growing pool is prefill"
)
_HITS = "of about the last 1,000 requests, not of this window: a rate that climbs or falls slowly is a moving average"
_USAGE = "blocks of live requests only: cached blocks that nobody uses count as free"

_LOAD = PeriodicLine(
    name="vLLM's periodic line",
    marks="generation throughput:",
    every_seconds=10.0,
    instance=re.compile(r"Engine (\d+):"),
    figures=(
        figure(
            "tokens_prefill",
            rf"prompt throughput: {_NUMBER} tokens/s",
            Reads.RATE,
            late=True,
            coverage=_AT_PREFILL_END,
        ),
        figure("tokens_decode", rf"generation throughput: {_NUMBER} tokens/s", Reads.RATE),
        figure("running", r"Running: (\d+) reqs"),
        figure("waiting", r"(?:Waiting|Pending): (\d+) reqs"),
        figure("swapped", r"Swapped: (\d+) reqs"),
        figure(
            "preemptions", r"Preemptions: (\d+)", Reads.COUNT, late=True, coverage="booked when a victim yields a token"
        ),
        # The first figure is the device's: V0 writes that of its swap space on the CPU behind it.
        figure("pool_usage", rf"KV cache usage: {_NUMBER}%", factor=0.01, coverage=_USAGE),
        figure(
            "prefix_hit_rate",
            rf"(?<!External )[Pp]refix cache hit rate: (?:GPU: )?{_NUMBER}%",
            factor=0.01,
            coverage=_HITS,
        ),
    ),
)
_SPECULATION = PeriodicLine(
    name="vLLM's speculation line",
    marks="SpecDecoding metrics:",
    every_seconds=10.0,
    figures=(
        figure("accept_length", rf"Mean acceptance length: {_NUMBER}"),
        figure("spec_accepted_tokens", r"Accepted: (\d+) tokens", Reads.COUNT),
        figure("spec_draft_tokens", r"Drafted: (\d+) tokens", Reads.COUNT),
    ),
)
_SPECULATION_V0 = PeriodicLine(
    name="vLLM's speculation line (V0)",
    marks="Speculative metrics:",
    every_seconds=5.0,
    figures=(
        figure("spec_accepted_tokens", r"Number of accepted tokens: (\d+)", Reads.TOTAL),
        figure("spec_draft_tokens", r"Number of draft tokens: (\d+)", Reads.TOTAL),
    ),
)

VLLM_LOG = LogTable(
    engine="vllm",
    periodic=(_LOAD, _SPECULATION, _SPECULATION_V0),
    steps=(
        StepLine(
            name="vLLM's iteration lines",
            marks="iteration elapsed time:",
            pattern=re.compile(
                r"Iteration\((?P<id>\d+)\): (?P<prefill_requests>\d+) context requests, (?P<prefill_tokens>\d+) context tokens, "
                r"(?P<decode_requests>\d+) generation requests, (?P<decode_tokens>\d+) generation tokens, "
                r"iteration elapsed time: (?P<ms>[\d.]+) ms(?! \(dummy\))"
            ),
            coverage="the wait for the step's result: schedule and update are not in it, and with asynchronous scheduling it can "
            "be shorter than the step; tokens computed again after a preemption are booked as generation tokens",
        ),
    ),
    facts=(
        FactLine("LLM engine (v", re.compile(r"Initializing an? (?:V[01] )?LLM engine \(v(?P<version>[\w.+]+)\)")),
        FactLine("LLM engine (v", re.compile(r"with config: (?:.*?[ (])?model='?(?P<model>[^',]+)")),
        FactLine("LLM engine (v", re.compile(r"[ ,(]served_model_name='?(?P<model>[^',]+)")),
        FactLine("LLM engine (v", re.compile(r"[ ,(]dtype=torch\.(?P<dtype>\w+)")),
        FactLine("LLM engine (v", re.compile(r"[ ,(]enable_prefix_caching=(?P<prefix_cache>\w+)")),
        FactLine("max_num_batched_tokens=", re.compile(r"max_num_batched_tokens=(?P<max_batched_tokens>\d+)")),
        FactLine("max_num_batched_tokens", re.compile(r"'max_num_batched_tokens': (?P<max_batched_tokens>\d+)")),
        FactLine("max_num_seqs", re.compile(r"(?:'max_num_seqs': |max_num_seqs=)(?P<max_sequences>\d+)")),
        FactLine("max_model_len", re.compile(r"'max_model_len': (?P<max_model_len>\d+)")),
        FactLine("max model len", re.compile(r"Using max model len (?P<max_model_len>\d+)")),
        FactLine("max_seq_len=", re.compile(r"[ ,(]max_seq_len=(?P<max_model_len>\d+)")),
        FactLine("'block_size'", re.compile(r"'block_size': (?P<block_size>\d+)")),
        FactLine("KV cache size:", re.compile(r"KV cache size: (?P<pool_tokens>[\d,]+) tokens")),
        FactLine("# GPU blocks:", re.compile(r"# GPU blocks: (?P<pool_blocks>\d+)")),
        FactLine("# cuda blocks:", re.compile(r"# cuda blocks: (?P<pool_blocks>\d+)")),
        FactLine("gpu_memory_utilization", re.compile(r"'gpu_memory_utilization': (?P<memory_utilization>[\d.]+)")),
        FactLine("Chunked prefill is enabled", re.compile(r"Chunked prefill is (?P<chunked_prefill>enabled)")),
    ),
    events=(
        EventLine("engine_dead", "EngineDeadError"),
        EventLine("engine_dead", "EngineCore encountered a fatal error"),
        EventLine("engine_dead", "EngineCore encountered an issue"),
        EventLine("engine_dead", "AsyncEngineDeadError"),
        EventLine("engine_dead", "Engine core proc", re.compile(r"Engine core proc \S+ died unexpectedly")),
        EventLine("engine_dead", "died unexpectedly"),
        EventLine("engine_dead", "Background loop has errored"),
        EventLine("engine_dead", "Engine core initialization failed"),
        EventLine("engine_dead", "RPC call to", re.compile(r"TimeoutError: RPC call to \S+ timed out")),
        EventLine("out_of_memory", "No available memory for the cache blocks"),
        EventLine("no_progress", "No available shared memory broadcast block found in"),
        EventLine(
            "transfer_timeout",
            "Releasing expired KV blocks for request",
            re.compile(r"retrieved by 0 decode worker"),
        ),
        EventLine("transfer_failed", "NIXL transfer failed for request"),
        EventLine(
            "preempted",
            "is preempted by PreemptionMode",
            total=re.compile(r"total_num_cumulative_preemption=(\d+)"),
        ),
        EventLine("unservable", "is too long and exceeds the capacity of block_manager"),
        EventLine("stopped", "[shutdown] API server: shutdown triggered"),
    ),
    usage=Usage.ACTIVE,
    silent="vLLM writes one every 10 s while it works, unless --disable-log-stats or --api-server-count above 1 turns it off: "
    "/metrics, or --enable-log-stats and one API server",
    cannot={
        **VLLM.cannot,
        "latency": "/metrics holds time to first token and inter-token latency: stallscope diagnose http://HOST:PORT --log FILE",
        "failures": "/metrics counts requests that ended in an error",
        "steps": "start vLLM with --enable-logging-iteration-details (0.18 and later): its log then has a line per step",
    },
)
