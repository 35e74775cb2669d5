"""A request's life: what was asked (SamplingParams), where it stands (RequestState), what it holds (blocks, tokens)."""

from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from operator import attrgetter
from typing import NamedTuple

from engine.shipping import Outbound
from probes.recorder import RequestOrigin, TransferTrace


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn. temperature 0 is greedy; a seed makes the request's own draws repeatable."""

    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    min_p: float = 0.0
    """Keeps the tokens that are at least this share as probable as the best one."""
    repetition_penalty: float = 1.0
    """Divides the logits of tokens in prompt or output (multiplies negative ones); 1 changes nothing."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens in the output."""
    frequency_penalty: float = 0.0
    """Subtracted once for every time a token is in the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit), each token once."""
    logprobs: int | None = None
    """How many of the best tokens to report beside the chosen one, with log probabilities; None reports nothing."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def choice_seed(seed: int | None, choice: int) -> int | None:
    """The seed of a request's n-th answer, from 0: that of the request for the first, an unrelated one for each other.

    Not seed + n, with which requests of neighbouring seeds would share answers.
    """
    if seed is None or choice == 0:
        return seed
    return int.from_bytes(sha256(f"{seed}/choice {choice}".encode()).digest()[:8], "big")


class RequestState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    TRANSFERRING = "transferring"
    """Another instance computes its prompt; it holds nothing here until its KV has arrived."""
    FORKING = "forking"
    """Waits for the prompt that its leader computes for both."""
    FINISHED = "finished"


class ReceivedKv(NamedTuple):
    """KV of a prompt that another instance computed, in host memory until the request gets blocks for it."""

    first_block: int
    """Blocks before it are not in here: they were cached when the transfer began."""
    num_tokens: int
    """Positions of the prompt that have KV, those before `first_block` included."""
    blocks: list[memoryview]
    """One per block from `first_block` on, in the form of `Runner.read_blocks`."""


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. KV positions 0..num_computed_tokens-1 are in its blocks; the newest output token never is.

    prompt_token_ids              output_token_ids
    |---------------------------|-----------------|
    |-- num_cached --|
    |-- num_computed_tokens ------------|
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival_ns: int
    cache_salt: str = ""
    """Tenant isolation key: part of the identity of a prefix."""
    origin: RequestOrigin | None = None
    """For its trace; None when nobody asked over HTTP."""

    output_token_ids: list[int] = field(default_factory=list)
    state: RequestState = RequestState.WAITING
    siblings: list["Request"] = field(default_factory=list)
    """Requests that go on from this one's prompt once it is computed; none any more after that. See engine.forks."""
    leader: "Request | None" = None
    outbound: Outbound | None = None
    """Where its KV goes chunk by chunk, when it is computed for another instance."""
    transfer: TransferTrace | None = None
    """How its KV came from a prefill instance, or did not; None while it is on its way."""
    received: ReceivedKv | None = None
    """KV that has arrived and has no blocks yet."""
    block_ids: list[int] = field(default_factory=list)
    fork_source: int | None = None
    """The block with the end of the prompt, held until it is copied to the last of its own blocks."""
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens bound from the prefix cache at the first admission."""
    max_computed_tokens: int = 0
    """High-water mark of num_computed_tokens; work below it is recomputation."""
    num_hashed_blocks: int = 0
    """Leading full blocks already offered to the prefix index."""
    num_preemptions: int = 0
    deferred_steps: int = 0
    """Steps in a row that passed it over; 0 again once it is scheduled."""
    deferral: str | None = None
    """Why the latest of those steps did: one of `probes.records.DeferralReason`."""
    sequence_number: int = 0
    """Order of arrival, given by the scheduler: lower is older."""
    queued_step: int = 0
    """The scheduler's step count when it last entered the waiting queue."""
    first_scheduled_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    last_token_step: int | None = None
    finish_reason: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def is_decoding(self) -> bool:
        """Exactly the newest token is uncomputed and at least one token was sampled."""
        return bool(self.output_token_ids) and self.num_computed_tokens == self.num_tokens - 1

    def token_at(self, position: int) -> int:
        num_prompt = len(self.prompt_token_ids)
        if position < num_prompt:
            return self.prompt_token_ids[position]
        return self.output_token_ids[position - num_prompt]

    def tokens_between(self, start: int, end: int) -> list[int]:
        """Token ids at positions start..end-1, across the prompt/output border."""
        num_prompt = len(self.prompt_token_ids)
        if end <= num_prompt:
            return self.prompt_token_ids[start:end]
        if start >= num_prompt:
            return self.output_token_ids[start - num_prompt : end - num_prompt]
        return self.prompt_token_ids[start:] + self.output_token_ids[: end - num_prompt]


arrival = attrgetter("sequence_number")
"""Sort key: lower is older."""


class RequestView(NamedTuple):
    """A live request, as an observer sees it."""

    request_id: str
    state: RequestState
    reason: str | None
    """Why the latest step passed it over; None when it did not, or when no step has considered it yet."""
    deferred_steps: int
    """Steps in a row that passed it over."""
    age_seconds: float
    prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    blocks: int
    preemptions: int


def view_of(request: Request, now_ns: int) -> RequestView:
    return RequestView(
        request.request_id,
        request.state,
        request.deferral,
        request.deferred_steps,
        (now_ns - request.arrival_ns) / 1e9,
        len(request.prompt_token_ids),
        request.num_computed_tokens,
        len(request.output_token_ids),
        len(request.block_ids),
        request.num_preemptions,
    )
