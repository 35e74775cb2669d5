"""What the lesson requires, by id, and how a test says which of it it proves.

Section 1 prefill and decode profiles, 2 chunked prefill, 3a-3d prefix caching, 3e the block pool, 4 the worked
derivations, 5 the decision framework, 6 disaggregation, 7 the reference code, 8 the exercises. Rows of other sections that
tests here prove as well are listed too, but nothing fails when they have no test.
"""

from collections.abc import Callable
from typing import TypeVar

import pytest

Decorated = TypeVar("Decorated", bound=Callable[..., object])


def covers(*ids: str) -> Callable[[Decorated], Decorated]:
    """Marks a test as the proof of these requirements; `tests/test_requirements.py` reads the calls from the source."""
    return pytest.mark.requirement(*ids)


CLAIMED_SECTIONS = ("1", "2", "3a", "3b", "3c", "3d", "3e", "4", "5", "6", "7", "8")

REQUIREMENTS = {
    # 0. Introduction (not claimed as a section)
    "S0.2": "interference is attributed to the prefill of its step, not to memory",
    # 1. Prefill and decode profiles
    "S1.1": "prefill of P writes P KV positions and yields one token; each decode step appends one position",
    "S1.2": "batched decode is a GEMM: no fixed batch threshold for compute-bound or memory-bound",
    "S1.3": "nominal decode attention traffic is the sum of context lengths times bytes per token",
    "S1.4": "no fixed prompt-length cut-off for compute-bound",
    "S1.5": "a bottleneck statement lists its inputs; with one missing it is undetermined and names it",
    # 2a. Chunked prefill: causal equivalence
    "S2.1": "a chunk attends to all earlier chunks and causally within itself",
    "S2.2": "RoPE uses absolute positions across chunks",
    "S2.3": "attention pairs are conserved by chunking",
    "S2.4": "chunked and monolithic agree within a tolerance; token identity is not promised",
    "S2.5": "chunking is validated statistically against an unchunked baseline",
    # 2b. Budget mechanics
    "S2.6": "decodes claim the budget first, one token each; prefill gets what is left",
    "S2.7": "budget 512, 4 decodes, prompt 2048: chunks 508 508 508 508 16",
    "S2.8": "the trace's assumptions are stated, and a step is planned again when one breaks",
    "S2.9": "only the last chunk yields a token, and the next step consumes it as a decode",
    "S2.10": "the co-scheduled decodes emit in every step of the prefill",
    "S2.11": "chunk ends need not be block aligned; only full blocks become cacheable",
    "S2.12": "budget left over goes to the next prompt",
    "S2.13": "the budget bounds query tokens, not attention cost",
    "S2.14": "later chunks read a longer history",
    "S2.15": "a step is several kernels, and its time is split by class",
    "S2.16": "chunking is reported as a trade of TTFT against ITL",
    "S2.17": "there is no universally optimal chunk size",
    "S2.18": "smaller chunks: more steps and more host cost",
    "S2.19": "larger chunks: longer steps and decode spikes",
    "S2.20": "a monolithic prompt makes co-scheduled decodes wait for all of it",
    # 2c. Budget exhaustion
    "S2.21": "decodes that take the whole budget defer prefill with a reason; none of them is dropped",
    "S2.22": "more decodes than budget: the rest is named and goes first next time; no negative chunk",
    "S2.23": "the planner rejects a budget <= 0 and negative counts, with the value",
    "S2.24": "the planner's error on an exhausted budget has both numbers and the exact text",
    "S2.25": "a prompt of 0 tokens has an empty schedule",
    "S2.26": "a deferred prompt shows for how many steps and why",
    # 3a. Prefix identity
    "S3.1": "the three-request example: hits of 2000, and 2048 or 2144",
    "S3.2": "five identity dimensions must match; a miss names the one that differs",
    "S3.3": "instance-wide identity lives in one scope; changing it leaves no stale hit",
    "S3.4": "another namespace never hits",
    "S3.5": "the hashed encoding is unambiguous",
    "S3.6": "token ids are unsigned 32-bit integers",
    "S3.7": "an adapter name re-pointed to other weights misses",
    # 3b. Logits
    "S3.8": "a full hit still computes the last prompt token",
    "S3.9": "a lookup reports reusable positions; the plan caps them and copies on write",
    "S3.10": "a shared block is never written to",
    # 3c. Hash chain
    "S3.11": "a block's hash covers its parent, its ordered tokens and the scope",
    "S3.12": "a changed early token misses all later blocks",
    "S3.13": "matching stops at the first missing block",
    "S3.14": "full blocks only, as a policy",
    "S3.15": "the block size must be positive",
    "S3.16": "physical block ids are arbitrary",
    "S3.17": "2500 tokens insert 156 blocks",
    # 3d. Radix
    "S3.18": "a tree over token runs, shared by active and ended requests; a split copies no KV",
    "S3.19": "what an active request's path consists of is pinned",
    "S3.20": "eviction takes the least recently used unreferenced leaf; a parent only once it is childless",
    "S3.21": "the match is token-granular, the storage page-aligned",
    "S3.22": "hash chain and radix hit the same with page = block",
    # 3e. Pool, buckets, eviction, thrashing
    "S3.23": "the pool is allocated once, at the start, from parameters; no share of memory is a universal rule",
    "S3.24": "active + reclaimable + free = total after every operation",
    "S3.25": "an active block is never handed out again",
    "S3.26": "a hit on a reclaimable block makes it active at once, with nothing copied",
    "S3.27": "under pressure free blocks go first, then the tails of old chains",
    "S3.28": "free and reclaimable are added only where it is known that free does not include reclaimable",
    "S3.29": "eviction is metadata only: no memory is freed, no byte changes",
    "S3.30": "a working set above the pool reads as thrashing: 0 % hits, 100 % ghost hits",
    "S3.31": "the costs of thrashing are listed with their numbers",
    "S3.32": "high device memory proves neither health, nor thrashing, nor exhaustion",
    # 4. Worked derivations
    "S4.1": "3000 tokens, 2500 shared, blocks of 16: 156 blocks, 2496 cached, 504 fresh",
    "S4.2": "suffix-to-prefix pairs 1,257,984",
    "S4.3": "suffix-to-suffix pairs 127,260",
    "S4.4": "computed pairs 1,385,244",
    "S4.5": "computed and skipped pairs add up to the full 4,501,500",
    "S4.6": "a suffix attends to itself and to the whole prefix: self-attention, and the documents call it so",
    "S4.7": "linear FLOPs are 2 P N: 8.064 TFLOP for 504 tokens of an 8B model",
    "S4.8": "every FLOP estimate prints what it excludes",
    "S4.9": "attention FLOPs are 4 L H_Q pairs d, not pairs",
    "S4.10": "query heads in FLOPs, KV heads in KV bytes",
    "S4.11": "FLOPs give no time to first token",
    # 5. Decision framework
    "S5.1": "hit 40%, ITL 3x, memory 98% alone are insufficient evidence",
    "S5.2": "reservation is not occupancy",
    "S5.3": "an ITL spike lists all four competing explanations with their status",
    "S5.4": "measurement 1: three disjoint block counts and whether free includes reclaimable",
    "S5.5": "substantial reclaimable and free blocks refute exhaustion",
    "S5.6": "measurement 2: step time split, mixed against pure decode",
    "S5.7": "mixed steps far slower than pure decode steps support interference, and do not prove it",
    "S5.8": "measurement 3: host scheduling time and lock contention",
    "S5.9": "measurement 4: a matched A/B of chunk sizes, p95 and p99",
    "S5.10": "correlation supports and never confirms",
    "S5.11": "a hard failure calls for bounded containment before full profiling",
    "S5.12": "a relative regression without an absolute SLO is not a hard failure",
    "S5.13": "containment is bounded, reversible, and leaves the cause open",
    "S5.14": "a regression inside the absolute SLO calls for no containment",
    "S5.15": "no configuration change before hypotheses are evaluated",
    "S5.16": "a higher hit rate neither excuses nor explains an ITL rise",
    # 6. Disaggregation
    "S6.1": "K and V of a token-layer are 2,048 bytes each",
    "S6.2": "131,072 bytes per token over all layers",
    "S6.3": "268,435,456 bytes for 2048 tokens: 256 MiB",
    "S6.4": "KV bytes from query heads are refused where the KV heads are known",
    "S6.5": "100 Gb/s is 12.5e9 bytes per second: 0.02147483648 s",
    "S6.6": "an ideal payload time says what it excludes and is no latency",
    "S6.7": "separate instances still share the switch, the NICs and the memory bus: untested unless measured",
    "S6.8": "a decode never starts before all of its KV has arrived; the prefill side gives the first token",
    "S6.9": "chunks are streamed while later ones are computed, or not: overlap is an option",
    "S6.10": "four inputs decide on disaggregation; no speed of a link does",
    "S6.11": "the transfer rate that keeps up with a prefill worker",
    "S6.12": "a block that is not full is shipped with the next chunk, unless the prompt ends in it",
    # 7. Reference code
    "S7.1": "156 blocks inserted, 2496 of 3000 tokens matched, 504 fresh",
    "S7.2": "an early mutation matches nothing of 64",
    "S7.3": "another namespace matches nothing",
    "S7.4": "the chunk trace 508 508 508 508 16",
    "S7.5": "the exhausted budget raises the exact text",
    "S7.6": "the documents say row by row what the teaching code lacks and the engine has",
    "S7.7": "stored tokens are compared on a hit, and the hit is capped",
    "S7.8": "the lesson's terminal output is reproduced verbatim",
    # 8. Exercises
    "S8.1": "block 32, prompt 4000, shared 3100: 96 blocks, 3072 cached, 928 fresh",
    "S8.2": "pairs of exercise 1: 3,281,872 computed, 4,720,128 skipped of 8,002,000",
    "S8.3": "budget 1024, 300 decodes, prompt 3500: chunks 724 724 724 724 604",
    "S8.4": "what a plan takes for granted is stated",
    "S8.5": "a burst that takes the whole budget defers prefill",
    "S8.6": "exercise 3: interference supported, exhaustion not",
    "S8.7": "exercise 3: 95 % constant is reservation and says nothing of thrashing",
    "S8.8": "exercise 3: the first two measurements are the buckets and the step times",
    "S8.9": "exercise 3: the plan of the comparison has arms, matched conditions, metrics and a stop rule",
    "S8.10": "more hits and more prefill: 921.6 prompt tokens per request against 204.8",
    "S8.11": "163,840 bytes per token at 40 layers",
    "S8.12": "671,088,640 bytes for 4096 tokens: 640 MiB",
    "S8.13": "200 Gb/s: 0.0268435456 s",
    "S8.14": "chunks of 512 are streamed while the next ones are computed",
    # 9. Summary (not claimed as a section)
    "S9.1": "the four techniques side by side, by goal, scheduling, memory, latency and invariant, with live counters",
    "S9.2": "matched blocks are not allocated",
    "S9.3": "chunks allocate their blocks one after the other",
    "S9.4": "a hit rate alone gives no time to first token",
}

PENDING: dict[str, str] = {}
"""Claimed requirements without a test yet, and the room that owes it. Whoever covers one takes it out of here."""

TRAPS = {
    "T1": ("98 % device memory means KV exhausted", ("S3.32", "S5.1", "S5.2", "S8.7")),
    "T2": ("free + reclaimable", ("S3.28", "S5.4")),
    "T3": ("a full hit needs no forward pass", ("S3.8", "S3.9", "S3.10")),
    "T4": ("the same tokens have the same KV", ("S3.2", "S3.3", "S3.4", "S3.5", "S3.6", "S3.7")),
    "T5": ("a cap on tokens caps the time", ("S2.13", "S2.14")),
    "T6": ("chunked is bitwise equal", ("S2.4", "S2.5")),
    "T7": ("pairs are FLOPs, and FLOPs are a time to first token", ("S4.9", "S4.10", "S4.11")),
    "T8": ("query heads in KV bytes", ("S6.4",)),
    "T9": ("21.475 ms is the transfer's latency", ("S6.6",)),
    "T10": ("eviction frees memory", ("S3.29",)),
    "T11": ("decode is GEMV, prefill is compute-bound", ("S1.2", "S1.3", "S1.4", "S1.5")),
    "T12": ("correlation is cause", ("S5.10",)),
    "T13": ("a higher hit rate means less prefill", ("S8.10",)),
    "T14": ("three times as slow is an emergency", ("S5.11", "S5.12", "S5.13", "S5.14")),
    "T15": ("decodes beyond the budget: a negative chunk, or a drop", ("S2.21", "S2.22", "S2.23", "S2.24")),
    "T16": ("full blocks only is a law", ("S3.14",)),
    "T17": ("disaggregation needs 400 Gb/s, or removes all interference", ("S6.7", "S6.10")),
    "T18": ("Gb, GB and GiB are the same", ("S6.5",)),
    "T19": ("one optimal chunk size", ("S2.17",)),
    "T20": ("unreferenced is empty", ("S3.24", "S3.25", "S3.26")),
}
"""The lesson's traps, and the requirements whose tests keep out of each."""
