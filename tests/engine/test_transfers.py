"""Prompts that a prefill instance computes: nothing decodes before its KV is here, and nothing is held meanwhile."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from engine.request import FinishReason, Request, RequestState
from tests.engine.builders import make_request, make_scheduler
from tests.engine.test_scheduler_machine import PATTERNS, TOKENS, SchedulerMachine
from tests.engine.world import World
from tests.requirements import covers

PROMPT = list(range(100, 140))


def make_world(prefix_index: str = "hash_chain", kv_blocks: int = 40, enabled: bool = True) -> World:
    return World(
        block_size=4,
        kv_blocks=kv_blocks,
        max_batched_tokens=16,
        max_sequences=8,
        enabled=enabled,
        prefix_index=prefix_index,
    )


def begin(world: World, prompt: list[int] = PROMPT, **asked: Any) -> Request:
    world.add_remote(prompt, **({"max_tokens": 3} | asked))
    return world.accepted[-1]


@covers("S6.8")
def test_a_request_is_in_no_step_before_its_kv_has_arrived():
    """Its first token is there already: that alone starts no decode."""
    world = make_world()
    request = begin(world)
    world.first_token("r0", 7)
    assert not world.schedule(), "there is nothing that could run"
    assert (request.state, request.output_token_ids) == (RequestState.TRANSFERRING, [7])
    assert world.scheduler.census().active == 0, "it holds nothing while it waits"
    world.end_transfer("r0", arrived=True)
    assert world.schedule()
    assert world.step is not None
    (decode,) = world.step.decodes
    assert (decode.request, decode.start, world.step.prefills) == (request, len(PROMPT), [])
    assert len(world.step.imports) == 10


def test_the_first_step_of_a_received_prompt_computes_one_token_and_counts_no_prefill():
    world = make_world()
    begin(world)
    world.first_token("r0", 7)
    world.end_transfer("r0", arrived=True)
    world.schedule()
    step = world.step
    assert step is not None
    assert (step.prefill_tokens, step.recomputed_tokens, step.cached_tokens) == (0, 0, 0)
    assert (step.received_tokens, step.decode_context_tokens) == (len(PROMPT), len(PROMPT) + 1)


def test_received_blocks_serve_later_prompts():
    world = make_world()
    request = begin(world)
    world.end_transfer("r0", arrived=True)
    world.drain(lambda: 5)
    assert request.num_cached_tokens == 0
    world.add(PROMPT, max_tokens=1)
    world.schedule()
    assert world.accepted[-1].num_cached_tokens >= 36


def test_what_is_cached_is_not_asked_for():
    world = make_world()
    world.add(PROMPT, max_tokens=1)
    world.drain(lambda: 5)
    assert world.scheduler.transfers.begin(_queued(world, [*PROMPT, *range(20)]), 1, True) == 10


def test_a_prompt_with_little_to_compute_stays_here():
    world = make_world()
    world.add(PROMPT, max_tokens=1)
    world.drain(lambda: 5)
    world.add_remote([*PROMPT, 1, 2], max_tokens=1, min_tokens=8)
    assert not world.on_the_way
    world.drain(lambda: 5)


def test_without_the_first_token_the_last_prompt_token_is_computed_here():
    """Choices of one prompt draw from the same logits, so the decode side computes those."""
    world = make_world()
    begin(world, choices=3)
    world.first_token("r0", 7)
    assert world.accepted[0].output_token_ids == []
    world.end_transfer("r0", arrived=True)
    world.schedule()
    assert world.step is not None
    (chunk,) = world.step.prefills
    assert (chunk.start, chunk.num_tokens, len(world.step.forks)) == (len(PROMPT) - 1, 1, 2)
    world.commit(lambda: 5)
    world.drain(lambda: 5)


def test_a_failed_transfer_falls_back_to_computing_here():
    world = make_world()
    request = begin(world)
    world.first_token("r0", 7)
    world.end_transfer("r0", arrived=False)
    world.drain(lambda: 5)
    assert request.output_token_ids == [7, 5, 5]
    assert world.imported_blocks == 0


def test_a_cached_prefix_that_is_evicted_meanwhile_is_computed_here():
    """What arrived goes on from blocks that are gone: without them it is of no use."""
    world = make_world()
    world.add(PROMPT, max_tokens=1)
    world.drain(lambda: 5)
    begin(world, [*PROMPT, *range(12)])
    world.scheduler.reset_prefix_cache()
    world.end_transfer(world.accepted[-1].request_id, arrived=True)
    world.drain(lambda: 5)
    assert world.imported_blocks == 0


def test_kv_of_another_scope_is_not_used():
    world = make_world()
    begin(world)
    world.change_scope()
    world.end_transfer("r0", arrived=True)
    world.drain(lambda: 5)
    assert world.imported_blocks == 0


def test_the_first_of_several_choices_may_leave_during_the_transfer():
    """The others compute the prompt here, once."""
    world = make_world()
    begin(world, choices=3)
    world.abort(world.accepted[0])
    world.end_transfer("r0", arrived=True)
    world.drain(lambda: 5)
    assert [one.finish_reason for one in world.accepted[1:]] == [FinishReason.LENGTH] * 2


def test_whoever_comes_back_queues_behind_those_who_started_meanwhile():
    scheduler = make_scheduler(block_size=4)
    slow, quick = make_request("slow", 16), make_request("quick", 16)
    scheduler.add(slow)
    scheduler.transfers.begin(slow, 1, True)
    scheduler.add(quick)
    scheduler.transfers.end("slow", None)
    scheduler.check_invariants()
    assert slow.sequence_number > quick.sequence_number


def _queued(world: World, prompt: list[int]) -> Request:
    world.add(prompt, max_tokens=1)
    return world.accepted[-1]


@covers("S6.8")
class TransferMachine(SchedulerMachine):
    """Random lives again, with transfers that end well, badly, late, or for a request that has gone."""

    @rule(
        pattern=st.sampled_from(PATTERNS),
        length=st.integers(0, 32),
        max_tokens=st.integers(1, 6),
        choices=st.sampled_from((1, 1, 1, 3)),
        min_tokens=st.sampled_from((1, 8)),
    )
    def add_remote(self, pattern: list[int], length: int, max_tokens: int, choices: int, min_tokens: int) -> None:
        self.world.add_remote(pattern[:length], max_tokens, "", choices, min_tokens)

    @precondition(lambda self: self.world.on_the_way)
    @rule(data=st.data(), token=st.sampled_from(TOKENS))
    def first_token(self, data: st.DataObject, token: int) -> None:
        self.world.first_token(data.draw(st.sampled_from(sorted(self.world.on_the_way))), token)

    @precondition(lambda self: self.world.on_the_way)
    @rule(data=st.data(), arrived=st.booleans())
    def end_transfer(self, data: st.DataObject, arrived: bool) -> None:
        self.world.end_transfer(data.draw(st.sampled_from(sorted(self.world.on_the_way))), arrived)


TestTransfers = TransferMachine.TestCase
TestTransfers.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
