"""llama.cpp's log, both forms: `slot print_timing: id  0 | task 1 | ...` and, newer, the same behind a stamp and a level."""

import re

from diagnose.dialects.llamacpp import LLAMACPP
from diagnose.dialects.log import EventLine, FactLine, LogTable, PeriodicLine, Reads, figure

LLAMACPP_LOG = LogTable(
    engine="llamacpp",
    periodic=(
        PeriodicLine(
            name="llama.cpp's prompt timings",
            marks="prompt eval time =",
            figures=(
                figure(
                    "tokens_prefill",
                    r"prompt eval time = +[\d.]+ ms / +(\d+) tokens",
                    Reads.COUNT,
                    late=True,
                    coverage="when the prompt is done",
                ),
            ),
        ),
        PeriodicLine(
            name="llama.cpp's generation timings",
            marks="eval time =",
            figures=(
                figure(
                    "tokens_decode",
                    r"(?<!prompt )eval time = +[\d.]+ ms / +(\d+) (?:tokens|runs)",
                    Reads.COUNT,
                    late=True,
                    coverage="when the request ends",
                ),
            ),
        ),
    ),
    facts=(
        FactLine("n_ctx_slot =", re.compile(r"n_ctx_slot = (?P<max_model_len>\d+)")),
        FactLine("n_slots =", re.compile(r"n_slots = (?P<max_sequences>\d+)")),
        FactLine("n_batch", re.compile(r"n_batch +=? +(?P<max_batched_tokens>\d+)")),
        FactLine("n_ctx ", re.compile(r"n_ctx +=? +(?P<pool_tokens>\d+)")),
        FactLine("build:", re.compile(r"build: (?P<version>\d+)")),
    ),
    events=(
        EventLine("no_kv_space", "failed to find free space in the KV cache"),
        EventLine("no_kv_space", "failed to find a memory slot for batch"),
        EventLine("full_reprocess", "forcing full prompt re-processing"),
        EventLine("engine_dead", "GGML_ASSERT"),
        EventLine("out_of_memory", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating"),
    ),
    cannot=LLAMACPP.cannot,
)
