"""Who gives way, what it costs, that somebody always finishes, and that nothing leaks on the way."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import FinishReason, Request, RequestState
from engine.scheduler import Scheduler
from probes.records import BlockCensus
from tests.engine.builders import make_request, make_scheduler, run_step, start_decodes
from tests.requirements import covers


def test_victims_go_from_the_youngest_to_the_oldest():
    scheduler = make_scheduler(kv_blocks=4, block_size=4, enable_prefix_cache=False)
    requests = start_decodes(scheduler, 4, prompt=3, max_tokens=13)
    order: list[Request] = []
    while len(order) < 3:
        order += run_step(scheduler).preempted
    assert order == requests[:0:-1]
    assert requests[0].num_preemptions == 0


def test_a_half_computed_prompt_is_the_youngest_and_goes_first():
    scheduler = make_scheduler(kv_blocks=6, block_size=4, max_batched_tokens=5, enable_prefix_cache=False)
    (decode,) = start_decodes(scheduler, 1, prompt=3, max_tokens=20)
    prompt = make_request("prompt", 20, max_tokens=1)
    scheduler.add(prompt)
    scheduler.set_limits(max_batched_tokens=2)
    steps = [run_step(scheduler) for _ in range(18)]
    assert [request for step in steps for request in step.preempted][:1] == [prompt]
    assert prompt.num_computed_tokens < 20
    assert decode.num_preemptions == 0


def test_recomputed_tokens_are_told_from_first_time_ones():
    scheduler = make_scheduler(kv_blocks=4, block_size=4, enable_prefix_cache=False)
    requests = start_decodes(scheduler, 2, prompt=4, max_tokens=9)
    prefilled = recomputed = 0
    while scheduler.has_work:
        step = run_step(scheduler)
        prefilled, recomputed = prefilled + step.prefill_tokens, recomputed + step.recomputed_tokens
    young = requests[1]
    assert young.num_preemptions == 1
    # It had 4 + k tokens computed when it went; the newest one of its output had never been.
    assert recomputed == 4 + 4
    assert prefilled == 1
    assert [len(request.output_token_ids) for request in requests] == [9, 9]


workloads = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 3)),  # prompt, output, choices
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(workloads, st.integers(60, 90), st.integers(1, 20), st.booleans())
def test_some_request_always_finishes(workload: list[tuple[int, int, int]], slots: int, budget: int, cache: bool):
    """No livelock: the oldest one is never preempted for another, so it is done after as many turns as it has tokens."""
    scheduler = make_scheduler(kv_blocks=slots // 2, block_size=2, max_batched_tokens=budget, enable_prefix_cache=cache)
    for i, (prompt, output, choices) in enumerate(workload):
        group = [make_request(f"{i}/{c}", prompt, max_tokens=output) for c in range(choices)]
        scheduler.add(group[0], group[1:])
    left, since_last = len(scheduler.requests), 0
    turns = -(-left // budget) + 1
    while scheduler.has_work:
        oldest = min(scheduler.requests.values(), key=lambda request: request.sequence_number)
        before = oldest.num_preemptions
        commit_one(scheduler)
        assert oldest.num_preemptions == before, "the oldest gave way"
        since_last = 0 if len(scheduler.requests) < left else since_last + 1
        left = len(scheduler.requests)
        assert since_last <= turns * (40 + 20 + 1)
    scheduler.check_invariants()


def commit_one(scheduler: Scheduler, token: int = 9) -> None:
    step = scheduler.schedule()
    assert not step.is_empty
    for request in scheduler.commit(step, [token] * len(step.sampled), 0):
        if len(request.output_token_ids) >= request.params.max_tokens:
            scheduler.finish(request, FinishReason.LENGTH)


def test_who_gives_way_in_its_own_turn_costs_no_step():
    """Budget for one decode, and it is the turn of the youngest, which finds no block: the other one runs instead."""
    scheduler = make_scheduler(kv_blocks=4, block_size=4, enable_prefix_cache=False)
    old, young = start_decodes(scheduler, 2, prompt=7, max_tokens=8)
    run_step(scheduler)
    scheduler.set_limits(max_batched_tokens=1)
    steps = [scheduler.schedule()]
    while not steps[-1].preempted:
        scheduler.commit(steps[-1], [9], 0)
        steps.append(scheduler.schedule())
    assert steps[-1].preempted == [young]
    assert [one.request for one in steps[-1].decodes] == [old]


@covers("S3.23", "S3.24")
def test_ten_thousand_requests_with_cancels_and_failures_leave_nothing_behind():
    """The pool is made once: as many blocks afterwards as before, none of them held, whatever happened in between."""
    draw = random.Random(20)
    scheduler = make_scheduler(kv_blocks=80, block_size=4, max_batched_tokens=64, max_sequences=24, max_model_len=200)
    table = scheduler.pool._held
    ends: dict[FinishReason | None, int] = {}
    offered = steps = 0
    seen: list[Request] = []
    while offered < 10_000 or scheduler.has_work:
        while offered < 10_000 and len(scheduler.requests) < 40:
            prefix = list(range(draw.choice((0, 16, 32)))) or [draw.randrange(1000)]
            prompt = prefix + [draw.randrange(1000) for _ in range(draw.randrange(24))]
            group = [
                make_request(f"r{offered + c}", prompt, max_tokens=1 + offered % 23)
                for c in range(draw.choice((1, 1, 1, 3)))
            ]
            scheduler.add(group[0], group[1:])
            offered += len(group)
            seen += group
        step = scheduler.schedule()
        steps += 1
        if draw.random() < 0.05:
            scheduler.abort(draw.choice(list(scheduler.requests)))
        if step.is_empty:
            continue
        if draw.random() < 0.01:
            scheduler.fail(step)
            continue
        for request in scheduler.commit(step, [draw.randrange(50) for _ in step.sampled], 0):
            if len(request.output_token_ids) >= request.params.max_tokens:
                scheduler.finish(request, FinishReason.LENGTH)
        if steps % 500 == 0:
            scheduler.check_invariants()
    scheduler.check_invariants()
    for request in seen:
        assert request.state is RequestState.FINISHED
        ends[request.finish_reason] = ends.get(request.finish_reason, 0) + 1
    assert min(ends[FinishReason.LENGTH], ends[FinishReason.ABORT], ends[FinishReason.ERROR]) > 100, ends
    assert scheduler.counters.preemptions > 100
    assert scheduler.census().active == 0
    assert not scheduler._prefixes._keys
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_forking) == (0, 0, 0)
    scheduler.reset_prefix_cache()
    assert scheduler.census() == BlockCensus(active=0, reclaimable=0, free=80)
    assert scheduler.index.num_blocks == 0
    assert scheduler.pool._held is table, "nothing was allocated after the start"
    assert table == [0] * 80
