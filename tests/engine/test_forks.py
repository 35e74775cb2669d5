"""Several answers to one prompt: computed once, shared by reference, copied where they part."""

import pytest

from engine.errors import RequestRejected
from engine.prefix_cache import CacheScope
from engine.request import FinishReason, Request, RequestState, choice_seed
from engine.scheduler import Scheduler
from engine.step import ScheduledStep, plan_batch
from probes.records import BlockCensus, DeferralReason
from tests.engine.builders import make_request, make_scheduler, run_step, run_until_idle, start_decodes
from tests.engine.world import World

BRANCHES = (11, 22, 33, 44)


def make_choices(count: int, prompt: int, *, max_tokens: int = 8, first: int = 0) -> list[Request]:
    return [make_request(f"choice-{i}", prompt, max_tokens=max_tokens, first=first) for i in range(count)]


def start(scheduler: Scheduler, count: int, prompt: int, **more: int) -> list[Request]:
    """A group that has just computed its prompt and drawn its first tokens."""
    group = make_choices(count, prompt, **more)
    scheduler.add(group[0], group[1:])
    branch(scheduler, group)
    return group


def branch(scheduler: Scheduler, group: list[Request]) -> ScheduledStep:
    """A step in which each choice draws a token of its own."""
    return run_step(scheduler, lambda request: BRANCHES[group.index(request)] if request in group else 9)


def test_the_prompt_is_computed_once_and_every_choice_draws_from_its_last_row():
    scheduler = make_scheduler()
    group = make_choices(3, 40)
    scheduler.add(group[0], group[1:])
    assert (scheduler.num_waiting, scheduler.num_forking) == (1, 2)
    step = scheduler.schedule()
    plan = plan_batch(step, 16)
    assert (step.prefill_tokens, len(plan.token_ids)) == (40, 40)
    assert plan.sample_rows == [39, 39, 39]
    assert plan.sample_requests == group
    assert scheduler.commit(step, [11, 22, 33], 5) == group
    assert [request.output_token_ids for request in group] == [[11], [22], [33]]
    assert all(request.state is RequestState.RUNNING and request.is_decoding for request in group)
    assert all(request.first_token_ns == 5 for request in group)
    scheduler.check_invariants()


def test_full_blocks_are_shared_and_the_half_full_one_is_copied():
    scheduler = make_scheduler()
    allocations = scheduler.pool.allocations
    leader, *siblings = group = start(scheduler, 3, 40)
    tables = [request.block_ids for request in group]
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert [scheduler.pool.ref_count(block_id) for block_id in tables[0]] == [3, 3, 3]
    assert scheduler.pool.allocations - allocations == 3 + 2, "the prompt's blocks, and one for each sibling"
    step = branch(scheduler, group)
    assert [(copy.source, copy.target, copy.num_tokens) for copy in step.copies] == [
        (leader.block_ids[2], sibling.block_ids[2], 8) for sibling in siblings
    ]
    assert scheduler.pool.ref_count(leader.block_ids[2]) == 1
    assert len({request.block_ids[2] for request in group}) == 3
    assert not branch(scheduler, group).copies


def test_a_prompt_of_full_blocks_only_needs_no_copy():
    scheduler = make_scheduler()
    group = start(scheduler, 3, 32)
    assert scheduler.census().active == 2 + 2
    step = branch(scheduler, group)
    assert not step.copies
    assert scheduler.census().active == 2 + 3


@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 40])
def test_one_token_each_is_one_step(prompt: int):
    """The leader ends in the very step that computes the prompt; its siblings still have their tokens of it."""
    scheduler = make_scheduler()
    group = start(scheduler, 3, prompt, max_tokens=1)
    assert [request.finish_reason for request in group] == [FinishReason.LENGTH] * 3
    assert [request.output_token_ids for request in group] == [[11], [22], [33]]
    assert not scheduler.has_work
    assert scheduler.census().active == 0


def test_branches_stay_apart():
    scheduler = make_scheduler(enable_prefix_cache=False)
    group = start(scheduler, 4, 37, max_tokens=50)
    for _ in run_until_idle(scheduler):
        pass
    assert [len(request.output_token_ids) for request in group] == [50] * 4
    assert [request.num_cached_tokens for request in group] == [0] * 4
    assert scheduler.census() == BlockCensus(active=0, reclaimable=0, free=4096)


@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_what_a_branch_attends_to_is_its_own(block_size: int):
    """Over a shadow of the KV memory: every position that is read holds what this branch wrote or what all share."""
    world = World(block_size=block_size, kv_blocks=200, max_batched_tokens=30, max_sequences=20, enabled=True)
    tokens = iter(range(10_000))
    for prompt in ([1, 2, 3, 4] * 5, [1, 2, 3, 4] * 5 + [5], [7]):
        world.add(prompt, 12, choices=4)
    while world.schedule():
        world.check_books()
        world.commit(lambda: next(tokens))
    assert world.forks == 9
    assert len({tuple(request.output_token_ids) for request in world.accepted}) == 12
    assert world.scheduler.census().active == 0


def test_a_chunked_prompt_forks_at_its_end():
    scheduler = make_scheduler(max_batched_tokens=16)
    group = make_choices(2, 40)
    scheduler.add(group[0], group[1:])
    for _ in range(2):
        assert not run_step(scheduler).forks
        assert group[1].state is RequestState.FORKING
    assert [one.request for one in run_step(scheduler).forks] == [group[1]]


def test_nobody_younger_starts_before_the_choices_of_a_prompt_do():
    scheduler = make_scheduler()
    group = make_choices(2, 40)
    scheduler.add(group[0], group[1:])
    later = make_request("later", 8, first=500)
    scheduler.add(later)
    step = branch(scheduler, group)
    assert [(one.request, one.reason) for one in step.deferred] == [(later, DeferralReason.FORKS)]
    step = branch(scheduler, group)
    assert [one.request for one in step.decodes + step.prefills] == [*group, later]


def test_without_slots_for_all_the_rest_starts_on_its_own():
    scheduler = make_scheduler(max_sequences=2)
    group = start(scheduler, 4, 40, max_tokens=4)
    assert [request.state for request in group] == [RequestState.RUNNING] * 2 + [RequestState.WAITING] * 2
    for _ in run_until_idle(scheduler):
        pass
    assert all(request.finish_reason is FinishReason.LENGTH for request in group)
    assert [request.num_cached_tokens for request in group] == [0, 0, 32, 32]


def test_without_a_block_for_a_branch_it_starts_on_its_own():
    scheduler = make_scheduler(kv_blocks=3, enable_prefix_cache=False)
    group = start(scheduler, 2, 40, max_tokens=4)
    assert group[1].state is RequestState.WAITING
    for _ in run_until_idle(scheduler):
        pass
    assert all(request.finish_reason is FinishReason.LENGTH for request in group)


def test_preempting_one_branch_leaves_the_others():
    scheduler = make_scheduler(kv_blocks=7, enable_prefix_cache=False)
    oldest, middle, youngest = group = start(scheduler, 3, 40, max_tokens=30)
    preempted: list[Request] = []
    while not preempted:
        preempted = branch(scheduler, group).preempted
    assert preempted == [youngest]
    assert (oldest.state, middle.state) == (RequestState.RUNNING, RequestState.RUNNING)
    assert youngest.output_token_ids[0] == 33
    for _ in run_until_idle(scheduler):
        pass
    assert [len(request.output_token_ids) for request in group] == [30] * 3
    assert oldest.num_preemptions == 0
    assert youngest.max_computed_tokens > 40


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_aborting_one_of_a_waiting_group_leaves_the_others(gone: int):
    scheduler = make_scheduler(max_sequences=1)
    (busy,) = start_decodes(scheduler, 1)
    group = make_choices(3, 40, max_tokens=2)
    later = make_request("later", 8, first=900, max_tokens=2)
    scheduler.add(group[0], group[1:])
    scheduler.add(later)
    run_step(scheduler)
    scheduler.abort(f"choice-{gone}")
    scheduler.check_invariants()
    assert [request.request_id for request in scheduler._waiting][-1] == "later", "an heir takes the leader's place"
    scheduler.abort(busy.request_id)
    scheduler.set_limits(max_sequences=8)
    for _ in run_until_idle(scheduler):
        pass
    left = [request for request in group if request is not group[gone]]
    assert [request.finish_reason for request in left] == [FinishReason.LENGTH] * 2
    assert not group[gone].output_token_ids
    assert scheduler.census().active == 0


@pytest.mark.parametrize("gone", [0, 1])
def test_aborting_one_while_the_prompt_is_computed_leaves_the_others(gone: int):
    scheduler = make_scheduler()
    group = make_choices(3, 40, max_tokens=2)
    scheduler.add(group[0], group[1:])
    step = scheduler.schedule()
    scheduler.abort(f"choice-{gone}")
    emitted = scheduler.commit(step, [11, 22, 33], 0)
    scheduler.check_invariants()
    assert emitted == ([] if gone == 0 else [group[0], group[2]])
    for _ in run_until_idle(scheduler):
        pass
    assert [request.finish_reason for i, request in enumerate(group) if i != gone] == [FinishReason.LENGTH] * 2
    assert scheduler.census().active == 0


def test_a_branch_that_ends_before_its_copy_gives_everything_back():
    scheduler = make_scheduler(enable_prefix_cache=False)
    group = start(scheduler, 3, 40)
    for request in group[1:]:
        scheduler.abort(request.request_id)
    scheduler.check_invariants()
    assert scheduler.census().active == 3
    assert not branch(scheduler, group).copies


def test_a_failed_step_ends_the_leader_and_the_next_choice_computes_the_prompt():
    scheduler = make_scheduler()
    group = make_choices(3, 40, max_tokens=2)
    scheduler.add(group[0], group[1:])
    assert scheduler.fail(scheduler.schedule()) == [group[0]]
    scheduler.check_invariants()
    for _ in run_until_idle(scheduler):
        pass
    assert [request.finish_reason for request in group] == [FinishReason.ERROR] + [FinishReason.LENGTH] * 2


def test_a_new_scope_does_not_let_a_branch_pass_its_old_kv_for_new():
    scheduler = make_scheduler(block_size=4)
    group = make_choices(2, 8, max_tokens=8)
    scheduler.add(group[0], group[1:])
    step = scheduler.schedule()
    scheduler.set_scope(CacheScope("reloaded"))
    scheduler.commit(step, [11, 22], 0)
    for _ in run_until_idle(scheduler):
        pass
    assert scheduler.census().reclaimable == 0


def test_a_group_is_taken_as_a_whole_or_not_at_all():
    scheduler = make_scheduler()
    group = make_choices(3, 40)
    group[2].request_id = "choice-0"
    with pytest.raises(RequestRejected, match="already in use"):
        scheduler.add(group[0], group[1:])
    assert not scheduler.has_work
    with pytest.raises(ValueError, match="do not share a prompt"):
        scheduler.add(make_request("a", 3), [make_request("b", 4)])
    assert not scheduler.has_work


def test_seeds_of_choices_are_repeatable_and_unrelated():
    assert choice_seed(None, 3) is None
    assert choice_seed(7, 0) == 7
    seeds = [choice_seed(seed, choice) for seed in range(50) for choice in range(16)]
    assert len(set(seeds)) == len(seeds), "neighbouring seeds share no choice"
    assert choice_seed(7, 3) == choice_seed(7, 3)
