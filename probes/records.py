"""The vocabulary: one record per engine iteration, the block census, and the classes device time is split into.

Durations and `*_ns` stamps come from the monotonic clock (`time.perf_counter_ns`); only `*_unix_ns` is wall time.
`None` means "not measured", never zero.
"""

from enum import StrEnum
from typing import NamedTuple


class StepKind(StrEnum):
    """What one engine iteration computed."""

    DECODE = "decode"
    PREFILL = "prefill"
    MIXED = "mixed"


class OpClass(StrEnum):
    """Classes of device work, in the order in which `DeviceTime` holds them."""

    GEMM = "gemm"
    ATTENTION_PREFILL = "attention_prefill"
    ATTENTION_DECODE = "attention_decode"
    KV_WRITE = "kv_write"
    NORM_ROPE_ACT = "norm_rope_act"
    SAMPLING = "sampling"
    COMM = "comm"
    COPY = "copy"
    OTHER = "other"
    ATTENTION_MIXED = "attention_mixed"
    """One launch for prefill and decode rows: nothing splits its time."""


class DeviceTime(NamedTuple):
    """Device nanoseconds of one step by `OpClass`. On the CPU the device is the engine thread's own elapsed time.

    On a GPU every step is timed as a whole and the split into classes is sampled: `engine_info`'s `device_time` says how.
    """

    gemm: int = 0
    attention_prefill: int = 0
    attention_decode: int = 0
    kv_write: int = 0
    norm_rope_act: int = 0
    sampling: int = 0
    comm: int = 0
    copy: int = 0
    other: int = 0
    attention_mixed: int = 0


class BlockCensus(NamedTuple):
    """Three disjoint buckets of KV blocks; `free` never includes `reclaimable` here.

    active: ref_count > 0 · reclaimable: ref_count 0 with valid cached KV · free: no valid content.
    """

    active: int
    reclaimable: int
    free: int

    @property
    def total(self) -> int:
        return self.active + self.reclaimable + self.free


class StepRecord(NamedTuple):
    """One engine iteration. A NamedTuple, since building it is on the hot path (a third of a frozen dataclass's cost).

    `start_ns` is taken when the loop turns to the step (before it waits for the scheduler lock), `emit_ns` when its tokens
    exist, `end_ns` after they were handed out. An inter-token gap runs from one step's `emit_ns` to a later one's:

        emit[i-1]--post-process[i-1]--end[i-1]--host gap[i]--start[i]--lock, schedule, prepare, forward, sample--emit[i]

    lock_wait + schedule + prepare + forward + sample never exceed emit - start; postprocess is end - emit.

    Our engine measures every field that it has. Records that come from elsewhere, a profiler's trace say, leave None what
    their source does not show.
    """

    step_id: int
    start_ns: int
    emit_ns: int
    end_ns: int
    kind: StepKind
    # What was scheduled.
    num_decode_seqs: int
    """Sequences that took exactly one token of the budget to extend their output."""
    num_prefill_seqs: int
    prefill_tokens: int | None
    """Prompt tokens computed for the first time in this step."""
    recomputed_tokens: int | None
    """Tokens computed again after a preemption."""
    cached_tokens: int | None
    """Prompt tokens bound from the prefix cache by requests admitted in this step (never computed)."""
    decode_context_tokens: int | None
    """KV positions that the decode sequences attend to, summed over sequences."""
    prefill_attention_pairs: int | None
    """Query-key pairs of the prefill chunks: sum of c*start + c(c+1)/2 over chunks of c tokens."""
    emitted_tokens: int | None
    """Tokens sampled in this step (decodes plus finished prefills)."""
    max_batched_tokens: int | None
    """The token budget in force."""
    # Where the host's time went, ns.
    schedule_ns: int | None
    prepare_ns: int | None
    forward_ns: int
    sample_ns: int | None
    postprocess_ns: int | None
    lock_wait_ns: int | None
    lock_hold_ns: int | None
    host_gap_ns: int | None
    """Time from the previous step's end to this step's start while work was waiting; None after an idle loop."""
    forward_cpu_ns: int | None
    """CPU time of the engine's thread during forward and sample; well below forward_ns, the host was taken away."""
    device_ns: DeviceTime | None
    """None when it is not timed, and on a GPU for a step or a few until it is known: then the recorder fills it in."""
    # State after scheduling.
    num_running: int | None
    num_waiting: int | None
    num_preempted: int | None
    """Sequences preempted while this step was scheduled."""
    num_deferred: int | None
    """Runnable sequences (decodes or prompts) that got no token of this step's budget."""
    deferral: str | None
    """Why a prompt got no budget in this step: one of `DeferralReason`, the first one met."""
    num_regular_gaps: int
    """Sequences that emitted in this step and in the previous one: their gap is emit[i] - emit[i-1]."""
    late_gaps_ns: tuple[int, ...]
    """Inter-token gaps of sequences that emitted now but not in the previous step (preempted or deferred in between)."""
    census: BlockCensus | None
    evicted_blocks: int | None
    # Fields of later versions are None when the record is of an earlier one.
    ghost_hits: int | None = None
    """Blocks asked for by requests that started in this step which had been evicted not long ago."""
    received_tokens: int | None = None
    """Prompt tokens of requests that started in this step whose KV a prefill instance computed."""
    num_transferring: int | None = None
    """Requests that wait for KV from a prefill instance; they are not among `num_waiting`."""

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens computed, for the first time or again; who does not tell them apart counts both as `prefill_tokens`."""
        return None if self.prefill_tokens is None else self.prefill_tokens + (self.recomputed_tokens or 0)


class DeferralReason(StrEnum):
    """Why a runnable sequence or a waiting prompt was not scheduled in a step."""

    BUDGET = "budget_exhausted_by_decodes"
    """Decodes took the whole token budget."""
    PREFILL_AHEAD = "budget_taken_by_earlier_prefill"
    """An earlier prompt's chunk took the rest of the budget."""
    SEQUENCES = "max_sequences"
    """Every sequence slot is taken."""
    FORKS = "choices_of_earlier_prompt"
    """An earlier prompt ends in this step; its other choices start from it before anybody younger does."""
    KV_TRANSFER = "waiting_for_kv_transfer"
    """A prefill instance computes the prompt, or its KV is on the way; no step can contain the request before that."""
    BLOCKS = "kv_blocks"
    """Free plus reclaimable blocks cannot hold the prompt beside what is promised to running prefills."""


def step_kind(num_decode_seqs: int, num_prefill_seqs: int) -> StepKind:
    if num_prefill_seqs == 0:
        return StepKind.DECODE
    return StepKind.MIXED if num_decode_seqs else StepKind.PREFILL
