"""A scheduler and a shadow of its KV memory, checked at every turn; a state machine or a simulation drives it."""

from collections.abc import Callable

import pytest

from engine.errors import RequestRejected
from engine.prefix_cache import CacheScope
from engine.radix_index import RadixIndex
from engine.request import FinishReason, ReceivedKv, Request, RequestState
from engine.step import ScheduledStep, plan_batch
from engine.waiting import LISTED_WAITING
from tests.engine.builders import make_request, make_scheduler
from tests.engine.shadow_kv import ShadowKv


class World:
    def __init__(
        self,
        *,
        block_size: int,
        kv_blocks: int,
        max_batched_tokens: int,
        max_sequences: int,
        enabled: bool,
        prefix_index: str = "hash_chain",
    ):
        self.scheduler = make_scheduler(
            max_batched_tokens=max_batched_tokens,
            max_sequences=max_sequences,
            block_size=block_size,
            kv_blocks=kv_blocks,
            max_model_len=512,
            enable_prefix_cache=enabled,
            prefix_index=prefix_index,
        )
        self.kv = ShadowKv(block_size)
        self.step: ScheduledStep | None = None
        self.accepted: list[Request] = []
        self.answered: set[str] = set()
        self.num_offered = 0
        self.copies = 0
        self.forks = 0
        self.imported_blocks = 0
        self.on_the_way: dict[str, ReceivedKv] = {}
        """Of requests whose transfer has begun and not ended, whether they are still there or not."""
        self._running: set[str] = set()

    def add(self, prompt: list[int], max_tokens: int, salt: str = "", choices: int = 1) -> None:
        config = self.scheduler.config
        group = [
            make_request(f"r{self.num_offered + i}", prompt, max_tokens=max_tokens, salt=salt) for i in range(choices)
        ]
        self.num_offered += choices
        if prompt and len(prompt) + max_tokens - 1 <= config.kv_blocks * config.block_size:
            self.scheduler.add(group[0], group[1:])
            self.accepted += group
        else:
            with pytest.raises(RequestRejected):
                self.scheduler.add(group[0], group[1:])

    def add_remote(
        self, prompt: list[int], max_tokens: int, salt: str = "", choices: int = 1, min_tokens: int = 1
    ) -> None:
        """As `add`, but another instance computes the prompt, if enough of it is not cached."""
        before = len(self.accepted)
        self.add(prompt, max_tokens, salt, choices)
        if len(self.accepted) > before:
            request, scheduler = self.accepted[before], self.scheduler
            first_block = scheduler.transfers.begin(request, min_tokens, scheduler.config.enable_prefix_cache)
            if first_block is not None:
                self.on_the_way[request.request_id] = self.kv.computed_elsewhere(request, first_block)

    def first_token(self, request_id: str, token: int) -> None:
        request = self.scheduler.transfers.first_token(request_id, token, 0)
        if request is not None and request.params.max_tokens == 1:
            self.scheduler.finish(request, FinishReason.LENGTH)
            self._answer(request, FinishReason.LENGTH)

    def end_transfer(self, request_id: str, arrived: bool) -> None:
        received = self.on_the_way.pop(request_id)
        live = request_id in self.scheduler.requests
        request = self.scheduler.transfers.end(request_id, received if arrived else None)
        assert (request is not None) == live

    def abort(self, request: Request) -> None:
        live = request.state is not RequestState.FINISHED
        assert self.scheduler.abort(request.request_id) is (request if live else None)
        if live:
            self._answer(request, FinishReason.ABORT)
        assert not request.block_ids

    def schedule(self) -> bool:
        """Schedules and runs the forward pass; False when there is nothing to commit."""
        step = self.scheduler.schedule()
        self._check(step)
        imported = {one.block_id for one in step.imports}
        admitted = [chunk.request for chunk in step.prefills if chunk.request.request_id not in self._running]
        admitted += [one.request for one in step.decodes if not imported.isdisjoint(one.request.block_ids)]
        self.kv.forward(step, admitted)
        self.copies += len(step.copies)
        self.imported_blocks += len(step.imports)
        requests = self.scheduler.requests.values()
        self._running = {request.request_id for request in requests if request.state is RequestState.RUNNING}
        self.step = None if step.is_empty else step
        # Somebody can always go on: an empty step means that nobody is there.
        assert step.is_empty == (not self.scheduler.has_work)
        return self.step is not None

    def commit(self, draw_token: Callable[[], int], stops: Callable[[], bool] = lambda: False) -> None:
        step, self.step = self.step, None
        assert step is not None
        alive = {one.request for one in step.decodes + step.prefills if one.request.state is RequestState.RUNNING}
        emitted = self.scheduler.commit(step, [draw_token() for _ in step.sampled], 0)
        assert emitted == [one.request for one in step.sampled if one.request.state is RequestState.RUNNING]
        assert alive.intersection(one.request for one in step.sampled) <= set(emitted)
        self.forks += sum(one.request in emitted for one in step.forks)
        for request in emitted:
            if len(request.output_token_ids) == request.params.max_tokens or stops():
                self.scheduler.finish(request, FinishReason.LENGTH)
                self._answer(request, FinishReason.LENGTH)

    def fail(self) -> None:
        step, self.step = self.step, None
        assert step is not None
        self.kv.scribble(step)
        for request in self.scheduler.fail(step):
            self._answer(request, FinishReason.ERROR)

    def change_scope(self) -> None:
        self.kv.scope += 1
        self.scheduler.set_scope(CacheScope(f"weights-{self.kv.scope}"))

    def drain(self, draw_token: Callable[[], int]) -> None:
        """Left alone, the scheduler serves everybody who is still there."""
        if self.step is not None:
            self.fail()
        for request_id in list(self.on_the_way):
            self.end_transfer(request_id, arrived=False)
        left = list(self.scheduler.requests.values())
        work = sum(request.num_tokens + request.params.max_tokens for request in left)
        # Preemption multiplies the work by at most the number of those who are older; it never makes it endless.
        for _ in range(50 + work * (len(left) + 1)):
            if not self.schedule():
                break
            self.commit(draw_token)
        assert all(request.finish_reason is FinishReason.LENGTH for request in left)
        assert self.scheduler.census().active == 0
        self.check_books()

    def check_books(self) -> None:
        self.scheduler.check_invariants()
        self._check_pins()
        assert sum(self.scheduler.waiting_by_reason().values()) == self.scheduler.num_waiting
        live = {request.request_id for request in self.accepted} - self.answered
        assert live == self.scheduler.requests.keys(), "a request was lost"

    def _check_pins(self) -> None:
        """In a tree no block has more holders than any block that leads to it, so that reference counts pin paths."""
        if not isinstance(self.scheduler.index, RadixIndex):
            return
        ref_count = self.scheduler.pool.ref_count
        for node in self.scheduler.index.nodes():
            path = ([] if node.parent is None else node.parent.blocks[-1:]) + node.blocks
            holders = [ref_count(block_id) for block_id in path]
            assert holders == sorted(holders, reverse=True), f"blocks {path} have {holders} holders"

    def _answer(self, request: Request, reason: FinishReason) -> None:
        assert request.request_id not in self.answered, "answered twice"
        assert (request.state, request.finish_reason) == (RequestState.FINISHED, reason)
        self.answered.add(request.request_id)

    def _check(self, step: ScheduledStep) -> None:
        scheduled = step.decodes + step.prefills
        assert step.num_query_tokens <= self.scheduler.config.max_batched_tokens
        assert all(one.num_tokens == 1 and one.request.is_decoding for one in step.decodes)
        assert all(one.num_tokens >= 1 and one.start == one.request.num_computed_tokens for one in scheduled)
        assert len({id(one.request) for one in scheduled}) == len(scheduled)
        assert step.prefill_tokens + step.recomputed_tokens == sum(chunk.num_tokens for chunk in step.prefills)
        transferring = self.scheduler.transfers
        runnable = len(self.scheduler.requests) - self.scheduler.num_forking - len(transferring)
        assert step.num_deferred == runnable - len(scheduled)
        assert {id(one.request) for one in scheduled}.isdisjoint(map(id, transferring)), (
            "computed before its KV is here"
        )
        assert len(step.deferred) == step.num_deferred or self.scheduler.num_waiting > LISTED_WAITING
        assert {id(one.request) for one in scheduled}.isdisjoint(id(one.request) for one in step.deferred)
        # A victim stays out of the step that preempted it, unless nobody else could go on in it.
        assert {id(one.request) for one in scheduled}.isdisjoint(map(id, step.preempted)) or len(scheduled) == 1
        assert all(one.available >= 0 for one in step.deferred)
        assert all(one.request.deferral is None and one.request.deferred_steps == 0 for one in scheduled)
        assert all(one.request.deferral == one.reason and one.request.deferred_steps > 0 for one in step.deferred)
        plan = plan_batch(step, self.scheduler.config.block_size)
        assert len(set(plan.slots)) == len(plan.slots), "two tokens would be written to one slot"
        size = self.scheduler.config.block_size
        imported = [one.block_id for one in step.imports]
        assert all(self.scheduler.pool.ref_count(block_id) == 1 for block_id in imported), "written into a shared block"
        copied = {copy.source * size + offset for copy in step.copies for offset in range(copy.num_tokens)}
        assert copied.isdisjoint(plan.slots), "what is copied would be overwritten in the same step"
