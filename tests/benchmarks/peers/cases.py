"""What is measured, in which unit, at which pool sizes, and what ours has to reach. Names only; subjects fill them in."""

from dataclasses import dataclass

SIZES = (10_000, 100_000, 1_000_000)
ANY_SIZE = (0,)


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    unit: str


@dataclass(frozen=True)
class Measured:
    """One case and the rows that it yields."""

    case: str
    rows: tuple[Row, ...]
    sizes: tuple[int, ...] = SIZES


def _one(case: str, title: str, unit: str, sizes: tuple[int, ...] = SIZES) -> Measured:
    return Measured(case, (Row(case, title, unit),), sizes)


CASES = (
    _one("hash_sha256", "hash a 4096-token prompt, 256 bits", "us/1k tokens", ANY_SIZE),
    _one("hash_64", "hash a 4096-token prompt, 64 bits", "us/1k tokens", ANY_SIZE),
    _one("lookup_hit", "look up a hashed 4096-token prompt: hit", "us/1k tokens"),
    _one("lookup_miss", "look up a hashed 4096-token prompt: miss", "us/lookup"),
    _one("hash_lookup", "hash and look up 4096 tokens: hit", "us/1k tokens"),
    _one("insert", "allocate and index a new hashed 1024-token prompt", "us/1k tokens"),
    _one("hash_insert", "hash, allocate and index a new 1024-token prompt", "us/1k tokens"),
    _one("allocate_free", "allocate and free, 16 blocks without content", "us/block"),
    _one("take", "take and give back a cached prefix nobody holds", "us/block"),
    _one("admit", "admit and release 4160 tokens, 4096 of them cached", "us/1k tokens"),
    _one("evict", "evict and hand out, 64 blocks", "us/block"),
    _one("evict_bare", "the same, ours without its reuse statistics", "us/block"),
    Measured(
        "decodes",
        (
            Row("schedule_decodes", "schedule() 256 decodes", "us/step"),
            Row("update_decodes", "commit() / update_from_output() of it", "us/step"),
            Row("step_decodes", "both", "us/step"),
        ),
    ),
    Measured(
        "mixed",
        (
            Row("schedule_mixed", "schedule() 256 decodes + 256-token chunk", "us/step"),
            Row("update_mixed", "commit() / update_from_output() of it", "us/step"),
            Row("step_mixed", "both", "us/step"),
        ),
    ),
    _one("radix_prepare", "radix: key of a 4096-token prompt (ours: identities)", "us/1k tokens", ANY_SIZE),
    _one("radix_match_1", "radix: match 1024 tokens, 1 node", "us/1k tokens"),
    _one("radix_match_64", "radix: match 4096 tokens over 64 nodes", "us/1k tokens"),
    _one("radix_blocks_64", "radix: the same, and its block ids", "us/1k tokens"),
    _one("radix_miss", "radix: miss at the root", "us/lookup"),
    _one("radix_pin_64", "radix: match, pin and unpin a path of 64 nodes", "us/1k tokens"),
    _one("radix_insert", "radix: insert a new 1024-token sequence", "us/1k tokens"),
    _one("radix_again_64", "radix: insert 4096 tokens that are there, 64 nodes", "us/1k tokens"),
    _one("radix_evict", "radix: evict 64 blocks", "us/block"),
)


@dataclass(frozen=True)
class Goal:
    row: str
    peer: str
    at_least: float
    """The peer's time divided by ours."""


GOALS = (
    Goal("hash_sha256", "vllm", 2.5),
    Goal("lookup_hit", "vllm", 4.0),
    Goal("schedule_decodes", "vllm", 4.0),
    Goal("schedule_mixed", "vllm", 4.0),
    Goal("evict", "nano", 1.0),
    Goal("evict_bare", "nano", 1.0),
    Goal("radix_blocks_64", "sglang", 1.0),
    Goal("radix_insert", "sglang", 1.0),
    Goal("radix_blocks_64", "sglang-python", 1.0),
    Goal("radix_insert", "sglang-python", 1.0),
    Goal("radix_blocks_64", "sglang-rust", 0.5),
    Goal("radix_insert", "sglang-rust", 0.5),
)
FLAT = ("evict", "radix_evict", "take", "allocate_free")
"""Rows that should cost the same whatever the size of the pool; ours at the largest over ours at the smallest."""
