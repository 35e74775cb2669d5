"""TensorRT-LLM's line per iteration (`print_iter_log: true`), in its forms of 2025 and 2026."""

import re

from diagnose.dialects.log import LogTable, StepLine
from diagnose.dialects.tensorrt_llm import TENSORRT_LLM

TENSORRT_LLM_LOG = LogTable(
    engine="tensorrt-llm",
    steps=(
        StepLine(
            name="TensorRT-LLM's iteration lines",
            marks="iter = ",
            pattern=re.compile(
                r"iter = (?P<id>\d+),.*?(?:host_step_time = (?P<ms>[\d.]+) ?ms, prev_device_step_time = "
                r"(?:[\d.]+ ?ms|N/A|None)|elapsed_time = (?P<s>[\d.]+) ?s)"
                r"(?:.*?num_scheduled_requests: (?P<scheduled>\d+))?"
                r".*?states = \{[^}]*?'num_ctx_requests': (?P<prefill_requests>\d+), 'num_ctx_tokens': (?P<prefill_tokens>\d+), "
                r"'num_generation_tokens': (?P<decode_requests>\d+)"
            ),
            coverage="host step time; the device time beside it is that of the step before; generation tokens include the "
            "padding of a graph's batch: scheduled requests are counted where they are stated",
        ),
    ),
    cannot=TENSORRT_LLM.cannot,
)
