"""What the scheduler decided for one iteration, and the flat batch a runner executes."""

from dataclasses import dataclass, field
from typing import NamedTuple

from engine.request import Request
from probes.arithmetic import attention_pairs
from probes.records import DeferralReason


class ScheduledSequence(NamedTuple):
    """`num_tokens` tokens of `request` from position `start`; `samples` when its last row yields a token."""

    request: Request
    start: int
    num_tokens: int
    is_decode: bool
    samples: bool


class BlockCopy(NamedTuple):
    """Copy-on-write: the KV of the first `num_tokens` positions of `source` goes to the private block `target`."""

    source: int
    target: int
    num_tokens: int


class BlockImport(NamedTuple):
    """KV that another instance computed goes into a private block."""

    block_id: int
    content: memoryview
    """In the form of `Runner.read_blocks`."""


class Deferral(NamedTuple):
    request: Request
    reason: str
    """One of `probes.records.DeferralReason`."""
    available: int
    """Tokens of budget (or blocks, for `kv_blocks`) that were left when it was deferred; never negative."""


class SchedulerCounters(NamedTuple):
    """Cumulative since the start; readers take differences."""

    preemptions: int
    evictions: int
    """Blocks whose cached content was given up for something else."""
    prefix_query_tokens: int
    """Prompt tokens looked up in the prefix cache, each request once."""
    prefix_hit_tokens: int
    """Those of them that needed no computation."""


@dataclass(slots=True)
class ScheduledStep:
    """Decodes first, then prefill chunks; copies are executed in order before the forward pass, imports before those."""

    decodes: list[ScheduledSequence] = field(default_factory=list)
    prefills: list[ScheduledSequence] = field(default_factory=list)
    forks: list[ScheduledSequence] = field(default_factory=list)
    """Siblings of the last prefill, when that one ends its prompt: they sample from the same row. See engine.forks."""
    copies: list[BlockCopy] = field(default_factory=list)
    imports: list[BlockImport] = field(default_factory=list)
    """KV that came from a prefill instance, of requests that start in this step."""
    pinned: list[list[int]] = field(default_factory=list)
    """For each copy its source, after the blocks that lead to it: held until the copy is done."""
    preempted: list[Request] = field(default_factory=list)
    deferred: list[Deferral] = field(default_factory=list)
    """Every running sequence that was passed over, then the first few that wait; `num_deferred` counts all."""
    num_deferred: int = 0
    cached_tokens: int = 0
    """Prompt tokens bound from the prefix cache by requests admitted for the first time in this step."""
    received_tokens: int = 0
    """Prompt tokens of requests that start in this step whose KV a prefill instance computed."""
    ghost_hits: int = 0
    """Blocks that the requests started in this step asked for and that had been evicted not long ago."""
    prefill_tokens: int = 0
    """Tokens of the prefill chunks that no earlier step computed."""
    recomputed_tokens: int = 0
    """Tokens of the prefill chunks that were computed before a preemption threw them away."""
    decode_context_tokens: int = 0
    """KV positions the decode sequences attend to (their own new one included), summed over sequences."""
    prefill_attention_pairs: int = 0
    """Query-key pairs of the prefill chunks: c*start + c(c+1)/2 summed over chunks of c tokens."""
    max_batched_tokens: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.decodes and not self.prefills

    @property
    def sampled(self) -> list[ScheduledSequence]:
        """What yields a token each, in the order of `BatchPlan.sample_requests`."""
        return self.decodes + [chunk for chunk in self.prefills if chunk.samples] + self.forks

    @property
    def spent_by(self) -> DeferralReason:
        """Who has what a prompt no longer gets of the budget."""
        return DeferralReason.PREFILL_AHEAD if self.prefills else DeferralReason.BUDGET

    def defer(self, request: Request, reason: DeferralReason, available: int) -> None:
        request.deferral = reason
        request.deferred_steps += 1
        self.deferred.append(Deferral(request, reason, available))

    def add(self, sequence: ScheduledSequence) -> None:
        """A chunk of a prompt, whose siblings sample from its last row, or a decode that starts in this step."""
        request, start, num_tokens, is_decode, samples = sequence
        if is_decode:
            self.decodes.append(sequence)
            self.decode_context_tokens += start + 1
            return
        self.prefills.append(sequence)
        if samples:
            self.forks = [ScheduledSequence(one, start, num_tokens, False, True) for one in request.siblings]
        recomputed = max(0, min(start + num_tokens, request.max_computed_tokens) - start)
        self.recomputed_tokens += recomputed
        self.prefill_tokens += num_tokens - recomputed
        self.prefill_attention_pairs += attention_pairs(start, num_tokens)

    @property
    def num_query_tokens(self) -> int:
        return len(self.decodes) + sum(chunk.num_tokens for chunk in self.prefills)


@dataclass(slots=True)
class BatchPlan:
    """A step as flat lists, ready for tensors. Decode rows come first, one row each; then the prefill chunks in order.

    token_ids, positions, slots: one entry per query token (slot = block_id * block_size + offset).
    block_tables, context_lens, query_lens: one entry per sequence; context_len counts the positions in KV afterwards.
    sample_rows: rows of token_ids whose logits are sampled, in the order of `sample_requests`; forks repeat a row.
    """

    token_ids: list[int]
    positions: list[int]
    slots: list[int]
    block_tables: list[list[int]]
    context_lens: list[int]
    query_lens: list[int]
    num_decode_seqs: int
    sample_rows: list[int]
    sample_requests: list[Request]
    copies: list[BlockCopy]
    imports: list[BlockImport] = field(default_factory=list)
    step_id: int = 0
    """Of the step's record: a device whose times come later says by it which step they belong to."""


def plan_batch(step: ScheduledStep, block_size: int) -> BatchPlan:
    """Flattens a step. O(query tokens)."""
    plan = BatchPlan([], [], [], [], [], [], len(step.decodes), [], [], step.copies, step.imports)
    for sequence in (*step.decodes, *step.prefills):
        request, start, num_tokens = sequence.request, sequence.start, sequence.num_tokens
        end = start + num_tokens
        blocks = request.block_ids
        plan.token_ids += request.tokens_between(start, end)
        plan.positions += range(start, end)
        plan.slots += [blocks[p // block_size] * block_size + p % block_size for p in range(start, end)]
        plan.block_tables.append(blocks[: -(-end // block_size)])
        plan.context_lens.append(end)
        plan.query_lens.append(num_tokens)
        if sequence.samples:
            plan.sample_rows.append(len(plan.token_ids) - 1)
            plan.sample_requests.append(request)
    for sequence in step.forks:
        plan.sample_rows.append(len(plan.token_ids) - 1)
        plan.sample_requests.append(sequence.request)
    return plan
