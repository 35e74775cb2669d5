"""Thrashing, as the scheduler's own books show it: what was evicted and asked for again, and how many blocks it takes."""

import random

import pytest

from engine.block_reuse import FOLLOWED_BLOCKS, BlockReuse
from engine.request import FinishReason, RequestState
from engine.scheduler import Scheduler
from probes.records import BlockCensus
from tests.engine.builders import FakeClock, make_request, make_scheduler, run_step, serve, start_decodes
from tests.requirements import covers


def reuse_of(scheduler: Scheduler) -> BlockReuse:
    assert scheduler.reuse is not None
    return scheduler.reuse


def ask(scheduler: Scheduler, content: int, blocks: int = 1) -> int:
    """Serves a prompt of full blocks; returns the ghost hits."""
    size = scheduler.config.block_size
    before = reuse_of(scheduler).ghost_age.count
    request = make_request("r", size * blocks, max_tokens=1, first=content * 100_000)
    scheduler.add(request)
    # Without the checks of `serve`, which cost O(pool) a step.
    while scheduler.has_work:
        step = scheduler.schedule()
        for emitted in scheduler.commit(step, [9] * len(step.sampled), 0):
            scheduler.finish(emitted, FinishReason.LENGTH)
    return reuse_of(scheduler).ghost_age.count - before


def hits(scheduler: Scheduler) -> int:
    return scheduler.counters.prefix_hit_tokens


@covers("S3.30")
def test_a_cycle_of_120_blocks_in_a_pool_of_100_hits_nothing_and_every_miss_is_a_ghost_hit():
    scheduler = make_scheduler(kv_blocks=100, block_size=4)
    assert sum(ask(scheduler, i) for i in range(120)) == 0, "what was never there is no ghost"
    again = [ask(scheduler, i) for _ in range(3) for i in range(120)]
    assert hits(scheduler) == 0
    assert again == [1] * 360
    assert reuse_of(scheduler).working_set.blocks() == 120


@covers("S3.30")
def test_a_cycle_of_90_blocks_in_a_pool_of_100_hits_always_and_has_no_ghosts():
    scheduler = make_scheduler(kv_blocks=100, block_size=4)
    assert sum(ask(scheduler, i) for _ in range(4) for i in range(90)) == 0
    assert hits(scheduler) == 3 * 90 * 3, "all but the last token, which is always computed"
    assert scheduler.counters.evictions == 0
    assert reuse_of(scheduler).working_set.blocks() == 90


def test_a_pool_of_600_under_1450_blocks_says_so_and_a_pool_of_that_size_ends_it():
    def thrash(kv_blocks: int) -> tuple[int, int | None]:
        scheduler = make_scheduler(kv_blocks=kv_blocks, block_size=2)
        # 145 conversations of 10 blocks, in turns.
        ghosts = [ask(scheduler, i, blocks=10) for _ in range(3) for i in range(145)]
        return sum(ghosts), reuse_of(scheduler).working_set.blocks()

    ghosts, working_set = thrash(600)
    assert ghosts == 2 * 1450
    assert working_set is not None
    assert 1450 <= working_set <= 1450 * (1 + 1 / 64)
    # One more: a full hit needs a block for the copy of its last one.
    assert thrash(working_set + 1) == (0, working_set)


def test_the_working_set_sees_further_back_than_the_ghost_list():
    """A cycle of 7 pools: every block is forgotten as a ghost before it comes back, but not as a use."""
    scheduler = make_scheduler(kv_blocks=20, block_size=2)
    assert sum(ask(scheduler, i) for _ in range(3) for i in range(140)) == 0
    told = reuse_of(scheduler).working_set.blocks()
    assert told is not None
    assert 140 <= told <= 143


@pytest.mark.parametrize("prefix_index", ["hash_chain", "radix"])
def test_of_a_large_pool_a_sample_is_followed_and_stands_for_all(prefix_index: str):
    """Chains in turns, half as many again as fit: all that is evicted is asked for again, once per turn."""
    blocks, chain = 4 * FOLLOWED_BLOCKS, 64
    clock = FakeClock()
    scheduler = make_scheduler(
        kv_blocks=blocks, block_size=2, max_model_len=1000, prefix_index=prefix_index, clock_ns=clock
    )
    reuse = reuse_of(scheduler)
    assert reuse.weight == 4
    chains = blocks * 3 // 2 // chain
    assert sum(ask(scheduler, i, blocks=chain) for i in range(chains)) == 0, "what was never there is no ghost"
    evicted = scheduler.counters.evictions
    assert evicted >= blocks / 2 - chain
    clock.advance(100)
    ghosts = [ask(scheduler, i, blocks=chain) for i in range(chains)]
    assert all(ghost % reuse.weight == 0 for ghost in ghosts), "each of the sample stands for four"
    # Five standard errors of a sample of one in four.
    assert abs(sum(ghosts) - chains * chain) < 5 * (3 * chains * chain) ** 0.5
    assert abs(reuse.residency.count - scheduler.counters.evictions) < 5 * (3 * scheduler.counters.evictions) ** 0.5
    assert reuse.snapshot().num_ghosts <= 4 * blocks
    again = sum(ask(scheduler, i, blocks=chain) for i in range(chains))
    assert again == sum(ghosts), "the same contents are followed in every turn"


@pytest.mark.parametrize(
    ("kv_blocks", "weight"),
    [(1, 1), (FOLLOWED_BLOCKS, 1), (FOLLOWED_BLOCKS + 1, 2), (2 * FOLLOWED_BLOCKS, 2), (1_000_000, 256)],
)
def test_no_more_blocks_are_followed_than_are_remembered_cheaply(kv_blocks: int, weight: int):
    assert BlockReuse(kv_blocks).weight == weight


def test_the_estimate_on_a_small_pool_is_the_pool_that_serves_the_same_requests():
    """Zipf-like popularity of chains of different lengths: the estimate on 60 blocks, tried out on as many as it says."""

    def live(kv_blocks: int) -> tuple[float, int]:
        scheduler = make_scheduler(kv_blocks=kv_blocks, block_size=2)
        draw = random.Random(7)
        ghosts = asked = 0
        for _ in range(1500):
            content = min(int(draw.paretovariate(0.7)), 40)
            ghosts += ask(scheduler, content, blocks=1 + content % 7)
            asked += 1 + content % 7
        return 1 - ghosts / asked, reuse_of(scheduler).working_set.blocks() or 0

    share, working_set = live(60)
    assert share < 0.9
    assert 0.94 <= live(working_set)[0] <= 0.97
    assert live(working_set * 3 // 4)[0] < 0.94


def test_ages_run_between_the_events_they_name():
    clock = FakeClock()
    scheduler = make_scheduler(kv_blocks=3, block_size=4, clock_ns=clock)
    ask(scheduler, 1)
    clock.advance(20)
    ask(scheduler, 1)
    reuse = reuse_of(scheduler)
    assert (reuse.reuse.count, reuse.reuse.sum_ns) == (1, 20 * 10**9), "released, hit again"
    clock.advance(100)
    for other in (2, 3, 4):
        ask(scheduler, other)
    assert (reuse.residency.count, reuse.residency.sum_ns) == (1, 120 * 10**9), "cached, evicted"
    clock.advance(7)
    assert ask(scheduler, 1) == 1
    assert (reuse.ghost_age.count, reuse.ghost_age.sum_ns) == (1, 7 * 10**9), "evicted, asked for again"


def test_waiting_for_blocks_is_one_ghost_hit_and_not_one_per_step():
    scheduler = make_scheduler(kv_blocks=4, block_size=4)
    ask(scheduler, 1, blocks=3)
    (busy,) = start_decodes(scheduler, 1, prompt=12, max_tokens=5)
    waiting = make_request("waiting", 12, max_tokens=1, first=100_000)
    scheduler.add(waiting)
    for _ in range(2):
        assert run_step(scheduler).ghost_hits == 0
        assert waiting.state is RequestState.WAITING
    scheduler.abort(busy.request_id)
    assert run_step(scheduler).ghost_hits == 3


def test_content_that_comes_back_as_output_is_no_ghost_any_more():
    scheduler = make_scheduler(kv_blocks=2, block_size=2)
    serve(scheduler, make_request("prompt", [1, 9, 9], max_tokens=1))
    serve(scheduler, make_request("others", 4, max_tokens=1, first=500))
    assert scheduler.counters.evictions == 1
    # The prompt [1] and the output 9, 9 make the same block again.
    serve(scheduler, make_request("output", [1], max_tokens=3))
    serve(scheduler, make_request("others", 4, max_tokens=1, first=600))
    assert ask_tokens(scheduler, [1, 9, 9]) == 1, "evicted twice, missed once"


def ask_tokens(scheduler: Scheduler, tokens: list[int]) -> int:
    before = reuse_of(scheduler).ghost_age.count
    serve(scheduler, make_request("again", tokens, max_tokens=1))
    return reuse_of(scheduler).ghost_age.count - before


def test_a_reset_is_no_eviction_and_leaves_no_ghosts():
    scheduler = make_scheduler(kv_blocks=10, block_size=4)
    ask(scheduler, 1, blocks=3)
    scheduler.reset_prefix_cache()
    assert ask(scheduler, 1, blocks=3) == 0
    assert reuse_of(scheduler).working_set.blocks() is None


def test_with_the_prefix_cache_off_nothing_is_asked_for():
    scheduler = make_scheduler(kv_blocks=4, block_size=4)
    ask(scheduler, 1, blocks=4)
    ask(scheduler, 2, blocks=4)
    scheduler.set_prefix_cache(False)
    assert ask(scheduler, 1, blocks=4) == 0


@pytest.mark.parametrize("measure", [True, False])
def test_measuring_changes_nothing(measure: bool):
    scheduler = make_scheduler(kv_blocks=10, block_size=4, measure_reuse=measure)
    for i in (1, 2, 3, 1, 2, 3):
        serve(scheduler, make_request("r", 16, max_tokens=1, first=i * 1000))
    assert scheduler.census() == BlockCensus(active=0, reclaimable=10, free=0)
    assert scheduler.counters[1:] == (8, 96, 24)
