"""The lesson's verification script, with the engine's own classes in place of the teaching ones.

`python -m tests.engine.test_lesson` prints it; the test compares the print with the lesson's terminal output, verbatim.
"""

import pytest

from engine.block_pool import BlockPool
from engine.budget import plan_chunks
from engine.prefix_cache import CacheScope, HashChainIndex
from tests.engine.builders import chunks_of, make_request, make_scheduler, run_step, start_decodes
from tests.requirements import covers

EXPECTED = """\
=== TEST 1: Prefix Cache Matching (2496 hit out of 3000) ===
Inserted 156 blocks from base prompt of 2500 tokens.
Matched cached tokens: 2496
Remaining fresh tokens: 504
Test 1 Passed: Exactly 156 blocks (2496 tokens) matched; 504 tokens left fresh.

=== TEST 2: Altered Early Block Stops Subsequent Reuse ===
Matched cached tokens after early mutation: 0
Remaining fresh tokens after early mutation: 64
Test 2 Passed: Block 0 hash mismatch halted matching; zero subsequent blocks reused.

=== TEST 3: Namespace Isolation ===
Matched cached tokens under different namespace: 0
Test 3 Passed: Namespace boundary prevented cross-tenant cache hit.

=== TEST 4: Chunked Scheduler Budget Tracing ===
Scheduled chunks for 2048 prompt with 4 decodes: [508, 508, 508, 508, 16]
Test 4 Passed: Exact 5-step trace [508, 508, 508, 508, 16] verified.

=== TEST 5: Chunked Scheduler Boundary Condition ===
Test 5 Passed: Caught expected RuntimeError: No prefill progress possible: active_decodes (512) >= \
max_batched_tokens (512). Prefill cannot be scheduled without violating budget.
"""


class Cache:
    """Pool and index together, as the engine uses them; the namespace of the lesson is the salt of a request."""

    def __init__(self, block_size: int = 16) -> None:
        self.index = HashChainIndex(block_size, CacheScope("lesson"))
        self.pool = BlockPool(1024, block_size, on_evict=self.index.forget)

    def insert(self, tokens: list[int], namespace: str) -> int:
        blocks = self.pool.allocate(-(-len(tokens) // self.pool.block_size))
        indexed = self.index.insert_sequence(tokens, blocks, namespace)
        self.pool.mark_cached(indexed)
        self.pool.release(blocks)
        self.pool.check_invariants()
        return len(indexed)

    def match(self, tokens: list[int], namespace: str) -> tuple[int, int]:
        cached = len(self.index.lookup(tokens, namespace)) * self.pool.block_size
        return cached, len(tokens) - cached


def show_prefix_cache() -> None:
    print("=== TEST 1: Prefix Cache Matching (2496 hit out of 3000) ===")
    cache = Cache()
    base_prompt = list(range(1, 2501))
    inserted = cache.insert(base_prompt, "model_shared")
    print(f"Inserted {inserted} blocks from base prompt of {len(base_prompt)} tokens.")
    cached, fresh = cache.match(base_prompt + list(range(5000, 5500)), "model_shared")
    print(f"Matched cached tokens: {cached}")
    print(f"Remaining fresh tokens: {fresh}")
    assert (cached, fresh) == (2496, 504)
    print("Test 1 Passed: Exactly 156 blocks (2496 tokens) matched; 504 tokens left fresh.")

    print("\n=== TEST 2: Altered Early Block Stops Subsequent Reuse ===")
    original = list(range(100, 164))
    cache.insert(original, "model_shared")
    mutated = list(original)
    mutated[5] = 999999
    cached, fresh = cache.match(mutated, "model_shared")
    print(f"Matched cached tokens after early mutation: {cached}")
    print(f"Remaining fresh tokens after early mutation: {fresh}")
    assert (cached, fresh) == (0, 64)
    print("Test 2 Passed: Block 0 hash mismatch halted matching; zero subsequent blocks reused.")

    print("\n=== TEST 3: Namespace Isolation ===")
    cached, _ = cache.match(base_prompt, "tenant_isolated")
    print(f"Matched cached tokens under different namespace: {cached}")
    assert cached == 0
    print("Test 3 Passed: Namespace boundary prevented cross-tenant cache hit.")


def show_scheduler() -> None:
    print("\n=== TEST 4: Chunked Scheduler Budget Tracing ===")
    scheduler = make_scheduler(max_batched_tokens=512)
    start_decodes(scheduler, 4)
    prompt = make_request("prompt", 2048)
    scheduler.add(prompt)
    steps = []
    while not prompt.output_token_ids:
        steps.append(run_step(scheduler))
    chunks = chunks_of(steps, prompt)
    print(f"Scheduled chunks for 2048 prompt with 4 decodes: {chunks}")
    assert chunks == plan_chunks(2048, 4, 512)
    print("Test 4 Passed: Exact 5-step trace [508, 508, 508, 508, 16] verified.")

    print("\n=== TEST 5: Chunked Scheduler Boundary Condition ===")
    with pytest.raises(RuntimeError) as caught:
        plan_chunks(total_prompt_tokens=100, active_decodes=512, max_batched_tokens=512)
    print(f"Test 5 Passed: Caught expected RuntimeError: {caught.value}")


@covers("S7.1", "S7.2", "S7.3", "S7.4", "S7.5", "S7.8")
def test_the_lessons_terminal_output(capsys: pytest.CaptureFixture[str]):
    show_prefix_cache()
    show_scheduler()
    assert capsys.readouterr().out == EXPECTED


if __name__ == "__main__":
    show_prefix_cache()
    show_scheduler()
