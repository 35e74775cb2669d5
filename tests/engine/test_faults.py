"""Faults that other engines have had, each by its name: this one must not have them."""

import sys
from types import FrameType
from typing import Any

import pytest

from engine.block_pool import BlockPool
from engine.config import PREFIX_INDEXES
from engine.prefix_cache import CacheScope
from engine.step import plan_batch
from tests.engine.builders import chunks_of, make_request, make_scheduler, run_step, run_steps, serve, start_decodes
from tests.requirements import covers


@covers("S2.22")
@pytest.mark.parametrize(("budget", "decodes"), [(512, 548), (512, 512), (64, 100), (1, 3)])
def test_decodes_that_exceed_the_budget_make_no_negative_chunk(budget: int, decodes: int):
    """Budget minus decodes, taken as a chunk length, is -36: a prompt that shrinks."""
    scheduler = make_scheduler(max_batched_tokens=4096)
    start_decodes(scheduler, decodes)
    scheduler.set_limits(max_batched_tokens=budget)
    prompt = make_request("prompt", 100)
    scheduler.add(prompt)
    for step in run_steps(scheduler, 5):
        assert all(one.num_tokens > 0 for one in step.decodes + step.prefills)
        assert step.num_query_tokens == len(step.decodes) == min(budget, decodes)
        assert all(one.available >= 0 for one in step.deferred)
    assert prompt.num_computed_tokens == 0
    assert prompt.deferred_steps == 5


def test_a_half_prefilled_prompt_is_not_taken_for_a_decode():
    """A chunk length of 0 or less that marks "no prompt work" turned a prompt into a decode: it sampled from a middle row."""
    scheduler = make_scheduler(max_batched_tokens=64)
    start_decodes(scheduler, 20)
    prompt = make_request("prompt", 200)
    scheduler.add(prompt)
    run_step(scheduler)
    assert 0 < prompt.num_computed_tokens < 200
    scheduler.set_limits(max_batched_tokens=8)
    for _ in range(5):
        step = scheduler.schedule()
        assert prompt not in [one.request for one in step.decodes + step.prefills]
        assert prompt not in plan_batch(step, 16).sample_requests
        scheduler.commit(step, [7] * 8, 0)
    assert not prompt.output_token_ids


def test_no_prefill_only_step_stalls_the_decodes():
    """Engines that run prompts first let every arrival stop all streams for a step."""
    scheduler = make_scheduler(max_batched_tokens=64)
    decodes = start_decodes(scheduler, 8)
    for i in range(10):
        scheduler.add(make_request(f"prompt-{i}", 200, max_tokens=1, first=1000 * i))
    while any(name.startswith("prompt") for name in scheduler.requests):
        step = run_step(scheduler)
        assert [one.request for one in step.decodes[:8]] == decodes
        assert step.prefills


@covers("S3.5")
@pytest.mark.parametrize("prefix_index", PREFIX_INDEXES)
def test_namespaces_that_concatenate_to_the_same_text_share_nothing(prefix_index: str):
    """Salt + adapter name, joined as text, makes "a" + "bc" and "ab" + "c" one namespace: one tenant gets the other's KV."""
    scheduler = make_scheduler(prefix_index=prefix_index, scope=CacheScope("w", adapter="bc"))
    serve(scheduler, make_request("first", 64, max_tokens=1, salt="a"))
    for salt, adapter in (("ab", "c"), ("abc", ""), ("", "abc"), ("a", "b"), ("", "bc")):
        scheduler.index.set_scope(CacheScope("w", adapter=adapter))
        assert serve(scheduler, make_request("other", 64, max_tokens=1, salt=salt)).num_cached_tokens == 0
    scheduler.index.set_scope(CacheScope("w", adapter="bc"))
    assert serve(scheduler, make_request("same", 64, max_tokens=1, salt="a")).num_cached_tokens == 63


@pytest.mark.parametrize("prefix_index", PREFIX_INDEXES)
def test_a_prefix_hit_a_moment_ago_is_not_evicted_before_an_idle_one(prefix_index: str):
    """A tree that refreshes only nodes hit to their end evicts the front of a run that was just used, and keeps the idle one."""
    scheduler = make_scheduler(kv_blocks=20, block_size=4, prefix_index=prefix_index)
    shared, idle = list(range(16)), list(range(100, 116))
    serve(scheduler, make_request("long", [*shared, *range(50, 66)], max_tokens=1))
    serve(scheduler, make_request("idle", idle, max_tokens=1))
    assert serve(scheduler, make_request("hit", [*shared, 70, 71, 72], max_tokens=1)).num_cached_tokens == 16
    serve(scheduler, make_request("pressure", list(range(200, 264)), max_tokens=1))
    assert len(scheduler.index.lookup(shared)) == 4
    assert scheduler.index.lookup(idle) == []


class CountedId(int):
    """A block id that counts with how many others it is compared: a search through a list shows."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedId.comparisons += 1
        return int(self) == other

    __hash__ = int.__hash__


def operations_to_revive(num_blocks: int) -> tuple[int, int]:
    """Comparisons of ids, and lines run, when one of `num_blocks` reclaimable blocks is hit."""
    pool = BlockPool(num_blocks, 16)
    pool._free = [CountedId(i) for i in reversed(range(num_blocks))]
    blocks = pool.allocate(num_blocks)
    pool.mark_cached(blocks)
    pool.release(blocks)
    CountedId.comparisons = lines = 0

    def count(_: FrameType, event: str, __: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        pool.touch([CountedId(num_blocks // 2)])
    finally:
        sys.settrace(before)
    assert pool.census().active == 1
    return CountedId.comparisons, lines


def test_reuse_of_a_freed_block_does_not_cost_o_of_pool():
    """A free list that is searched for the block: 12 times the cost at 10 times the blocks. Counted, not timed."""
    small, large = operations_to_revive(100), operations_to_revive(20_000)
    assert small == large
    assert large[0] <= 10
    assert large[1] < 40


@covers("S3.8")
@pytest.mark.parametrize("prefix_index", PREFIX_INDEXES)
@pytest.mark.parametrize("prompt", [2496, 2500])
def test_a_full_hit_does_not_recompute_16_tokens_where_1_would_do(prompt: int, prefix_index: str):
    """Capping a hit at whole blocks recomputes the last block of an aligned prompt; a private copy of it needs one token."""
    scheduler = make_scheduler(max_batched_tokens=4096, prefix_index=prefix_index)
    serve(scheduler, make_request("first", prompt, max_tokens=1))
    again = make_request("again", prompt, max_tokens=1)
    scheduler.add(again)
    step = run_step(scheduler)
    fresh = prompt % 16 or 1
    assert chunks_of([step], again) == [fresh]
    assert again.num_cached_tokens == prompt - fresh
