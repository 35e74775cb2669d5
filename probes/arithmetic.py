"""The arithmetic of a step: token budget, attention pairs, KV bytes, FLOPs and ideal times. Analytical, never measured.

One home for what engine and diagnosis must agree on. Units that look alike are types or names here: a size is a
`ByteCount`, a rate a `ByteRate` made from Gb/s (10^9 bits) or GB/s (10^9 bytes), and an `IdealTime` is no latency.
"""

from dataclasses import dataclass
from typing import NamedTuple, NoReturn

PLAN_ASSUMPTIONS = (
    "the active decodes stay the same number in every step",
    "a sequence slot is free for the prompt",
    "every KV block reservation succeeds",
)
"""What `plan_chunks` takes for granted. The scheduler does not: it plans again in every step."""

LINEAR_FLOPS_EXCLUDE = ("activations", "norms", "rotary embedding", "softmax attention")
"""What `linear_flops` leaves out (lesson section 4)."""
ATTENTION_FLOPS_EXCLUDE = ("softmax itself", "masking", "rotary embedding")
"""What `attention_flops` leaves out."""
PAYLOAD_EXCLUDES = (
    "framing (Ethernet/IP/TCP or InfiniBand/RoCE)",
    "PCIe and NIC traversal",
    "staging copies",
    "queueing",
)
"""What `ideal_payload_time` leaves out (lesson section 6): why it is no end-to-end transfer latency."""
COMPUTE_EXCLUDES = ("memory reads", "kernel launches", "pipeline stalls", "queueing", "less than peak utilisation")
READ_EXCLUDES = (
    "activations",
    "KV writes",
    "kernel launches",
    "reads repeated by a kernel",
    "less than peak bandwidth",
)


# --- Token budget and attention pairs ---------------------------------------------------------------------------------


def plan_chunks(total_prompt_tokens: int, active_decodes: int, max_batched_tokens: int) -> list[int]:
    """Chunk lengths in which a prompt is prefilled beside `active_decodes`, one step each, under PLAN_ASSUMPTIONS.

    Raises ValueError for a budget <= 0 or a negative count, and RuntimeError when the decodes take the whole budget:
    the planner has no later step to put the prompt off to. The scheduler defers it instead, with the reason.
    """
    if max_batched_tokens <= 0:
        raise ValueError(f"max_batched_tokens must be positive, got {max_batched_tokens}")
    if total_prompt_tokens < 0:
        raise ValueError(f"total_prompt_tokens must be non-negative, got {total_prompt_tokens}")
    if active_decodes < 0:
        raise ValueError(f"active_decodes must be non-negative, got {active_decodes}")
    available = max_batched_tokens - active_decodes
    if available <= 0:
        raise RuntimeError(
            f"No prefill progress possible: active_decodes ({active_decodes}) "
            f">= max_batched_tokens ({max_batched_tokens}). "
            f"Prefill cannot be scheduled without violating budget."
        )
    full_chunks, rest = divmod(total_prompt_tokens, available)
    return [available] * full_chunks + ([rest] if rest else [])


def attention_pairs(start: int, num_tokens: int) -> int:
    """Query-key pairs of a causal chunk: each of its tokens meets all `start` earlier positions and its own past.

    positions   0 ......... start ......... start + num_tokens
                |- history -|---- chunk ---|
    """
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2


class PrefixSavings(NamedTuple):
    """What a cached prefix saves of a prompt's attention: self-attention of the suffix over the whole prefix.

    computed + skipped = full. Neither ratio is a speed-up of the first token.
    """

    blocks: int
    """Full blocks matched."""
    cached_tokens: int
    fresh_tokens: int
    suffix_prefix_pairs: int
    suffix_suffix_pairs: int
    computed_pairs: int
    skipped_pairs: int
    full_pairs: int

    @property
    def pair_ratio(self) -> float:
        """Computed over full pairs: attention's share of the work, which is not the linear layers' share."""
        return self.computed_pairs / self.full_pairs

    @property
    def token_ratio(self) -> float:
        """Fresh over all prompt tokens: the linear layers' share of the work."""
        return self.fresh_tokens / (self.cached_tokens + self.fresh_tokens)


def prefix_savings(prompt_tokens: int, cached_prefix_tokens: int, block_size: int) -> PrefixSavings:
    """Of a prompt whose first `cached_prefix_tokens` tokens are cached in full blocks (lesson section 4).

    At least the last prompt token is fresh: KV has no logits to sample from. Raises ValueError for an empty prompt, a
    prefix outside of it, or a block size <= 0.
    """
    if block_size <= 0:
        raise ValueError(f"block_size must be positive, got {block_size}")
    if prompt_tokens <= 0:
        raise ValueError(f"prompt_tokens must be positive, got {prompt_tokens}")
    if not 0 <= cached_prefix_tokens <= prompt_tokens:
        raise ValueError(f"a prefix of {cached_prefix_tokens} tokens is no prefix of {prompt_tokens}")
    blocks = cached_prefix_tokens // block_size
    cached = min(blocks * block_size, prompt_tokens - 1)
    fresh = prompt_tokens - cached
    across, within = fresh * cached, attention_pairs(0, fresh)
    return PrefixSavings(
        blocks=blocks,
        cached_tokens=cached,
        fresh_tokens=fresh,
        suffix_prefix_pairs=across,
        suffix_suffix_pairs=within,
        computed_pairs=across + within,
        skipped_pairs=attention_pairs(0, cached),
        full_pairs=attention_pairs(0, prompt_tokens),
    )


# --- Bytes ------------------------------------------------------------------------------------------------------------


class ByteCount(int):
    """A number of bytes; the properties name the unit it is read in."""

    @property
    def mebibytes(self) -> float:
        """2^20 bytes (MiB)."""
        return self / (1 << 20)

    @property
    def gibibytes(self) -> float:
        """2^30 bytes (GiB)."""
        return self / (1 << 30)

    @property
    def gigabytes(self) -> float:
        """10^9 bytes (GB)."""
        return self / 10**9


@dataclass(frozen=True, slots=True)
class ByteRate:
    """Bytes per second. Made by unit, so that 100 Gb/s is never read as 100 GB/s. Raises ValueError unless positive."""

    bytes_per_second: float

    def __post_init__(self) -> None:
        if not self.bytes_per_second > 0:
            raise ValueError(f"a rate must be positive, got {self.bytes_per_second}")

    @classmethod
    def from_gigabits_per_second(cls, value: float) -> "ByteRate":
        """Links are sold in Gb/s: 10^9 bits per second, an eighth of the bytes."""
        return cls(value * 1e9 / 8)

    @classmethod
    def from_gigabytes_per_second(cls, value: float) -> "ByteRate":
        return cls(value * 1e9)

    @property
    def gigabits_per_second(self) -> float:
        return self.bytes_per_second * 8 / 1e9

    @property
    def gigabytes_per_second(self) -> float:
        return self.bytes_per_second / 1e9


class AttentionHeads(NamedTuple):
    """Heads per layer as the model states them. With grouped-query attention there are fewer KV heads."""

    query: int
    kv: int


def kv_bytes_per_token(
    *, num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_element: int, heads: AttentionHeads | None = None
) -> ByteCount:
    """K and V of one token in all layers: 2 * L * H_KV * d * bytes per element (lesson section 6).

    With `heads`, what the model is known to have, another count of KV heads is refused with ValueError: taking the query
    heads is the usual mistake, and four times too much under 32/8 grouped-query attention.
    """
    if heads is not None and num_kv_heads != heads.kv:
        hint = " (that is its number of query heads)" if num_kv_heads == heads.query else ""
        raise ValueError(f"num_kv_heads is {num_kv_heads}{hint}, but the model keeps K and V of {heads.kv} heads")
    for name, value in (
        ("num_layers", num_layers),
        ("num_kv_heads", num_kv_heads),
        ("head_dim", head_dim),
        ("bytes_per_element", bytes_per_element),
    ):
        if value <= 0:
            raise ValueError(f"{name} must be positive, got {value}")
    return ByteCount(2 * num_layers * num_kv_heads * head_dim * bytes_per_element)


def kv_payload(num_tokens: int, bytes_per_token: int) -> ByteCount:
    """KV of `num_tokens` tokens: what disaggregated serving must move, or what a decode sequence of that context reads."""
    return ByteCount(num_tokens * bytes_per_token)


def required_transfer_rate(bytes_per_token: int, prefill_tokens_per_second: float) -> ByteRate:
    """Payload rate at which KV leaves a prefill worker: below it, transfers queue up. Raises ValueError for a rate <= 0."""
    return ByteRate(bytes_per_token * prefill_tokens_per_second)


# --- FLOPs ------------------------------------------------------------------------------------------------------------


def linear_flops(tokens: int, parameters: int) -> int:
    """2 * P * N for `tokens` evaluated tokens and `parameters` active parameters; see LINEAR_FLOPS_EXCLUDE.

    Engines do somewhat less where only sampled tokens pass the vocabulary projection, or what follows the last attention.
    """
    return 2 * tokens * parameters


def attention_flops(*, num_layers: int, num_query_heads: int, pairs: int, head_dim: int) -> int:
    """4 * L * H_Q * pairs * d: per pair 2d for Q K^T and 2d for A V, in every query head; see ATTENTION_FLOPS_EXCLUDE.

    Query heads here, KV heads in KV bytes: hence no positional arguments.
    """
    return 4 * num_layers * num_query_heads * pairs * head_dim


def ttft_from_flops(flops: float, flops_per_second: float) -> NoReturn:
    """Always raises TypeError: FLOPs over a peak are an ideal compute time, and say nothing of the time to first token."""
    raise TypeError(
        f"{flops:.3g} FLOPs at {flops_per_second:.3g} FLOP/s do not give a time to first token: weight and KV reads, launches, "
        "stalls and queueing decide it. Use ideal_compute_time for the floor, and measure TTFT"
    )


# --- Ideal times ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IdealTime:
    """A time under one perfect resource. No latency, and nothing turns it into one: it has no arithmetic of its own."""

    what: str
    """`payload`, `compute` or `memory`."""
    seconds: float
    excludes: tuple[str, ...]
    """What a measured time contains and this one does not."""

    def __str__(self) -> str:
        return (
            f"{self.seconds * 1e3:.3f} ms ideal {self.what} time (analytical, not a latency; "
            f"excludes {', '.join(self.excludes)})"
        )


def ideal_payload_time(payload_bytes: int, link: ByteRate) -> IdealTime:
    """Payload over an otherwise free link. It proves neither that a transfer is faster nor slower than a prefill."""
    return IdealTime("payload", payload_bytes / link.bytes_per_second, PAYLOAD_EXCLUDES)


def ideal_compute_time(flops: float, flops_per_second: float) -> IdealTime:
    """FLOPs at a peak. It is not TTFT. Raises ValueError for a peak <= 0."""
    if not flops_per_second > 0:
        raise ValueError(f"flops_per_second must be positive, got {flops_per_second}")
    return IdealTime("compute", flops / flops_per_second, COMPUTE_EXCLUDES)


def ideal_read_time(num_bytes: int, bandwidth: ByteRate) -> IdealTime:
    """Bytes read once at a memory bandwidth."""
    return IdealTime("memory", num_bytes / bandwidth.bytes_per_second, READ_EXCLUDES)
