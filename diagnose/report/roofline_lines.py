"""Typical steps of the window against the device's ceilings, in sentences that every renderer shows alike."""

from collections.abc import Sequence

from diagnose.account import running_seconds
from diagnose.case import Window
from diagnose.diagnosis import Diagnosis
from diagnose.roofline import (
    TRAFFIC_MODEL,
    DeviceCeilings,
    ModelShape,
    RooflineStatement,
    StepShape,
    statement,
)
from diagnose.units import percent, seconds
from probes.records import StepKind, StepRecord

_MORE_THAN_ALL = 1.05
"""Shares beyond this are no rounding."""
TITLE = "Steps against the device's ceilings"


def roofline_lines(diagnosis: Diagnosis) -> list[str]:
    """The median pure decode step and the median step that carries prefill. Empty where no share can be computed."""
    window = diagnosis.case.incident
    with_prefill = [record for record in window.signals.steps if record.kind is not StepKind.DECODE]
    lines, found = [], []
    for name, records in (("pure decode step", window.analysis.decode_steps), ("step with prefill", with_prefill)):
        step = _median_step(records)
        shape = StepShape.from_record(step) if step is not None else None
        if step is None or shape is None:
            continue
        roofline = statement(
            shape,
            ModelShape.from_labels(window.signals.info),
            DeviceCeilings.from_signals(window.signals),
        )
        shares = _shares(roofline, running_seconds(step), window)
        if shares:
            lines.append(f"{_about(name, step, shape)} (the median of {len(records)}): {'; '.join(shares)}")
            found.append(roofline)
    return [*lines, *_assumptions(found[0], window)] if found else []


def _median_step(records: Sequence[StepRecord]) -> StepRecord | None:
    ordered = sorted((record for record in records if running_seconds(record) > 0), key=running_seconds)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def _about(name: str, step: StepRecord, shape: StepShape) -> str:
    parts = []
    if shape.decode_sequences:
        parts.append(f"{shape.decode_sequences} sequences with {shape.decode_context_tokens:,} tokens of context")
    if shape.prefill_tokens:
        parts.append(f"{shape.prefill_tokens:,} prefill tokens")
    return f"{name}, {seconds(running_seconds(step))}, {', '.join(parts)}"


def _shares(roofline: RooflineStatement, elapsed: float, window: Window) -> list[str]:
    """MBU, MFU and the limiting resource, as far as their inputs are known."""
    shares = []
    bandwidth, flops = window.signals.last("bandwidth_ceiling"), window.signals.last("flops_ceiling")
    usage = roofline.memory_utilisation(elapsed)
    if usage is not None and roofline.read_bytes is not None and bandwidth:
        rate = roofline.read_bytes / elapsed
        shares.append(f"reads {rate / 1e9:.1f} GB/s, {percent(usage)} of {bandwidth / 1e9:.1f} GB/s (MBU)")
    usage = roofline.compute_utilisation(elapsed)
    if usage is not None and flops:
        shares.append(f"computes {usage * flops / 1e9:.1f} GFLOP/s, {percent(usage)} of {flops / 1e9:.1f} (MFU)")
    if shares and max(use or 0.0 for use in (roofline.memory_utilisation(elapsed), usage)) > _MORE_THAN_ALL:
        shares.append("a share above 100 %: the ceiling was measured while the machine was busy")
    if shares and not roofline.missing:
        shares.append(f"limited by {roofline.limit.value}, at the ceilings")
    return shares


def _ceiling_sources(window: Window) -> str:
    """A datasheet is named as one."""
    gauges = (window.signals.gauges.get(name) for name in ("bandwidth_ceiling", "flops_ceiling"))
    return ", ".join(dict.fromkeys(gauge.source for gauge in gauges if gauge is not None))


def _assumptions(roofline: RooflineStatement, window: Window) -> list[str]:
    return [
        f"ceilings: {_ceiling_sources(window)}; bytes and FLOPs {roofline.label}, from the model's geometry; "
        f"{TRAFFIC_MODEL}; no measured traffic",
        f"left out: {', '.join(roofline.excludes)}",
    ]
