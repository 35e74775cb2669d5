"""TGI's log: a line per finished request with its times, the settings at start, and the end of a shard. No periodic line."""

import re

from diagnose.dialects.log import EventLine, FactLine, LogTable, PeriodicLine, Reads, figure
from diagnose.dialects.tgi import TGI

_DURATION = r'"?([\d.]+)(ns|µs|us|ms|s)"?'

TGI_LOG = LogTable(
    engine="tgi",
    periodic=(
        PeriodicLine(
            name="TGI's request lines",
            marks="queue_time=",
            figures=(
                figure(
                    "queue_time",
                    rf"queue_time={_DURATION}",
                    Reads.DURATION,
                    coverage="a grammar that is compiled before the request is in it",
                ),
                figure("e2e_latency", rf"total_time={_DURATION}", Reads.DURATION),
            ),
        ),
    ),
    facts=(
        FactLine("model_id:", re.compile(r'Args \{.*?model_id: "(?P<model>[^"]+)"')),
        FactLine("max_total_tokens:", re.compile(r"max_total_tokens: Some\((?P<max_model_len>\d+)")),
        FactLine(
            "max_batch_prefill_tokens:", re.compile(r"max_batch_prefill_tokens: Some\((?P<max_batched_tokens>\d+)")
        ),
        FactLine("max_batch_total_tokens", re.compile(r"max_batch_total_tokens to (?P<pool_tokens>\d+)")),
    ),
    events=(
        EventLine("engine_dead", "Shard process was signaled to shutdown"),
        EventLine("engine_dead", "Webserver Crashed"),
        EventLine("out_of_memory", "Not enough memory to handle"),
    ),
    silent="TGI writes one per finished request, at log level info",
    cannot=TGI.cannot,
)
