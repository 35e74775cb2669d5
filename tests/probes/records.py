"""A step record with defaults, of which a test overrides what it is about."""

from typing import Any

from probes.records import BlockCensus, StepKind, StepRecord

MS = 1_000_000


def make_record(step_id: int = 0, **fields: Any) -> StepRecord:
    """A decode step of one sequence, 10 ms long, the step_id-th of a row without gaps."""
    start = step_id * 10 * MS
    defaults: dict[str, Any] = {
        "step_id": step_id,
        "start_ns": start,
        "emit_ns": start + 9 * MS,
        "end_ns": start + 10 * MS,
        "kind": StepKind.DECODE,
        "num_decode_seqs": 1,
        "num_prefill_seqs": 0,
        "prefill_tokens": 0,
        "recomputed_tokens": 0,
        "cached_tokens": 0,
        "decode_context_tokens": 100,
        "prefill_attention_pairs": 0,
        "emitted_tokens": 1,
        "max_batched_tokens": 512,
        "schedule_ns": MS // 10,
        "prepare_ns": MS // 10,
        "forward_ns": 8 * MS,
        "sample_ns": MS // 10,
        "postprocess_ns": MS,
        "lock_wait_ns": 0,
        "lock_hold_ns": MS // 10,
        "host_gap_ns": None,
        "forward_cpu_ns": 8 * MS,
        "device_ns": None,
        "num_running": 1,
        "num_waiting": 0,
        "num_preempted": 0,
        "num_deferred": 0,
        "deferral": None,
        "num_regular_gaps": 0,
        "late_gaps_ns": (),
        "census": BlockCensus(1, 2, 3),
        "evicted_blocks": 0,
    }
    return StepRecord(**(defaults | fields))


def known(record: StepRecord) -> Any:
    """The record of our engine, which measures every field: a test reads its numbers without asking."""
    unmeasured = [name for name in _ALWAYS if getattr(record, name) is None]
    assert not unmeasured, unmeasured
    return record


_LATER = frozenset(StepRecord._field_defaults)
"""None in records of earlier versions."""
_ALWAYS = frozenset(StepRecord._fields) - _LATER - {"host_gap_ns", "forward_cpu_ns", "device_ns", "deferral"}
