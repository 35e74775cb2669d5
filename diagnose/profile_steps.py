"""Step records from a profile: device time by class, and the gaps between tokens as the device shows them.

What a trace does not show stays None: contexts, budgets, census, and the host's parts, all of which lie in the time in which
the device was idle between two steps. Derived, since no annotation says it:

- a stream that takes part in a step got a token from the step before, or from the last one that had decodes; which stream
  ended in between is not known, so that gaps over a prefill step count the streams that go on;
- decodes of a mixed step whose annotation counts requests only: those that ran in the step before;
- where vLLM counts more generation tokens than sequences, and no speculation makes them: one sequence is computed again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from diagnose.kernel_profile import KernelProfile, ProfiledStep
from diagnose.profile_completeness import inner_steps
from diagnose.stats import median
from probes.kernel_patterns import op_class
from probes.records import DeviceTime, OpClass, StepKind, StepRecord, step_kind
from probes.step_spans import StepSpan

_ORDER = {op: index for index, op in enumerate(OpClass)}


@dataclass(frozen=True, slots=True)
class _Work:
    """What a step computes, as far as it is known."""

    kind: StepKind
    decodes: int
    prefills: int
    prefill_tokens: int | None
    recomputed: int | None


@dataclass(slots=True)
class _Streams:
    """Sequences by the time of their last token, the latest last."""

    groups: list[tuple[int, int]]
    """(emitted at, how many)."""

    @property
    def count(self) -> int:
        return sum(count for _, count in self.groups)

    def emit(self, work: _Work, before_ns: int | None, now_ns: int) -> tuple[int, tuple[int, ...]]:
        """Regular gaps, and late ones in ns, of the sequences that take a token at `now_ns`."""
        regular, late, left = 0, list[int](), work.decodes
        for at, count in reversed(self.groups):
            taken = min(count, left)
            left -= taken
            if at == before_ns:
                regular += taken
            else:
                late += [now_ns - at] * taken
        if work.decodes:
            self.groups = []  # whoever did not take part has ended
        self.groups.append((now_ns, work.decodes + work.prefills))
        return regular, tuple(late)


def step_records(profile: KernelProfile) -> list[StepRecord]:
    """Records of the steps whose phase and kernels are known, in order. Ids are places in the profile: a step that is left out
    breaks the row, and no gap is measured across it."""
    plain = _is_plain(profile)
    streams, before_ns = _Streams([]), None
    records: list[StepRecord] = []
    inner = {id(step) for step in inner_steps(profile)}
    for index, step in enumerate(profile.steps):
        work = _work(step, streams.count, plain=plain) if id(step) in inner and step.num_kernels else None
        if work is None:
            streams, before_ns = _Streams([]), None
            continue
        start = step.start_ns if before_ns is None else max(step.start_ns, before_ns)
        end = max(step.end_ns, start + 1)
        regular, late = streams.emit(work, before_ns, end)
        records.append(_record(index, step, work, (start, end), before_ns, regular, late))
        before_ns = end
    return records


def unknown_phases(profile: KernelProfile) -> int:
    """Steps whose phase neither the annotation nor the kernels tell."""
    plain = _is_plain(profile)
    return sum(
        _work(step, step.span.num_requests, plain=plain) is None for step in inner_steps(profile) if step.num_kernels
    )


def _is_plain(profile: KernelProfile) -> bool:
    """Whether sequences in generation usually take one token: no speculation."""
    spans = [step.span for step in profile.steps]
    ratios = [
        span.generation_tokens / span.num_decode_seqs
        for span in spans
        if span.generation_tokens and span.num_decode_seqs
    ]
    return bool(ratios) and median(ratios) == 1.0


def _work(step: ProfiledStep, running: int, *, plain: bool) -> _Work | None:
    span = step.span
    kind = span.kind or _phase(step)
    if kind is None:
        return None
    if span.num_decode_seqs is None or span.num_prefill_seqs is None:
        if kind is StepKind.MIXED and not running:
            return None  # the step before is not known, so neither are its decodes
        decodes = span.num_requests if kind is StepKind.DECODE else min(running, span.num_requests - 1)
        prefills = span.num_requests - decodes
        return _Work(step_kind(decodes, prefills), decodes, prefills, _written(step, decodes, prefills), None)
    decodes, prefills, again = span.num_decode_seqs, span.num_prefill_seqs, None
    if plain and span.generation_tokens is not None and span.generation_tokens > decodes > 0:
        again = span.generation_tokens - (decodes - 1)
        decodes, prefills = decodes - 1, prefills + 1
    return _Work(step_kind(decodes, prefills), decodes, prefills, _prompt_tokens(span), again)


def _prompt_tokens(span: StepSpan) -> int | None:
    return 0 if span.kind is StepKind.DECODE else span.prefill_tokens


def _phase(step: ProfiledStep) -> StepKind | None:
    """Of an annotation that tells no phase: from the attention kernels, else from the tokens written."""
    if step.attention is not None:
        return StepKind.DECODE if step.attention is StepKind.DECODE else StepKind.MIXED
    if step.kv_write_tokens is not None and step.kv_write_tokens <= step.span.num_requests:
        return StepKind.DECODE
    return None


def _written(step: ProfiledStep, decodes: int, prefills: int) -> int | None:
    """Prompt tokens by what the KV write was launched for; None where that is padded or not known."""
    if not prefills:
        return 0
    tokens = step.kv_write_tokens
    return tokens - decodes if tokens is not None and tokens - decodes >= prefills else None


def _record(
    index: int,
    step: ProfiledStep,
    work: _Work,
    span_ns: tuple[int, int],
    before_ns: int | None,
    regular: int,
    late: tuple[int, ...],
) -> StepRecord:
    start, end = span_ns
    return StepRecord(
        step_id=index,
        start_ns=start,
        emit_ns=end,
        end_ns=end,
        kind=work.kind,
        num_decode_seqs=work.decodes,
        num_prefill_seqs=work.prefills,
        prefill_tokens=work.prefill_tokens,
        recomputed_tokens=work.recomputed,
        cached_tokens=None,
        decode_context_tokens=step.span.decode_context_tokens,
        prefill_attention_pairs=step.span.prefill_attention_pairs,
        emitted_tokens=None,
        max_batched_tokens=None,
        schedule_ns=None,
        prepare_ns=None,
        forward_ns=end - start,
        sample_ns=None,
        postprocess_ns=None,
        lock_wait_ns=None,
        lock_hold_ns=None,
        # Only while streams go on is an idle device the host's doing.
        host_gap_ns=start - before_ns if before_ns is not None and work.decodes else None,
        forward_cpu_ns=None,
        device_ns=DeviceTime(*_by_op(step, work.kind)),
        num_running=None,
        num_waiting=None,
        num_preempted=None,
        num_deferred=None,
        deferral=None,
        num_regular_gaps=regular,
        late_gaps_ns=late,
        census=None,
        evicted_blocks=None,
    )


def _by_op(step: ProfiledStep, kind: StepKind) -> Iterator[int]:
    sums = [0] * len(_ORDER)
    for name, ns in step.class_ns.items():
        sums[_ORDER[op_class(name, kind)]] += ns
    return iter(sums)
