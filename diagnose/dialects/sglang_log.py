"""SGLang's log: a line per prefill batch, one per 40 decode steps, the start, retractions, leak checks, transfers.

`Decode batch. ` until 0.5.2, `Decode batch, ` since; hybrid pools write `#full token` and `full token usage`.
"""

import re

from diagnose.dialects.base import Usage
from diagnose.dialects.log import EventLine, FactLine, LogTable, PeriodicLine, Reads, figure
from diagnose.dialects.sglang import SGLANG

_NUMBER = r"([\d.]+)"
_USAGE = "tokens of live requests; what the radix cache could give up counts as free"
_RANK = re.compile(r"\bDP(\d+)\b")
_LEVELS = (
    # Of a prefill line those it admits run as well: a part of one prompt counts as the request that it is.
    figure("running", r"#running-req: (\d+)", plus=r"#new-seq: (\d+)"),
    figure("waiting", r"#queue-req: (\d+)"),
    # Of a hybrid model the pool of full attention; the tail pools have figures of their own.
    figure("pool_usage", rf"(?:, |full )token usage: {_NUMBER}", coverage=_USAGE),
)

SGLANG_LOG = LogTable(
    engine="sglang",
    periodic=(
        PeriodicLine(
            name="SGLang's prefill lines",
            marks="Prefill batch",
            instance=_RANK,
            figures=(
                figure(
                    "tokens_prefill",
                    r"#new-token: (\d+)",
                    Reads.COUNT,
                    coverage="per prefill batch; retracted ones again",
                ),
                figure("tokens_cached", r"#cached-token: (\d+)", Reads.COUNT),
                figure("streams_before_prefill", r"#running-req: (\d+)"),
                *_LEVELS,
            ),
        ),
        PeriodicLine(
            name="SGLang's decode lines",
            marks="Decode batch",
            instance=_RANK,
            figures=(
                figure(
                    "tokens_decode",
                    rf"gen throughput \(token/s\): {_NUMBER}",
                    Reads.RATE,
                    coverage="mean over about 40 decode steps: what a step took is not in it, prefill between them is",
                ),
                figure("kv_tokens", r"(?:#token|#full token): (\d+)", coverage="tokens of live requests"),
                figure("accept_length", rf"accept len: {_NUMBER}"),
                *_LEVELS,
            ),
        ),
    ),
    facts=(
        FactLine("max_total_num_tokens=", re.compile(r"max_total_num_tokens=(?P<pool_tokens>\d+)")),
        FactLine("chunked_prefill_size=", re.compile(r"chunked_prefill_size=(?P<max_batched_tokens>\d+)")),
        FactLine("max_running_requests=", re.compile(r"max_running_requests=(?P<max_sequences>\d+)")),
        FactLine("context_len=", re.compile(r"context_len=(?P<max_model_len>\d+)")),
        FactLine("server_args=ServerArgs(", re.compile(r"model_path='(?P<model>[^']+)'")),
        FactLine("server_args=ServerArgs(", re.compile(r"page_size=(?P<block_size>\d+)")),
        FactLine("server_args=ServerArgs(", re.compile(r"schedule_policy='(?P<schedule_policy>\w+)'")),
    ),
    events=(
        EventLine("preempted", "Retract requests", count=re.compile(r"#retracted_reqs: (\d+)")),
        EventLine("leak", "memory leak detected"),
        EventLine("leak", "KV cache pool leak detected"),
        EventLine("no_kv_space", "No space left for only one request"),
        # The state that a request timed out in says who waited: WaitingForInput the decode side, Bootstrapping the prefill side.
        EventLine("transfer_timeout", "in KVPoll.", re.compile(r"timed out after [\d.]+s in KVPoll\.\w+")),
        EventLine("transfer_failed", "KVTransferError"),
        EventLine("transfer_failed", "Decode transfer failed"),
        EventLine("transfer_failed", "Prefill transfer failed"),
        EventLine("transfer_advice", "fail to receive KV Cache transfer done signal"),
        EventLine("out_of_memory", "Prefill out of memory"),
        EventLine("out_of_memory", "Decode out of memory"),
        EventLine("no_progress", "Server couldn't get a response from detokenizer"),
        EventLine("engine_dead", "Scheduler hit an exception"),
        EventLine("engine_dead", "Received sigquit from a child process"),
        EventLine("engine_dead", "Scheduler watchdog timeout"),
    ),
    usage=Usage.ACTIVE,
    silent="SGLang writes one per prefill batch and per 40 decode steps (--decode-log-interval), at log level info",
    cannot=SGLANG.cannot,
)
