"""LMCache's lines in an engine's log: what a store beside the engine was asked for, and had."""

from diagnose.dialects.log import LogTable, PeriodicLine, Reads, figure

LMCACHE_LOG = LogTable(
    engine="lmcache",
    periodic=(
        PeriodicLine(
            name="LMCache's lookups",
            marks="LMCache hit tokens:",
            figures=(
                figure(
                    "external_query_tokens", r"Total tokens (\d+)", Reads.COUNT, coverage="whole prompts, found or not"
                ),
                figure("external_hit_tokens", r"LMCache hit tokens: (\d+)", Reads.COUNT),
            ),
        ),
        PeriodicLine(
            name="LMCache's stores",
            marks="out of total",
            figures=(figure("external_stored_tokens", r"Stored (\d+) out of total \d+ tokens", Reads.COUNT),),
        ),
    ),
)
