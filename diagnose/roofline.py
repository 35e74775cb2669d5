"""Bytes and FLOPs of one step from the model's geometry, against the device's ceilings.

Which resource limits a step follows from its own shape, the precision, the device and the kernel: no token count and no
batch size is a threshold here. Prefill can be limited by memory and batched decode by compute. All of it is analytical.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from diagnose.signals import Signals
from probes.arithmetic import (
    ATTENTION_FLOPS_EXCLUDE,
    LINEAR_FLOPS_EXCLUDE,
    ByteCount,
    ByteRate,
    IdealTime,
    attention_flops,
    attention_pairs,
    ideal_compute_time,
    ideal_read_time,
    kv_payload,
    linear_flops,
)
from probes.records import StepRecord

LABEL = "analytical"
TRAFFIC_MODEL = "nominal traffic model: weights once, KV of the batch once per step"


class Limit(StrEnum):
    MEMORY = "memory"
    COMPUTE = "compute"
    UNKNOWN = "unknown"


class PrefillChunk(NamedTuple):
    start: int
    """Positions before the chunk, all of which it attends to."""
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step computes. KV positions are counted once per sequence, the new ones included."""

    decode_sequences: int
    decode_context_tokens: int
    prefill_tokens: int
    prefill_pairs: int
    prefill_context_tokens: int | None
    """KV positions that the chunks attend to, summed; None when only their pairs are known."""

    @classmethod
    def of(cls, decode_contexts: Iterable[int] = (), chunks: Iterable[PrefillChunk] = ()) -> "StepShape":
        contexts, chunks = list(decode_contexts), list(chunks)
        return cls(
            len(contexts),
            sum(contexts),
            sum(chunk.num_tokens for chunk in chunks),
            sum(attention_pairs(chunk.start, chunk.num_tokens) for chunk in chunks),
            sum(chunk.start + chunk.num_tokens for chunk in chunks),
        )

    @classmethod
    def from_record(cls, record: StepRecord) -> "StepShape | None":
        """A record sums its chunks' pairs; the history of a single chunk follows from them, that of several does not.

        None when the record lacks tokens, pairs or contexts.
        """
        tokens, pairs = record.prompt_tokens, record.prefill_attention_pairs
        if tokens is None or pairs is None or record.decode_context_tokens is None:
            return None
        context: int | None = None
        if tokens == 0:
            context = 0
        elif record.num_prefill_seqs == 1:
            context = (pairs - attention_pairs(0, tokens)) // tokens + tokens
        return cls(record.num_decode_seqs, record.decode_context_tokens, tokens, pairs, context)

    @property
    def query_tokens(self) -> int:
        return self.decode_sequences + self.prefill_tokens

    @property
    def pairs(self) -> int:
        """A decode token meets every position of its sequence: its context is its number of pairs."""
        return self.decode_context_tokens + self.prefill_pairs

    @property
    def context_tokens(self) -> int | None:
        if self.prefill_context_tokens is None:
            return None
        return self.decode_context_tokens + self.prefill_context_tokens


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What `engine_info` says of the model; None where it says nothing."""

    num_layers: int | None = None
    num_query_heads: int | None = None
    head_dim: int | None = None
    num_parameters: int | None = None
    weight_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    dtype: str | None = None

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> "ModelShape":
        """Labels that are absent or no integers are None."""

        def number(name: str) -> int | None:
            text = labels.get(name, "")
            return int(text) if text.isdecimal() else None

        return cls(
            num_layers=number("num_layers"),
            num_query_heads=number("num_query_heads"),
            head_dim=number("head_dim"),
            num_parameters=number("num_parameters"),
            weight_bytes=number("weight_bytes"),
            kv_bytes_per_token=number("kv_bytes_per_token"),
            dtype=labels.get("dtype") or None,
        )


@dataclass(frozen=True, slots=True)
class DeviceCeilings:
    """Measured on the device or from its datasheet; None where unknown."""

    bandwidth: ByteRate | None = None
    flops_per_second: float | None = None
    """At the precision in use, by the units that the kernels use."""
    kernel: str | None = None
    """The attention kernel: FlashAttention, FlashDecoding, PagedAttention, torch, ..."""

    @classmethod
    def from_signals(cls, signals: Signals) -> "DeviceCeilings":
        """What the engine measured of its own device at start, and the kernel it says it runs."""
        bandwidth = signals.last("bandwidth_ceiling")
        return cls(
            ByteRate(bandwidth) if bandwidth else None,
            signals.last("flops_ceiling") or None,
            signals.info.get("attention_backend") or None,
        )


@dataclass(frozen=True, slots=True)
class RooflineStatement:
    """What a step must read and compute at least. Never a prediction of a latency; None where an input is missing."""

    read_bytes: ByteCount | None
    kv_read_bytes: ByteCount | None
    linear_flops: int | None
    attention_flops: int | None
    linear_intensity: float | None
    """FLOPs of the linear layers per byte of weights: it rises with the step's tokens, decodes included."""
    memory_time: IdealTime | None
    compute_time: IdealTime | None
    limit: Limit
    inputs: tuple[str, ...]
    """`name value` of everything the statement rests on."""
    missing: tuple[str, ...]
    """Inputs without which no limiting resource is named."""
    label: str = LABEL

    @property
    def excludes(self) -> tuple[str, ...]:
        """What the estimates leave out, each once."""
        names: tuple[str, ...] = (*LINEAR_FLOPS_EXCLUDE, *ATTENTION_FLOPS_EXCLUDE)
        for time in (self.memory_time, self.compute_time):
            names += time.excludes if time is not None else ()
        return tuple(dict.fromkeys(names))

    def memory_utilisation(self, step_seconds: float) -> float | None:
        """Share of the bandwidth ceiling that the nominal bytes take in a measured step (MBU)."""
        return None if self.memory_time is None else self.memory_time.seconds / step_seconds

    def compute_utilisation(self, step_seconds: float) -> float | None:
        """Share of the FLOP ceiling that the counted FLOPs take in a measured step (MFU)."""
        return None if self.compute_time is None else self.compute_time.seconds / step_seconds

    def lines(self) -> list[str]:
        """The statement for a person: verdict first, then what it rests on and what it leaves out."""
        because = f": {', '.join(self.missing)} not known" if self.missing else ""
        lines = [f"limiting resource ({self.label}): {self.limit.value}{because}"]
        if self.read_bytes is not None:
            lines.append(f"reads {self.read_bytes:,} B ({TRAFFIC_MODEL}; not measured traffic)")
        if self.linear_flops is not None:
            lines.append(f"linear layers {self.linear_flops:,} FLOPs, {_per_byte(self.linear_intensity)}")
        if self.attention_flops is not None:
            lines.append(f"attention {self.attention_flops:,} FLOPs")
        lines += [str(time) for time in (self.memory_time, self.compute_time) if time is not None]
        lines.append(f"from {', '.join(self.inputs)}")
        lines.append(f"excludes {', '.join(self.excludes)}")
        return lines


def statement(step: StepShape, model: ModelShape, ceilings: DeviceCeilings) -> RooflineStatement:
    """What limits `step`, when every input is known: batch, prompt, context, precision, both ceilings and the kernel."""
    total_bytes = read_bytes(step, model)
    linear = None if model.num_parameters is None else linear_flops(step.query_tokens, model.num_parameters)
    attention = _attention_flops(step, model)
    memory_time = compute_time = None
    if total_bytes is not None and ceilings.bandwidth is not None:
        memory_time = ideal_read_time(total_bytes, ceilings.bandwidth)
    if linear is not None and attention is not None and ceilings.flops_per_second is not None:
        compute_time = ideal_compute_time(linear + attention, ceilings.flops_per_second)
    inputs, missing = _inputs(step, model, ceilings)
    limit = Limit.UNKNOWN
    if not missing and memory_time is not None and compute_time is not None:
        limit = Limit.MEMORY if memory_time.seconds >= compute_time.seconds else Limit.COMPUTE
    return RooflineStatement(
        read_bytes=total_bytes,
        kv_read_bytes=kv_read_bytes(step, model),
        linear_flops=linear,
        attention_flops=attention,
        linear_intensity=linear / model.weight_bytes if linear is not None and model.weight_bytes else None,
        memory_time=memory_time,
        compute_time=compute_time,
        limit=limit,
        inputs=inputs,
        missing=missing,
    )


def kv_read_bytes(step: StepShape, model: ModelShape) -> ByteCount | None:
    """Bytes per token times the context of every sequence (lesson section 1): nominal, a kernel may read more or less."""
    if model.kv_bytes_per_token is None or step.context_tokens is None:
        return None
    return kv_payload(step.context_tokens, model.kv_bytes_per_token)


def read_bytes(step: StepShape, model: ModelShape) -> ByteCount | None:
    """All weights once, the embedding table included, and the KV of the batch once."""
    kv_bytes = kv_read_bytes(step, model)
    return None if kv_bytes is None or model.weight_bytes is None else ByteCount(model.weight_bytes + kv_bytes)


def _attention_flops(step: StepShape, model: ModelShape) -> int | None:
    if model.num_layers is None or model.num_query_heads is None or model.head_dim is None:
        return None
    return attention_flops(
        num_layers=model.num_layers,
        num_query_heads=model.num_query_heads,
        pairs=step.pairs,
        head_dim=model.head_dim,
    )


def _inputs(step: StepShape, model: ModelShape, ceilings: DeviceCeilings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The known inputs as text, and the names of the others."""
    peak = ceilings.flops_per_second
    known: dict[str, object] = {
        "batch": f"{step.decode_sequences} sequences",
        "prompt": f"{step.prefill_tokens} tokens",
        "context": None if step.context_tokens is None else f"{step.context_tokens} KV positions",
        "precision": model.dtype,
        "num_layers": model.num_layers,
        "num_query_heads": model.num_query_heads,
        "head_dim": model.head_dim,
        "num_parameters": model.num_parameters,
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "bandwidth": None if ceilings.bandwidth is None else f"{ceilings.bandwidth.gigabytes_per_second:.1f} GB/s",
        "tensor throughput": None if peak is None else f"{peak / 1e12:.3g} TFLOP/s",
        "kernel": ceilings.kernel,
    }
    inputs = tuple(f"{name} {value}" for name, value in known.items() if value is not None)
    return inputs, tuple(name for name, value in known.items() if value is None)


def _per_byte(intensity: float | None) -> str:
    return "intensity not known" if intensity is None else f"{intensity:.3g} FLOP per byte of weights"
