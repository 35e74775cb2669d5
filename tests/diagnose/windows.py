"""Windows of a server that decodes four streams while long prompts come in, of which a test overrides what it is about."""

from typing import Any

from diagnose.case import Window, make_window
from diagnose.policy import DEFAULT_POLICY
from diagnose.signals import Counter, Gauge, HistogramWindow, Signals
from probes.records import StepKind, StepRecord
from tests.probes.records import MS, make_record

TTFT_BOUNDS = (0.1, 0.2, 0.4, 0.8)


def step_records(seconds: int = 40, stall_ms: int = 200, every: int = 40, context: int = 400) -> list[StepRecord]:
    """Decode steps of 40 ms; every `every`-th is a mixed step of `stall_ms`. Lengths vary a little, without chance."""
    records: list[StepRecord] = []
    now = number = 0
    while now < seconds * 1_000_000_000:
        mixed = number % every == every - 1
        length = (stall_ms if mixed else 40) * MS + (number * 7919 % 13) * MS // 10
        records.append(
            make_record(
                number,
                start_ns=now,
                emit_ns=now + length - MS,
                end_ns=now + length,
                kind=StepKind.MIXED if mixed else StepKind.DECODE,
                num_decode_seqs=4,
                num_prefill_seqs=int(mixed),
                prefill_tokens=450 if mixed else 0,
                prefill_attention_pairs=101_475 if mixed else 0,
                emitted_tokens=5 if mixed else 4,
                decode_context_tokens=4 * context,
                forward_ns=length - 2 * MS,
                forward_cpu_ns=length - 2 * MS,
                num_regular_gaps=4 if number else 0,
            )
        )
        now += length
        number += 1
    return records


def signals(**fields: Any) -> Signals:
    """A window of a minute with 30 arrivals of 450-token prompts, a tenth of their tokens cached."""
    settings: dict[str, Any] = {
        "admitted": 30,
        "waiting": (0, 1, 0),
        "seconds": 60.0,
        "prompt": 450,
        "hit_rate": 0.1,
        "budget": (512,),
        "sequences": (16,),
        "ttft": (0, 20, 8, 2, 0),
        "info": {},
        "steps": None,
        "restarted": False,
    } | fields
    offered = settings["admitted"] * settings["prompt"]
    found = Signals(
        dialect="stallscope", length_seconds=settings["seconds"], num_scrapes=61, restarted=settings["restarted"]
    )
    found.counters = {
        "prefix_query_tokens": Counter(offered, "queries"),
        "prefix_hit_tokens": Counter(offered * settings["hit_rate"], "hits"),
        "tokens_prefill": Counter(offered * (1 - settings["hit_rate"]), "prefill"),
    }
    found.gauges = {
        "waiting": Gauge(settings["waiting"], "waiting"),
        "max_batched_tokens": Gauge(settings["budget"], "budget"),
        "max_sequences": Gauge(settings["sequences"], "sequences"),
    }
    found.histograms = {
        "queue_time": HistogramWindow((1.0,), (settings["admitted"], 0), 1.0, "queue"),
        "time_to_first_token": HistogramWindow(TTFT_BOUNDS, settings["ttft"], 6.0, "ttft"),
    }
    found.info = {
        "version": "0.1.0",
        "model": "smollm2",
        "dtype": "float32",
        "engine_id": "a",
        "block_size": "16",
        "prefix_cache": "true",
    } | settings["info"]
    found.steps = tuple(step_records() if settings["steps"] is None else settings["steps"])
    return found


def window(**fields: Any) -> Window:
    return make_window(signals(**fields), DEFAULT_POLICY)
