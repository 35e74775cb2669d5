"""Step records of a vLLM engine: what each step computed, for whom, and where its time went."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from probes.recorder import RingRecorder
from probes.records import DeferralReason, StepKind, StepRecord
from probes.vllm import steps as steps_module
from probes.vllm.census import PoolCensus
from probes.vllm.steps import StepProbe
from probes.vllm.worker import TIMES_ATTRIBUTE
from tests.probes.records import known
from tests.probes.vllm_fakes import FakePool, FakeRequest, FakeScheduler, engine_outputs

BLOCK = 4


class World:
    """A scheduler with a probe, on a clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000
        monkeypatch.setattr(steps_module, "perf_counter_ns", lambda: self.now_ns)
        self.pool = FakePool(17)
        self.scheduler = FakeScheduler(self.pool)
        self.census = PoolCensus(self.pool, lambda key: key)
        self.recorder = RingRecorder()
        self.probe = StepProbe(self.scheduler, self.census, self.recorder, BLOCK)

    def add(self, name: str, prompt: int, cached: int = 0) -> FakeRequest:
        request = FakeRequest(name, prompt, arrival_time=time.time(), num_computed_tokens=cached)
        self.scheduler.requests[name] = request
        self.scheduler.running.append(request)
        return request

    def plan(self, plan: dict[str, int], took_ns: int = 10, finished: tuple[str, ...] = ()) -> SimpleNamespace:
        self.probe.before_schedule()
        self.now_ns += took_ns
        output = self.scheduler.output(plan, finished)
        self.probe.after_schedule(output)
        return output

    def finish(
        self, output: SimpleNamespace, tokens: dict[str, int], ended: dict[str, str] | None = None, times: Any = None
    ) -> StepRecord:
        self.probe.before_update(output)
        self.now_ns += 5
        model_output = SimpleNamespace()
        if times is not None:
            setattr(model_output, TIMES_ATTRIBUTE, times)
        for name in ended or {}:
            self.scheduler.running.remove(self.scheduler.requests[name])
        self.probe.after_update(engine_outputs(tokens, ended), output, model_output)
        return self.recorder.steps_since(0).records[-1]

    def step(self, plan: dict[str, int], tokens: dict[str, int], ended: dict[str, str] | None = None) -> StepRecord:
        output = self.plan(plan)
        self.now_ns += 100
        return self.finish(output, tokens, ended)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_prompt_in_chunks_beside_a_decode(world: World):
    """Chunks are prefill until the prompt's end, and the step after it is a decode."""
    world.add("old", prompt=8)
    assert world.step({"old": 8}, {"old": 1}).kind is StepKind.PREFILL
    world.add("new", prompt=20, cached=4)
    first = world.step({"old": 1, "new": 10}, {"old": 1})
    assert (first.kind, first.num_decode_seqs, first.num_prefill_seqs) == (StepKind.MIXED, 1, 1)
    assert (first.prefill_tokens, first.cached_tokens, first.emitted_tokens) == (10, 4, 1)
    assert first.decode_context_tokens == 9
    assert first.prefill_attention_pairs == 10 * 4 + 55
    last = world.step({"old": 1, "new": 6}, {"old": 1, "new": 1})
    assert (last.prefill_tokens, last.cached_tokens, last.recomputed_tokens) == (6, 0, 0)
    decode = world.step({"old": 1, "new": 1}, {"old": 1, "new": 1})
    assert (decode.kind, decode.num_decode_seqs, decode.decode_context_tokens) == (StepKind.DECODE, 2, 11 + 21)
    assert world.probe.prefix_query_tokens == 28
    assert world.probe.prefix_hit_tokens == 4


def test_what_a_preempted_request_computes_again_is_recompute(world: World):
    """Its KV up to where it had come, the output tokens included; only the token after that is new."""
    victim = world.add("victim", prompt=8)
    world.add("other", prompt=8)
    world.step({"victim": 8, "other": 8}, {"victim": 1, "other": 1})
    world.step({"victim": 1, "other": 1}, {"victim": 1, "other": 1})
    world.probe.before_preempt(victim, 0.0)
    victim.num_computed_tokens = 0
    world.scheduler.running.remove(victim)
    world.scheduler.waiting.append(victim)
    alone = world.step({"other": 1}, {"other": 1})
    assert (alone.num_preempted, alone.num_waiting, alone.num_deferred) == (1, 1, 1)
    assert alone.deferral == DeferralReason.BLOCKS
    world.scheduler.waiting.remove(victim)
    world.scheduler.running.append(victim)
    victim.num_computed_tokens = 4  # a block of it was still cached
    back = world.step({"other": 1, "victim": 6}, {"other": 1, "victim": 1})
    assert back.kind is StepKind.MIXED
    assert (back.recomputed_tokens, back.prefill_tokens, back.cached_tokens) == (5, 0, 4)
    again = world.step({"other": 1, "victim": 1}, {"other": 1, "victim": 1})
    assert again.kind is StepKind.DECODE
    assert world.recorder.counters.preemptions == 1
    assert world.probe.prefix_query_tokens == 16, "the second look-up is not counted"


def test_a_prompt_preempted_half_way_recomputes_only_what_it_had(world: World):
    victim = world.add("victim", prompt=20)
    world.step({"victim": 8}, {})
    world.probe.before_preempt(victim, 0.0)
    victim.num_computed_tokens = 0
    back = world.step({"victim": 12}, {})
    assert (back.recomputed_tokens, back.prefill_tokens) == (8, 4)
    rest = world.step({"victim": 8}, {"victim": 1})
    assert (rest.recomputed_tokens, rest.prefill_tokens) == (0, 8)


def test_gaps_are_regular_from_step_to_step_and_late_for_who_was_left_out(world: World):
    world.add("a", prompt=4)
    world.add("b", prompt=4)
    world.step({"a": 4, "b": 4}, {"a": 1, "b": 1})
    second = world.step({"a": 1, "b": 1}, {"a": 1, "b": 1})
    assert (second.num_regular_gaps, second.late_gaps_ns) == (2, ())
    third = world.step({"a": 1}, {"a": 1})
    fourth = world.step({"a": 1, "b": 1}, {"a": 1, "b": 1})
    assert (third.num_regular_gaps, third.late_gaps_ns) == (1, ())
    assert fourth.num_regular_gaps == 1
    assert fourth.late_gaps_ns == (fourth.emit_ns - second.emit_ns,)


def test_parts_of_a_step_never_exceed_it_and_the_rest_is_preparation(world: World):
    world.add("a", prompt=4)
    output = world.plan({"a": 4}, took_ns=10)
    begin = world.now_ns + 3
    world.now_ns += 100
    record = known(world.finish(output, {"a": 1}, times=(begin, begin + 60, begin + 62, begin + 80, 70)))
    assert (record.schedule_ns, record.forward_ns, record.sample_ns) == (10, 60, 18)
    assert record.prepare_ns == 100 - 78
    assert record.forward_cpu_ns == 70
    assert record.schedule_ns + record.prepare_ns + record.forward_ns + record.sample_ns == (
        record.emit_ns - record.start_ns
    )


@pytest.mark.parametrize("times", [None, (0, 10**9, 10**9, 10**12, 5)], ids=["none", "of another machine's clock"])
def test_without_usable_worker_times_all_of_it_is_forward(world: World, times: Any):
    world.add("a", prompt=4)
    output = world.plan({"a": 4})
    world.now_ns += 100
    record = world.finish(output, {"a": 1}, times=times)
    assert (record.forward_ns, record.prepare_ns, record.forward_cpu_ns) == (100, 0, None)


def test_a_step_planned_while_another_runs_begins_where_that_one_ended(world: World):
    """Asynchronous scheduling: what is hidden behind the other step's work is in nobody's gap."""
    world.add("a", prompt=4)
    first = world.plan({"a": 4})
    world.now_ns += 50
    second = world.plan({"a": 1})
    world.now_ns += 50
    one = world.finish(first, {"a": 1})
    world.now_ns += 80
    two = world.finish(second, {"a": 1})
    assert two.start_ns == one.end_ns
    assert (two.schedule_ns, two.forward_ns, two.host_gap_ns) == (0, 80, 0)


def test_empty_schedules_leave_no_record_and_close_no_step(world: World):
    world.add("a", prompt=4)
    output = world.plan({"a": 4})
    empty = world.plan({})
    world.probe.before_update(empty)
    world.probe.after_update({}, empty, SimpleNamespace())
    record = world.finish(output, {"a": 1})
    assert record.step_id == 0
    assert world.recorder.next_id == 1


def test_the_time_without_requests_is_nobodys_host_gap(world: World):
    world.add("a", prompt=4)
    assert world.step({"a": 4}, {"a": 1}).host_gap_ns is None
    world.now_ns += 7
    assert world.step({"a": 1}, {"a": 1}, ended={"a": "length"}).host_gap_ns == 7
    world.now_ns += 10**9
    world.add("b", prompt=4)
    assert world.step({"b": 4}, {"b": 1}).host_gap_ns is None


def test_finished_and_aborted_requests_are_counted_once(world: World):
    world.add("a", prompt=4)
    world.add("b", prompt=4)
    world.step({"a": 4, "b": 4}, {"a": 1, "b": 1}, ended={"a": "stop"})
    world.scheduler.running.clear()
    world.add("c", prompt=4)
    world.finish(world.plan({"c": 4}, finished=("a", "b")), {"c": 1})
    assert world.recorder.counters.finished == {"stop": 1, "abort": 1}
    assert world.recorder.counters.time_to_first_token.count == 3


@pytest.mark.parametrize(
    ("plan", "running", "expected"),
    [
        ({"a": 64}, 1, DeferralReason.PREFILL_AHEAD),
        ({"a": 8}, 4, DeferralReason.SEQUENCES),
        ({"a": 8}, 1, DeferralReason.BLOCKS),
    ],
)
def test_why_a_prompt_waits(world: World, plan: dict[str, int], running: int, expected: DeferralReason):
    """In the order in which vLLM's scheduler gives up: no budget, no slot, no blocks."""
    world.add("a", prompt=100)
    for number in range(running - 1):
        world.add(f"other{number}", prompt=4)
    world.scheduler.waiting.append(FakeRequest("w", 4))
    record = world.step(plan, {})
    assert record.deferral == expected
    assert world.probe.waiting_by_reason() == {expected: 1}


def test_decodes_alone_can_exhaust_the_budget(world: World):
    world.scheduler.max_num_scheduled_tokens = 1
    world.add("a", prompt=1)
    world.step({"a": 1}, {"a": 1})
    world.scheduler.waiting.append(FakeRequest("w", 4))
    assert world.step({"a": 1}, {"a": 1}).deferral == DeferralReason.BUDGET


def test_requests_that_vllm_passes_over_are_not_called_short_of_blocks(world: World):
    world.add("a", prompt=4)
    held_back = FakeRequest("grammar", 4)
    world.scheduler.waiting.append(held_back)
    world.scheduler.deferred_waiting.add(held_back)
    world.step({"a": 4}, {"a": 1})
    assert world.probe.waiting_by_reason() == {steps_module.NOT_SCHEDULABLE: 1}


def test_ghost_hits_of_requests_that_start(world: World):
    """A request that starts asks for what was evicted; its cached blocks are hits and no ghosts."""
    blocks = world.pool.get_new_blocks(2)
    for block, name in zip(blocks, (b"x", b"y"), strict=True):
        block.block_hash = name
    world.census.on_append_n(None, blocks)
    world.census.on_popleft_n(blocks, 2)
    request = world.add("a", prompt=12, cached=4)
    request.block_hashes = [b"w", b"x", b"y"]
    record = world.step({"a": 8}, {"a": 1})
    assert record.ghost_hits == 2
    assert record.evicted_blocks == 2
    assert world.step({"a": 1}, {"a": 1}).evicted_blocks == 0
