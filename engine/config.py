"""What the scheduler is built from. Values are checked here, once; the rest of the policy trusts them."""

from dataclasses import dataclass

from engine.errors import ConfigError

MAX_BATCHED_TOKENS_LIMIT = 1 << 20
MAX_SEQUENCES_LIMIT = 1 << 16
PREFIX_INDEXES = ("hash_chain", "radix")
PREFIX_HASHES = ("sha256", "siphash64")


def check_bounds(name: str, value: object, upper: int | None = None) -> None:
    """Raises ConfigError unless `value` is an int in 1..upper."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise ConfigError(f"{name} must be positive, got {value}")
    if upper is not None and value > upper:
        raise ConfigError(f"{name} must be at most {upper}, got {value}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises ConfigError unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one scheduler. Raises ConfigError, which names the field and the value, when one makes no sense."""

    max_batched_tokens: int
    """Query tokens per step, decodes included. It bounds new tokens, not attention cost and not wall time."""
    max_sequences: int
    """Requests that may hold KV blocks at the same time."""
    block_size: int
    """Tokens per KV block."""
    kv_blocks: int
    """Blocks in the pool. All of them can hold data: there is no null block."""
    max_model_len: int
    """Tokens of prompt and output together."""
    enable_prefix_cache: bool = True
    prefix_index: str = "hash_chain"
    """How cached prefixes are found: one of PREFIX_INDEXES."""
    prefix_hash: str = "sha256"
    """What the hash chain is made of: one of PREFIX_HASHES. A radix tree compares tokens and hashes nothing."""

    def __post_init__(self) -> None:
        check_bounds("max_batched_tokens", self.max_batched_tokens, MAX_BATCHED_TOKENS_LIMIT)
        check_bounds("max_sequences", self.max_sequences, MAX_SEQUENCES_LIMIT)
        check_bounds("block_size", self.block_size)
        check_bounds("kv_blocks", self.kv_blocks)
        check_bounds("max_model_len", self.max_model_len)
        check_choice("prefix_index", self.prefix_index, PREFIX_INDEXES)
        check_choice("prefix_hash", self.prefix_hash, PREFIX_HASHES)
