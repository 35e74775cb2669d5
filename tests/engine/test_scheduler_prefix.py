"""Prefix hits, copy-on-write, scarce blocks and preemption: who gets which KV blocks."""

from collections.abc import Callable
from functools import partial

import pytest

from engine.config import PREFIX_INDEXES
from engine.prefix_cache import CacheScope
from engine.request import FinishReason, RequestState
from engine.scheduler import Scheduler
from engine.step import BlockCopy
from probes.records import BlockCensus, DeferralReason
from tests.engine import builders
from tests.engine.builders import (
    make_request,
    run_step,
    run_steps,
    run_until_idle,
    serve,
    start_decodes,
)
from tests.requirements import covers

Make = Callable[..., Scheduler]


@pytest.fixture(params=PREFIX_INDEXES)
def make_scheduler(request) -> Make:
    """Every test of this file holds for either index."""
    return partial(builders.make_scheduler, prefix_index=request.param)


@covers("S3.1")
@pytest.mark.parametrize(("answer", "hit"), [(1, 2048), (100, 2144)])
def test_the_lessons_three_requests(make_scheduler: Make, answer: int, hit: int):
    """With R1's answer in the cache R3 finds 134 blocks: of its 2150 tokens the last one was never fed back."""
    scheduler = make_scheduler(max_batched_tokens=4096)
    system = list(range(2000))
    query_a, query_b, query_c = ([base + i for i in range(n)] for base, n in ((3000, 50), (4000, 40), (5000, 30)))
    first = make_request("r1", system + query_a, max_tokens=answer)
    scheduler.add(first)
    while scheduler.has_work:
        run_step(scheduler, token=lambda request: 6000 + len(request.output_token_ids))
    assert scheduler.census().reclaimable == hit // 16
    assert serve(scheduler, make_request("r2", system + query_b, max_tokens=1)).num_cached_tokens == 2000
    reply = [6000 + i for i in range(100)]
    third = serve(scheduler, make_request("r3", system + query_a + reply + query_c, max_tokens=1))
    assert third.num_cached_tokens == hit


@covers("S3.8", "S3.9", "S7.7")
def test_a_full_hit_computes_one_token_in_a_private_copy(make_scheduler: Make):
    scheduler = make_scheduler(max_batched_tokens=4096)
    serve(scheduler, make_request("first", 2496, max_tokens=1))
    assert len(scheduler.index.lookup(list(range(2496)))) * 16 == 2496, "the lookup reports all of it as reusable"
    evictions = scheduler.counters.evictions
    scheduler.add(make_request("again", 2496, max_tokens=8))
    step = scheduler.schedule()
    again = scheduler.requests["again"]
    (chunk,) = step.prefills
    assert (chunk.start, chunk.num_tokens, chunk.samples) == (2495, 1, True)
    assert step.copies == [BlockCopy(scheduler.index.lookup(list(range(2496)))[-1], again.block_ids[-1], 15)]
    assert step.cached_tokens == again.num_cached_tokens == 2495
    assert step.prefill_tokens == 1
    scheduler.check_invariants()
    scheduler.commit(step, [9], 0)
    scheduler.check_invariants()
    assert again.output_token_ids == [9]
    assert scheduler.counters.evictions == evictions


@covers("S3.10")
def test_what_a_full_hit_writes_to_is_its_own_and_its_source_is_held_until_the_copy_is_done(make_scheduler: Make):
    scheduler = make_scheduler()
    first = make_request("first", 32, max_tokens=100)
    scheduler.add(first)
    run_step(scheduler)
    scheduler.add(make_request("again", 32, max_tokens=100))
    step = scheduler.schedule()
    again = scheduler.requests["again"]
    assert again.block_ids[0] == first.block_ids[0]
    assert again.block_ids[1] != first.block_ids[1]
    assert scheduler.pool.ref_count(again.block_ids[1]) == 1
    assert scheduler.pool.ref_count(first.block_ids[1]) == 2
    scheduler.commit(step, [7, 8], 0)
    adopted = again.block_ids[1] == first.block_ids[1]
    assert scheduler.pool.ref_count(first.block_ids[1]) == 1 + adopted
    assert adopted == scheduler.index.adopts_twins
    scheduler.finish(again, FinishReason.STOP)
    assert scheduler.census().reclaimable == 0, "its copy holds what another block already stands for"
    scheduler.check_invariants()


def test_without_a_block_to_spare_a_full_hit_computes_its_last_block(make_scheduler: Make):
    scheduler = make_scheduler(kv_blocks=2)
    serve(scheduler, make_request("first", 32, max_tokens=1))
    scheduler.add(make_request("again", 32, max_tokens=1))
    step = run_step(scheduler)
    assert not step.copies
    assert [(chunk.start, chunk.num_tokens) for chunk in step.prefills] == [(16, 16)]


def test_a_full_hit_of_one_token_blocks_needs_no_copy(make_scheduler: Make):
    scheduler = make_scheduler(block_size=1)
    serve(scheduler, make_request("first", 10, max_tokens=1))
    scheduler.add(make_request("again", 10, max_tokens=1))
    step = run_step(scheduler)
    assert (step.copies, step.cached_tokens, step.prefill_tokens) == ([], 9, 1)


@covers("S9.2")
def test_matched_blocks_are_not_allocated(make_scheduler: Make):
    scheduler = make_scheduler(max_batched_tokens=4096)
    serve(scheduler, make_request("first", 2500, max_tokens=1))
    allocations = scheduler.pool.allocations
    serve(scheduler, make_request("second", list(range(2500)) + list(range(9000, 9500)), max_tokens=1))
    assert scheduler.pool.allocations - allocations == 188 - 156


@covers("S3.4")
def test_tenants_do_not_share(make_scheduler: Make):
    scheduler = make_scheduler(max_batched_tokens=4096)
    serve(scheduler, make_request("a", 2500, salt="model_shared", max_tokens=1))
    assert serve(scheduler, make_request("b", 2500, salt="tenant_isolated", max_tokens=1)).num_cached_tokens == 0
    assert serve(scheduler, make_request("c", 2500, salt="model_shared", max_tokens=1)).num_cached_tokens == 2496


@covers("S3.3")
def test_reloaded_weights_leave_no_stale_hit(make_scheduler: Make):
    scheduler = make_scheduler()
    serve(scheduler, make_request("before", 64, max_tokens=1))
    running = make_request("running", 64, max_tokens=100, first=500)
    scheduler.add(running)
    run_step(scheduler)
    assert scheduler.set_scope(CacheScope("reloaded")) == 4
    assert serve_beside(scheduler, "again", 64) == 0
    scheduler.finish(running, FinishReason.STOP)
    assert serve_beside(scheduler, "running-again", 64, first=500) == 0
    assert serve_beside(scheduler, "third", 64) == 63, "what was computed since then may be hit"


def serve_beside(scheduler, name: str, prompt: int, first: int = 0) -> int:
    request = make_request(name, prompt, max_tokens=1, first=first)
    scheduler.add(request)
    while request.state is not RequestState.FINISHED:
        run_step(scheduler)
    return request.num_cached_tokens


def test_the_prefix_cache_can_be_switched_off_on_and_reset(make_scheduler: Make):
    scheduler = make_scheduler()
    serve(scheduler, make_request("a", 64, max_tokens=1))
    scheduler.set_prefix_cache(False)
    assert not scheduler.config.enable_prefix_cache
    assert serve_beside(scheduler, "b", 64) == 0
    scheduler.set_prefix_cache(True)
    assert serve_beside(scheduler, "c", 64) == 63
    assert scheduler.reset_prefix_cache() == 4
    assert serve_beside(scheduler, "d", 64) == 0
    assert scheduler.counters[2:] == (64 * 3, 63)


def test_two_prompts_that_are_computed_side_by_side_keep_one_cached_copy(make_scheduler: Make):
    scheduler = make_scheduler()
    for name in ("a", "b"):
        scheduler.add(make_request(name, 64, max_tokens=1))
    run_step(scheduler)
    assert scheduler.census() == BlockCensus(active=0, reclaimable=4, free=4096 - 4)


def test_a_prompt_starts_only_when_all_of_it_fits_beside_what_was_promised(make_scheduler: Make):
    """Or two half-computed prompts would hold the pool between them and neither could go on."""
    scheduler = make_scheduler(kv_blocks=10, max_batched_tokens=16)
    first, second = make_request("first", 96, max_tokens=1), make_request("second", 80, max_tokens=1, first=1000)
    scheduler.add(first)
    scheduler.add(second)
    step = run_step(scheduler)
    assert [one.reason for one in step.deferred] == [DeferralReason.PREFILL_AHEAD]
    scheduler.set_limits(max_batched_tokens=64)
    step = run_step(scheduler)
    assert [(chunk.request, chunk.num_tokens) for chunk in step.prefills] == [(first, 64)]
    scheduler.set_limits(max_batched_tokens=200)
    step = run_step(scheduler)
    assert [(one.request, one.reason, one.available) for one in step.deferred] == [(second, DeferralReason.BLOCKS, 4)]
    assert [(chunk.request, chunk.num_tokens) for chunk in run_step(scheduler).prefills] == [(second, 80)]


def test_nobody_overtakes_a_prompt_that_waits_for_its_blocks(make_scheduler: Make):
    """A decode older than the half-computed prompt took what was promised to it; a short prompt would still fit."""
    scheduler = make_scheduler(kv_blocks=8, block_size=4, max_batched_tokens=5)
    start_decodes(scheduler, 1, prompt=4, max_tokens=20)
    prompt, short = make_request("prompt", 20, max_tokens=1), make_request("short", 4, max_tokens=1, first=500)
    scheduler.add(prompt)
    run_step(scheduler)
    scheduler.set_limits(max_batched_tokens=1)
    run_steps(scheduler, 8)
    scheduler.add(short)
    scheduler.set_limits(max_batched_tokens=100)
    step = run_step(scheduler)
    assert scheduler.census().active == 5
    assert [(one.request, one.reason, one.available) for one in step.deferred] == [
        (prompt, DeferralReason.BLOCKS, 3),
        (short, DeferralReason.BLOCKS, 0),
    ]
    for _ in run_until_idle(scheduler):
        pass
    assert prompt.num_preemptions == 0


def test_reclaimable_hits_count_as_need(make_scheduler: Make):
    """Four of the eight blocks are a hit, but three others are in use: a fifth one cannot be had beside them."""
    scheduler = make_scheduler(kv_blocks=8)
    serve(scheduler, make_request("first", 64, max_tokens=1))
    scheduler.add(make_request("busy", 48, max_tokens=1000 // 16, first=1000))
    run_step(scheduler)
    assert scheduler.census() == BlockCensus(active=3, reclaimable=4, free=1)
    request = make_request("hit", list(range(64)) + list(range(2000, 2032)), max_tokens=1)
    scheduler.add(request)
    step = run_step(scheduler)
    assert [(one.request, one.reason) for one in step.deferred] == [(request, DeferralReason.BLOCKS)]
    for _ in run_until_idle(scheduler):
        pass
    assert request.num_cached_tokens > 0


def test_a_decode_without_a_block_preempts_the_youngest_and_the_oldest_goes_on(make_scheduler: Make):
    scheduler = make_scheduler(kv_blocks=3, block_size=4)
    requests = [make_request(name, 4, max_tokens=8, first=100 * i) for i, name in enumerate("abc")]
    for request in requests:
        scheduler.add(request)
    run_step(scheduler)
    step = run_step(scheduler)
    oldest, middle, youngest = requests
    assert step.preempted == [youngest, middle]
    assert [one.request for one in step.decodes] == [oldest]
    assert [one.request for one in step.deferred] == [middle, youngest], "in order of arrival, at the head of the queue"
    assert {one.reason for one in step.deferred} == {DeferralReason.BLOCKS}
    assert (middle.state, middle.block_ids, middle.num_computed_tokens) == (RequestState.PREEMPTED, [], 0)
    assert scheduler.counters.preemptions == 2
    for _ in run_until_idle(scheduler):
        pass
    assert oldest.num_preemptions == 0
    assert {request.finish_reason for request in requests} == {FinishReason.LENGTH}
    assert [len(request.output_token_ids) for request in requests] == [8] * 3


def test_the_requester_itself_gives_way_when_it_is_the_youngest(make_scheduler: Make):
    scheduler = make_scheduler(kv_blocks=3, block_size=4)
    old, young = make_request("old", 7, max_tokens=5), make_request("young", 4, max_tokens=8, first=100)
    scheduler.add(old)
    scheduler.add(young)
    run_step(scheduler)
    step = run_step(scheduler)
    assert step.preempted == [young]
    assert [one.request for one in step.decodes] == [old]


def test_a_preempted_request_comes_back_as_a_prompt_of_everything_it_had(make_scheduler: Make):
    scheduler = make_scheduler(enable_prefix_cache=False)
    (request,) = start_decodes(scheduler, 1, prompt=30)
    run_steps(scheduler, 5)
    assert request.num_computed_tokens == 35
    scheduler._preempt(request, scheduler.schedule())
    scheduler._in_flight = None
    step = scheduler.schedule()
    assert [(chunk.start, chunk.num_tokens, chunk.samples) for chunk in step.prefills] == [(0, 36, True)]
    assert (step.recomputed_tokens, step.prefill_tokens, step.cached_tokens) == (35, 1, 0)
    scheduler.commit(step, [3], 0)
    assert (request.num_computed_tokens, len(request.output_token_ids)) == (36, 7)
    assert request.is_decoding


def test_a_preempted_request_hits_its_own_blocks_when_they_are_still_there(make_scheduler: Make):
    scheduler = make_scheduler()
    (request,) = start_decodes(scheduler, 1, prompt=30)
    run_steps(scheduler, 5)
    scheduler._preempt(request, scheduler.schedule())
    scheduler._in_flight = None
    step = scheduler.schedule()
    assert [(chunk.start, chunk.num_tokens) for chunk in step.prefills] == [(32, 4)]
    assert (step.recomputed_tokens, step.prefill_tokens) == (3, 1)
    assert step.cached_tokens == 0, "hits are counted at the first admission only"
    assert request.num_cached_tokens == 0
    assert scheduler.counters.prefix_query_tokens == 30


def test_a_half_computed_prompt_is_never_run_as_a_decode(make_scheduler: Make):
    """A budget below the number of decodes must not turn a chunk negative or a prompt into a decode."""
    scheduler = make_scheduler(max_batched_tokens=64)
    start_decodes(scheduler, 20)
    prompt = make_request("prompt", 200)
    scheduler.add(prompt)
    run_step(scheduler)
    scheduler.set_limits(max_batched_tokens=8)
    for _ in range(5):
        step = run_step(scheduler)
        assert len(step.decodes) == 8
        assert prompt not in [one.request for one in step.decodes]
        assert prompt in [one.request for one in step.deferred]
    assert prompt.deferral == DeferralReason.BUDGET
    assert prompt.deferred_steps == 5
