"""The engine breathing: one column a step. A selected step shows its record."""

from collections.abc import Sequence

from dashboard.draw.figures import clock, count
from dashboard.draw.spans import Line, Span, beside, clip, section, split_width
from dashboard.draw.steps import device_time, durations, host_time, pointer, step_columns, step_seconds
from dashboard.model.view import View
from dashboard.panels.chrome import problem_lines
from dashboard.panels.plots import legend
from diagnose.units import seconds
from probes.records import OpClass, StepRecord

_RECORD_LINES = 7
_HOST = (("█ host", "host"), ("█ lock wait", "lock"), ("█ idle device", "gap"))
_KINDS = (("█ decode", "decode"), ("█ mixed", "mixed"), ("█ prefill", "prefill"))


def draw(view: View, width: int, height: int) -> list[Line]:
    records = view.steps()
    if not records:
        text = (
            "no step records: the target does not serve them, or none was made yet; decode, mixed and prefill steps are "
            "then only known as histograms"
        )
        return section("steps", [[Span(f" {text}", "dim")]], width, height)
    shown = visible(records, view.step_id, step_columns(width))
    selected = selected_step(view, shown)
    notices: list[Line] = [clip([Span(f" {text}", "bad_strong")], width) for text in problem_lines(view)]
    record_lines = _RECORD_LINES if height < 30 else _RECORD_LINES + 2
    room = height - record_lines - 1 - len(notices)
    heights = [room - 2 * (room // 3), room // 3, room // 3]
    note = [*legend(*_KINDS), Span(f"  {len(shown)} of {len(records)} steps", "dim")]
    return [
        *notices,
        *section("step duration by kind", durations(shown, width, heights[0] - 1), width, heights[0], note),
        pointer(shown, selected.step_id, width),
        *section("device time", device_time(shown, width, heights[1] - 1), width, heights[1], _classes(shown)),
        *section("host time", host_time(shown, width, heights[2] - 1), width, heights[2], legend(*_HOST)),
        *record(view, selected, width, record_lines),
    ]  # fmt: skip


def visible(records: Sequence[StepRecord], step_id: int | None, columns: int) -> Sequence[StepRecord]:
    """The newest steps, or as many around a selected older one as fit."""
    newest = records[-columns:]
    if step_id is None or not newest or step_id >= newest[0].step_id:
        return newest
    place = next((i for i, record in enumerate(records) if record.step_id >= step_id), 0)
    start = max(0, place - columns // 2)
    return records[start : start + columns]


def step_at(view: View, x: int, width: int) -> int | None:
    """The step whose column is at `x`."""
    shown = visible(view.steps(), view.step_id, step_columns(width))
    place = x - (width - len(shown))
    return shown[place].step_id if 0 <= place < len(shown) else None


def selected_step(view: View, shown: Sequence[StepRecord]) -> StepRecord:
    return next((record for record in shown if record.step_id == view.step_id), shown[-1])


def _classes(shown: Sequence[StepRecord]) -> Line:
    """Only classes that occur, largest first: on a narrow screen the small ones are cut off."""
    sums = {
        op.value: sum(r.device_ns[place] for r in shown if r.device_ns is not None) for place, op in enumerate(OpClass)
    }
    if not any(sums.values()):
        return [Span("not timed", "dim")]
    return legend(*((f"█ {_SHORT.get(op, op)}", op) for op in sorted(sums, key=lambda op: -sums[op]) if sums[op]))


_SHORT = {"attention_prefill": "attn prefill", "attention_decode": "attn decode", "norm_rope_act": "norm"}


def record(view: View, step: StepRecord, width: int, height: int) -> list[Line]:
    """The selected step's record, in columns."""
    ended = view.target.unix_of(step.end_ns)
    at = "" if ended is None else f"ended {clock(ended)}"
    columns = split_width(width, (1, 1, 1) if width >= 72 else (1,))
    blocks = (_work(step), _times(step), _state(step))
    body = beside([(_pairs(rows), w) for rows, w in zip(blocks, columns, strict=False)], height - 1)
    return section(f"step {step.step_id}: {step.kind.value}, {seconds(step_seconds(step))}", body, width, height, at)


def _pairs(rows: Sequence[tuple[str, str]]) -> list[Line]:
    return [[Span(f" {name:<13}", "dim"), Span(value, "number")] for name, value in rows]


def _work(step: StepRecord) -> list[tuple[str, str]]:
    return [
        ("decodes", count(step.num_decode_seqs)),
        ("prefill", f"{count(step.prefill_tokens)} tokens / {step.num_prefill_seqs}"),
        ("recomputed", count(step.recomputed_tokens)),
        ("cached", count(step.cached_tokens)),
        ("context", count(step.decode_context_tokens)),
        ("budget", count(step.max_batched_tokens)),
        ("attn pairs", count(step.prefill_attention_pairs)),
        ("emitted", count(step.emitted_tokens)),
    ]


def _times(step: StepRecord) -> list[tuple[str, str]]:
    def ns(value: int | None) -> str:
        return "not timed" if value is None else seconds(value / 1e9)

    return [
        ("forward", ns(step.forward_ns)),
        ("sample", ns(step.sample_ns)),
        ("schedule", ns(step.schedule_ns)),
        ("prepare", ns(step.prepare_ns)),
        ("lock wait", ns(step.lock_wait_ns)),
        ("host gap", ns(step.host_gap_ns)),
        ("postprocess", ns(step.postprocess_ns)),
        ("cpu time", ns(step.forward_cpu_ns)),
    ]


def _state(step: StepRecord) -> list[tuple[str, str]]:
    return [
        ("running", count(step.num_running)),
        ("waiting", count(step.num_waiting)),
        ("deferred", f"{count(step.num_deferred)} {step.deferral or ''}".strip()),
        ("preempted", count(step.num_preempted)),
        ("evicted", f"{count(step.evicted_blocks)}, ghost hits {count(step.ghost_hits)}"),
        ("blocks", "not counted" if (c := step.census) is None else f"{c.active} | {c.reclaimable} | {c.free}"),
        ("late gaps", count(len(step.late_gaps_ns))),
    ]
