"""Budget, chunks, decodes, deferral: who gets which tokens of a step."""

import pytest

from engine.errors import RequestRejected
from engine.request import FinishReason, RequestState
from engine.step import ScheduledStep
from engine.waiting import LISTED_WAITING, NOT_CONSIDERED
from probes.records import DeferralReason
from tests.engine.builders import (
    chunks_of,
    make_request,
    make_scheduler,
    run_step,
    run_steps,
    run_until_idle,
    serve,
    start_decodes,
)
from tests.requirements import covers


def deferrals(step: ScheduledStep) -> list[tuple[str, str, int]]:
    return [(one.request.request_id, one.reason, one.available) for one in step.deferred]


@covers("S1.1")
def test_what_is_in_kv_after_prefill_and_decode():
    scheduler = make_scheduler()
    request = make_request("a", 100)
    scheduler.add(request)
    run_step(scheduler)
    assert (request.num_computed_tokens, len(request.output_token_ids)) == (100, 1)
    run_steps(scheduler, 7)
    assert (request.num_computed_tokens, len(request.output_token_ids)) == (107, 8)


@covers("S2.6", "S2.7", "S2.9", "S2.10", "S7.4")
def test_the_lessons_trace_on_the_real_scheduler():
    scheduler = make_scheduler(max_batched_tokens=512)
    decoders = start_decodes(scheduler, 4)
    emitted = [len(request.output_token_ids) for request in decoders]
    prompt = make_request("prompt", 2048)
    scheduler.add(prompt)
    cached, outputs, steps = [], [], []
    for _ in range(5):
        steps.append(run_step(scheduler))
        cached.append(prompt.num_computed_tokens)
        outputs.append(len(prompt.output_token_ids))
    assert chunks_of(steps, prompt) == [508, 508, 508, 508, 16]
    assert cached == [508, 1016, 1524, 2032, 2048]
    assert [len(step.decodes) for step in steps] == [4] * 5
    assert [step.num_query_tokens for step in steps] == [512, 512, 512, 512, 20]
    assert [step.prefill_tokens for step in steps] == [508, 508, 508, 508, 16]
    assert outputs == [0, 0, 0, 0, 1], "only the last chunk has the logits of the first output token"
    assert [len(request.output_token_ids) - before for request, before in zip(decoders, emitted, strict=True)] == [
        5
    ] * 4
    assert len(run_step(scheduler).decodes) == 5, "and the next step consumes it as a decode"


@covers("S2.13")
def test_equal_token_budgets_are_not_equal_attention():
    scheduler = make_scheduler(max_batched_tokens=512)
    start_decodes(scheduler, 4)
    scheduler.add(make_request("prompt", 2048))
    steps = run_steps(scheduler, 5)
    assert [step.num_query_tokens for step in steps[:4]] == [512] * 4
    assert [step.prefill_attention_pairs for step in steps] == [129_286, 387_350, 645_414, 903_478, 32_648]


@covers("S2.14")
@pytest.mark.parametrize(
    ("budget", "decodes", "history"),
    [(512, 4, [0, 508, 1016, 1524, 2032]), (2048, 0, [0]), (256, 0, None), (512, 0, [0, 512, 1024, 1536])],
)
def test_later_chunks_read_a_longer_history(budget: int, decodes: int, history: list[int] | None):
    scheduler = make_scheduler(max_batched_tokens=budget)
    start_decodes(scheduler, decodes)
    prompt = make_request("prompt", 2048)
    scheduler.add(prompt)
    starts = []
    while not prompt.output_token_ids:
        starts += [chunk.start for chunk in run_step(scheduler).prefills]
    assert history is None or starts == history
    assert sum(starts) == {(512, 4): 5080, (2048, 0): 0, (256, 0): 7168, (512, 0): 3072}[budget, decodes]


@covers("S2.8")
def test_a_broken_assumption_is_planned_again():
    """One decoder ends after the third step: its token goes to the prompt."""
    scheduler = make_scheduler(max_batched_tokens=512)
    decoders = start_decodes(scheduler, 4)
    prompt = make_request("prompt", 2048)
    scheduler.add(prompt)
    steps = run_steps(scheduler, 3)
    scheduler.finish(decoders[0], FinishReason.STOP)
    steps += run_steps(scheduler, 2)
    assert chunks_of(steps, prompt) == [508, 508, 508, 509, 15]


@covers("S2.11", "S9.3")
def test_blocks_are_taken_per_chunk_and_only_full_ones_are_cacheable():
    scheduler = make_scheduler(max_batched_tokens=512, block_size=16)
    start_decodes(scheduler, 4)
    prompt = make_request("prompt", 2048)
    scheduler.add(prompt)
    held, hashed = [], []
    for _ in range(6):
        run_step(scheduler)
        held.append(len(prompt.block_ids))
        hashed.append(prompt.num_hashed_blocks)
    assert held == [32, 64, 96, 127, 128, 129], "the 129th for the first output token, when it is fed back"
    assert hashed[:5] == [31, 63, 95, 127, 128]


@covers("S2.12")
def test_budget_left_over_goes_to_the_next_prompt():
    scheduler = make_scheduler(max_batched_tokens=512)
    start_decodes(scheduler, 4)
    first, second = make_request("first", 300), make_request("second", 300, first=1000)
    scheduler.add(first)
    scheduler.add(second)
    steps = run_steps(scheduler, 2)
    assert (chunks_of(steps, first), chunks_of(steps, second)) == ([300], [208, 92])


@covers("S2.20")
def test_without_chunking_a_long_prompt_is_one_step_that_all_decodes_share():
    scheduler = make_scheduler(max_batched_tokens=8192)
    decoders = start_decodes(scheduler, 4)
    scheduler.add(make_request("prompt", 4096))
    step = run_step(scheduler)
    assert step.prefill_tokens == 4096
    assert [one.request for one in step.decodes] == decoders


@covers("S2.21", "S8.5")
def test_decodes_that_take_the_whole_budget_defer_the_prompt_with_the_reason():
    scheduler = make_scheduler(max_batched_tokens=1024)
    decoders = start_decodes(scheduler, 1024)
    prompt = make_request("prompt", 100)
    scheduler.add(prompt)
    step = run_step(scheduler)
    assert [one.request for one in step.decodes] == decoders
    assert not step.prefills
    assert deferrals(step) == [("prompt", "budget_exhausted_by_decodes", 0)]
    scheduler.finish(decoders[0], FinishReason.STOP)
    step = run_step(scheduler)
    assert (len(step.decodes), chunks_of([step], prompt)) == (1023, [1])


@covers("S2.22")
def test_more_decodes_than_budget_take_turns():
    scheduler = make_scheduler(max_batched_tokens=1024)
    decoders = start_decodes(scheduler, 600)
    scheduler.set_limits(max_batched_tokens=512)
    prompt = make_request("prompt", 100)
    scheduler.add(prompt)
    step = run_step(scheduler)
    assert [one.request for one in step.decodes] == decoders[:512]
    assert deferrals(step) == [
        *((request.request_id, DeferralReason.BUDGET, 0) for request in decoders[512:]),
        ("prompt", DeferralReason.BUDGET, 0),
    ]
    step = run_step(scheduler)
    assert [one.request for one in step.decodes] == decoders[:424] + decoders[512:], "those passed over come first"
    assert not step.prefills
    assert step.num_deferred == len(step.deferred) == 89
    scheduler.set_limits(max_batched_tokens=2048)
    run_step(scheduler)
    assert all(request.deferral is None and request.deferred_steps == 0 for request in decoders)


def test_taking_turns_leaves_nobody_behind():
    scheduler = make_scheduler(max_batched_tokens=512)
    decoders = start_decodes(scheduler, 10)
    scheduler.set_limits(max_batched_tokens=3)
    counts = [len(request.output_token_ids) for request in decoders]
    run_steps(scheduler, 20)
    assert [len(request.output_token_ids) - count for request, count in zip(decoders, counts, strict=True)] == [6] * 10


@covers("S2.26")
def test_a_deferred_prompt_shows_for_how_long_and_why():
    scheduler = make_scheduler(max_batched_tokens=4)
    decoders = start_decodes(scheduler, 4)
    prompts = [make_request(f"prompt-{i}", 10, first=100 * i) for i in range(LISTED_WAITING + 10)]
    for prompt in prompts:
        scheduler.add(prompt)
    assert scheduler.waiting_by_reason() == {NOT_CONSIDERED: len(prompts)}
    steps = run_steps(scheduler, 3)
    assert (prompts[0].deferred_steps, prompts[0].deferral) == (3, "budget_exhausted_by_decodes")
    assert scheduler.waiting_by_reason() == {"budget_exhausted_by_decodes": len(prompts)}
    assert len(steps[-1].deferred) == LISTED_WAITING
    assert steps[-1].num_deferred == len(prompts)
    scheduler.refresh_deferrals()
    assert {(prompt.deferred_steps, prompt.deferral) for prompt in prompts} == {(3, "budget_exhausted_by_decodes")}
    scheduler.add(make_request("late", 10))
    scheduler.refresh_deferrals()
    assert scheduler.requests["late"].deferral is None
    assert scheduler.waiting_by_reason() == {"budget_exhausted_by_decodes": len(prompts), NOT_CONSIDERED: 1}
    scheduler.finish(decoders[0], FinishReason.STOP)
    run_step(scheduler)
    assert (prompts[0].deferred_steps, prompts[0].deferral) == (0, None)
    assert scheduler.waiting_by_reason() == {"budget_taken_by_earlier_prefill": len(prompts)}


def test_a_prompt_behind_another_prompt_says_so():
    scheduler = make_scheduler(max_batched_tokens=16)
    scheduler.add(make_request("ahead", 40))
    scheduler.add(make_request("behind", 40, first=100))
    assert deferrals(run_step(scheduler)) == [("behind", "budget_taken_by_earlier_prefill", 0)]
    run_step(scheduler)
    step = run_step(scheduler)
    assert [(chunk.request.request_id, chunk.num_tokens) for chunk in step.prefills] == [("ahead", 8), ("behind", 8)]


def test_a_started_prompt_goes_on_before_a_new_one_starts():
    scheduler = make_scheduler(max_batched_tokens=16)
    started = make_request("started", 40)
    scheduler.add(started)
    run_step(scheduler)
    scheduler.set_limits(max_batched_tokens=1)
    start = run_step(scheduler)
    assert chunks_of([start], started) == [1]
    waiting = make_request("waiting", 4, first=100)
    scheduler.add(waiting)
    scheduler.set_limits(max_batched_tokens=30)
    step = run_step(scheduler)
    assert [(chunk.request, chunk.num_tokens) for chunk in step.prefills] == [(started, 23), (waiting, 4)]


def test_sequence_slots_are_a_reason_of_their_own():
    scheduler = make_scheduler(max_sequences=2)
    start_decodes(scheduler, 2)
    scheduler.add(make_request("third", 10))
    step = run_step(scheduler)
    assert deferrals(step) == [("third", "max_sequences", 510)]


def test_fewer_sequence_slots_leave_running_requests_alone():
    scheduler = make_scheduler(max_sequences=4)
    start_decodes(scheduler, 4, max_tokens=10)
    scheduler.set_limits(max_sequences=1)
    scheduler.add(make_request("fifth", 10))
    assert len(run_step(scheduler).decodes) == 4
    for _ in run_until_idle(scheduler):
        pass


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "code", "numbers"),
    [
        ([], 4, "empty_prompt", ["1 token"]),
        ([1, 2**32], 4, "invalid_token_id", ["4294967296", "position 1"]),
        ([1, 2, -1], 4, "invalid_token_id", ["-1", "position 2"]),
        ([1], 0, "invalid_max_tokens", ["got 0"]),
        ([1] * 64, 1, "context_length_exceeded", ["64 tokens", "context of 64"]),
        ([1] * 60, 5, "context_length_exceeded", ["60 prompt tokens", "max_tokens 5", "context of 64", "at most 4"]),
        ([1] * 30, 4, "kv_capacity_exceeded", ["30 prompt tokens", "max_tokens 4", "9 KV blocks of 4", "has 8"]),
    ],
)
def test_what_can_never_be_served_is_rejected_with_the_numbers(
    prompt: list[int], max_tokens: int, code: str, numbers: list[str]
):
    scheduler = make_scheduler(block_size=4, kv_blocks=8, max_model_len=64)
    with pytest.raises(RequestRejected) as caught:
        scheduler.add(make_request("bad", prompt, max_tokens=max_tokens))
    assert caught.value.code == code
    assert caught.value.param in ("prompt", "max_tokens")
    for number in numbers:
        assert number in str(caught.value)
    assert not scheduler.has_work


def test_the_largest_request_that_fits_is_served():
    """30 + 3 - 1 positions are 8 blocks of 4: the last output token is never fed back."""
    scheduler = make_scheduler(block_size=4, kv_blocks=8, max_model_len=64, max_batched_tokens=7)
    request = serve(scheduler, make_request("big", 30, max_tokens=3))
    assert len(request.output_token_ids) == 3
    assert request.num_preemptions == 0


def test_a_live_id_is_not_taken_twice_but_a_finished_one_may_come_again():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 4, max_tokens=1))
    with pytest.raises(RequestRejected, match="'a' is already in use"):
        scheduler.add(make_request("a", 4))
    run_step(scheduler)
    serve(scheduler, make_request("a", 4, max_tokens=1))


def test_abort_in_every_state_gives_the_blocks_back_at_once():
    scheduler = make_scheduler(max_batched_tokens=16, enable_prefix_cache=False)
    (decoding,) = start_decodes(scheduler, 1, prompt=4)
    prefilling, waiting = make_request("prefilling", 40), make_request("waiting", 40)
    scheduler.add(prefilling)
    scheduler.add(waiting)
    run_step(scheduler)
    assert (prefilling.state, waiting.state) == (RequestState.RUNNING, RequestState.WAITING)
    for request in (decoding, prefilling, waiting):
        assert scheduler.abort(request.request_id) is request
        assert (request.state, request.finish_reason, request.block_ids) == (
            RequestState.FINISHED,
            FinishReason.ABORT,
            [],
        )
        scheduler.check_invariants()
    assert scheduler.abort("waiting") is None
    assert scheduler.census().free == scheduler.census().total
    assert not scheduler.has_work


def test_what_is_aborted_during_a_step_is_skipped_by_its_commit():
    scheduler = make_scheduler()
    decoders = start_decodes(scheduler, 3)
    prompt = make_request("prompt", 20)
    scheduler.add(prompt)
    step = scheduler.schedule()
    scheduler.abort("decode-1")
    scheduler.abort("prompt")
    scheduler.check_invariants()
    emitted = scheduler.commit(step, [11, 12, 13, 14], 5)
    assert emitted == [decoders[0], decoders[2]]
    assert [request.output_token_ids[-1] for request in emitted] == [11, 13]
    assert (prompt.output_token_ids, prompt.finish_reason) == ([], FinishReason.ABORT)
    scheduler.check_invariants()


def test_a_step_that_raised_ends_its_own_requests_only():
    scheduler = make_scheduler(max_batched_tokens=16)
    decoders = start_decodes(scheduler, 2)
    prefilling, waiting = make_request("prefilling", 40), make_request("waiting", 8, max_tokens=2)
    scheduler.add(prefilling)
    scheduler.add(waiting)
    step = scheduler.schedule()
    assert scheduler.fail(step) == [*decoders, prefilling]
    assert {request.finish_reason for request in (*decoders, prefilling)} == {FinishReason.ERROR}
    scheduler.check_invariants()
    assert scheduler.census().active == 0
    for _ in run_until_idle(scheduler):
        pass
    assert waiting.finish_reason is FinishReason.LENGTH


def test_the_first_of_two_ends_counts():
    scheduler = make_scheduler()
    request = make_request("a", 4)
    scheduler.add(request)
    scheduler.finish(request, FinishReason.STOP)
    scheduler.finish(request, FinishReason.ABORT)
    assert request.finish_reason is FinishReason.STOP


def test_steps_are_committed_once_and_in_turn():
    scheduler = make_scheduler()
    assert scheduler.schedule().is_empty
    start_decodes(scheduler, 1)
    step = scheduler.schedule()
    with pytest.raises(RuntimeError, match="before the previous step was committed"):
        scheduler.schedule()
    with pytest.raises(ValueError, match="2 token ids for 1 sampled sequences"):
        scheduler.commit(step, [1, 2], 0)
    scheduler.commit(step, [1], 0)
    with pytest.raises(RuntimeError, match="only the latest scheduled step"):
        scheduler.commit(step, [1], 0)
    with pytest.raises(RuntimeError, match="only the latest scheduled step"):
        scheduler.fail(step)


def test_emission_times_are_noted():
    scheduler = make_scheduler()
    request = make_request("a", 4)
    scheduler.add(request)
    run_step(scheduler, now_ns=100)
    run_step(scheduler, now_ns=130)
    assert (request.first_token_ns, request.last_token_ns) == (100, 130)


def test_what_decodes_attend_to():
    scheduler = make_scheduler()
    start_decodes(scheduler, 3, prompt=10)
    step = scheduler.schedule()
    assert step.decode_context_tokens == sum(one.start + 1 for one in step.decodes) == 3 * 11
    assert len(step.sampled) == 3
