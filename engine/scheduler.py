"""Who runs in the next step, with how many tokens, in which KV blocks. Pure policy: no tensors, no I/O, no lock.

In every step decodes come first, one token each; prompts share the rest of the budget in order of arrival, in chunks.
Nothing is ever dropped: whoever is passed over is deferred with a reason. Four rules keep it live: running requests
are older than waiting ones; of those, only the youngest may be a half-computed prompt; a prompt starts only when all of
it fits beside what started before; and when a decode finds no block, the youngest running request gives way. So the
oldest one always goes on.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from time import perf_counter_ns
from typing import Any

from engine import forks
from engine.admission import blocks_for, check_group
from engine.block_pool import BlockPool
from engine.block_reuse import BlockReuse
from engine.config import SchedulerConfig
from engine.errors import InvariantViolation
from engine.invariants import check_scheduler
from engine.prefix_binding import PrefixBinding, PrefixPlan
from engine.prefix_cache import CacheScope, PrefixIndex
from engine.prefix_indexes import make_prefix_index
from engine.request import FinishReason, Request, RequestState, arrival
from engine.step import ScheduledSequence, ScheduledStep, SchedulerCounters
from engine.transfers import Transfers
from engine.turns import DecodeTurns
from engine.waiting import WaitingQueue
from probes.records import BlockCensus, DeferralReason


class Scheduler:
    """Not thread-safe: the caller holds a lock. Each non-empty `schedule()` is followed by one `commit` or `fail`.

    `requests` holds every live request by id; `pool` and `index` are for reading; `transfers` are those without a part in
    any step until their KV has come from a prefill instance.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        scope: CacheScope,
        *,
        clock_ns: Callable[[], int] = perf_counter_ns,
        measure_reuse: bool = True,
    ) -> None:
        self.config = config
        self.index: PrefixIndex[Any] = make_prefix_index(config, scope)
        self.reuse = BlockReuse(config.kv_blocks, clock_ns) if measure_reuse else None
        self.pool = BlockPool(config.kv_blocks, config.block_size, self.index.forget, clock_ns, self.reuse)
        self._prefixes = PrefixBinding(self.index, self.pool, self.reuse)
        self.requests: dict[str, Request] = {}
        # All three hold older requests before younger ones; everything running is older than everything waiting.
        self._waiting = WaitingQueue()
        self._prefills: list[Request] = []
        self._decodes: list[Request] = []
        self._forked: list[Request] = []
        self._turns = DecodeTurns()
        self._in_flight: ScheduledStep | None = None
        self._numbers = count(1)
        self.transfers = Transfers(self._waiting, self._prefixes, self._numbers)
        self._preemptions = self._prefix_query_tokens = self._prefix_hit_tokens = 0

    # What can be seen.

    @property
    def has_work(self) -> bool:
        """Somebody could be in a step."""
        return self.num_running + self.num_waiting > 0

    @property
    def num_running(self) -> int:
        return len(self._decodes) + len(self._prefills)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_forking(self) -> int:
        """Requests that wait for a prompt that another one computes for them; neither running nor waiting."""
        return len(self.requests) - self.num_running - self.num_waiting - len(self.transfers)

    @property
    def counters(self) -> SchedulerCounters:
        return SchedulerCounters(
            self._preemptions, self.pool.evictions, self._prefix_query_tokens, self._prefix_hit_tokens
        )

    def census(self) -> BlockCensus:
        return self.pool.census()

    def waiting_by_reason(self) -> dict[str, int]:
        """Waiting requests by the reason why the latest step did not start them; the counts sum to `num_waiting`."""
        return self._waiting.by_reason()

    def refresh_deferrals(self) -> None:
        """Brings `deferral` and `deferred_steps` of every waiting request up to date. O(waiting); for inspection."""
        self._waiting.refresh()

    def check_invariants(self) -> None:
        """Counts everything again, O(blocks + tokens held). Raises InvariantViolation with the numbers."""
        pinned = [block_id for path in self._in_flight.pinned for block_id in path] if self._in_flight else []
        running = sorted(self._prefills + self._decodes, key=arrival)
        lists = list(self._waiting), running, list(self.transfers)
        check_scheduler(self.pool, self.index, self.requests, *lists, pinned)
        if self._in_flight is None and self._prefills not in ([], running[-1:]):
            raise InvariantViolation(f"{len(self._prefills)} half-computed prompts, or one that is not the youngest")

    # What comes in and goes out.

    def add(self, request: Request, siblings: Sequence[Request] = ()) -> None:
        """Queues a request; `siblings` ask for more answers to its prompt, which is computed once for all of them.

        Raises RequestRejected, with nothing queued, when one of them can never be served or an id is already in use.
        """
        check_group([request, *siblings], self.requests, self.config)
        forks.join(request, siblings)
        for one in (request, *siblings):
            one.sequence_number = next(self._numbers)
            self.requests[one.request_id] = one
        self._waiting.append(request)

    def abort(self, request_id: str) -> Request | None:
        """Ends a request in whatever state it is, its blocks given back at once; None when it is not live."""
        request = self.requests.get(request_id)
        if request is not None:
            self.finish(request, FinishReason.ABORT)
        return request

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Ends a live request. One that already ended keeps its first reason: an abort may race a stop token."""
        if self.requests.get(request.request_id) is not request:
            return
        self._remove(request)
        del self.requests[request.request_id]
        self._prefixes.forget(request)
        self._release(request)
        request.state = RequestState.FINISHED
        request.finish_reason = reason

    def _remove(self, request: Request) -> None:
        """From its place; siblings that still needed its prompt get another leader there."""
        if request.state is RequestState.FORKING:
            forks.leave(request)
        elif request.state is RequestState.TRANSFERRING:
            self.transfers.leave(request)
        elif request.state is RequestState.RUNNING:
            (self._decodes if request in self._decodes else self._prefills).remove(request)
            if request.siblings:
                self._waiting.push_front(forks.promote_heir(request))
        elif request.siblings:
            self._waiting.replace(request, forks.promote_heir(request))
        else:
            self._waiting.remove(request)

    def set_limits(self, max_batched_tokens: int | None = None, max_sequences: int | None = None) -> None:
        """Changes limits from the next step on. Raises ConfigError, with nothing changed, for a value out of bounds.

        Lower `max_sequences` stops admissions until enough requests have ended; none that runs is touched.
        """
        budget = self.config.max_batched_tokens if max_batched_tokens is None else max_batched_tokens
        sequences = self.config.max_sequences if max_sequences is None else max_sequences
        self.config = replace(self.config, max_batched_tokens=budget, max_sequences=sequences)

    def set_prefix_cache(self, enabled: bool) -> None:
        """Off: nothing is looked up and nothing newly indexed; what is cached stays until it is evicted or reset."""
        self.config = replace(self.config, enable_prefix_cache=enabled)

    def reset_prefix_cache(self) -> int:
        """Frees every reclaimable block; returns how many. Blocks in use stay cached: their content is valid."""
        return self.pool.drop_reclaimable()

    def set_scope(self, scope: CacheScope) -> int:
        """New weights or adapter: nothing computed so far can be hit again. Returns how many blocks became free."""
        self.index.set_scope(scope)
        return self.reset_prefix_cache()

    # One step.

    def schedule(self) -> ScheduledStep:
        """Decides the next step and reserves its blocks. An empty step needs no commit."""
        if self._in_flight is not None:
            raise RuntimeError("schedule() was called before the previous step was committed or failed")
        self._waiting.begin_step()
        step = ScheduledStep(max_batched_tokens=self.config.max_batched_tokens)
        self._schedule_decodes(step)
        budget, promised = self._schedule_prefills(step, self.config.max_batched_tokens - len(step.decodes))
        self._admit(step, budget, promised)
        step.num_deferred = self.num_running + self.num_waiting - len(step.decodes) - len(step.prefills)
        if not step.is_empty:
            forks.copy_on_write(self._forked, self.pool, step)
            self._forked = []
            self._in_flight = step
        return step

    def commit(self, step: ScheduledStep, token_ids: Sequence[int], now_ns: int) -> list[Request]:
        """Books a computed step; returns the requests that emitted a token, in order.

        `token_ids`: one per sampled sequence, decodes first, then the prefills that reached their last token, then the
        forks (the order of `BatchPlan.sample_requests`). What was aborted meanwhile is skipped. Raises ValueError, with
        nothing changed, when their number is wrong.
        """
        sampled = step.sampled
        if len(token_ids) != len(sampled):
            raise ValueError(f"{len(token_ids)} token ids for {len(sampled)} sampled sequences")
        self._close(step)
        block_size, use_cache = self.config.block_size, self.config.enable_prefix_cache
        for request, start, num_tokens, _, _ in step.prefills:
            if request.state is RequestState.RUNNING:
                request.num_computed_tokens = end = start + num_tokens
                request.max_computed_tokens = max(request.max_computed_tokens, end)
                if use_cache and end // block_size > request.num_hashed_blocks:
                    self._prefixes.index_full_blocks(request)
        # A leader that ended meanwhile has handed its siblings on.
        if step.forks and step.prefills[-1].request.state is RequestState.RUNNING:
            self._fork(step.prefills[-1].request)
        emitted: list[Request] = []
        for (request, start, _, is_decode, _), token_id in zip(sampled, token_ids, strict=True):
            if request.state is not RequestState.RUNNING:
                continue
            if is_decode:
                request.num_computed_tokens = request.max_computed_tokens = start + 1
                if use_cache and (start + 1) // block_size > request.num_hashed_blocks:
                    self._prefixes.index_full_blocks(request)
            elif request in self._prefills:
                self._prefills.remove(request)
                insort(self._decodes, request, key=arrival)  # its forks may be there already
            request.output_token_ids.append(token_id)
            request.last_token_ns = now_ns
            if request.first_token_ns is None:
                request.first_token_ns = now_ns
            emitted.append(request)
        self._prefixes.note_cached()
        return emitted

    def _fork(self, leader: Request) -> None:
        """Siblings of a prompt that is computed now decode from here on; for whom there is no room starts on its own."""
        forked, left = forks.fork_all(leader, self.config.max_sequences - self.num_running, self.pool, self._prefixes)
        for sibling in forked:
            insort(self._decodes, sibling, key=arrival)
        self._forked += forked
        for sibling in reversed(left):
            self._waiting.push_front(sibling)

    def fail(self, step: ScheduledStep) -> list[Request]:
        """The forward pass raised: ends the step's requests with ERROR and returns them. All others go on."""
        self._close(step)
        scheduled = [sequence.request for sequence in step.decodes + step.prefills]
        failed = [request for request in scheduled if request.state is RequestState.RUNNING]
        for request in failed:
            self.finish(request, FinishReason.ERROR)
        return failed

    def _close(self, step: ScheduledStep) -> None:
        if step is not self._in_flight:
            raise RuntimeError("only the latest scheduled step can be committed or failed, and only once")
        self._in_flight = None
        for path in step.pinned:
            self.pool.release(path)

    # Decodes.

    def _schedule_decodes(self, step: ScheduledStep) -> None:
        selected, deferred = self._turns.select(self._decodes, step.max_batched_tokens)
        block_size = self.config.block_size
        append = step.decodes.append
        context = 0
        for request in selected:
            start = request.num_computed_tokens
            # Fifteen steps of sixteen the last block has room, and nothing else needs to be looked at.
            if start == len(request.block_ids) * block_size and not self._grow(request, step):
                continue
            append(ScheduledSequence(request, start, 1, True, True))
            context += start + 1
        if selected and not step.decodes and self._decodes:
            return self._schedule_decodes(step)  # those whose turn it was gave way, so it is the others' now
        step.decode_context_tokens = context
        for request in deferred:
            if request.state is RequestState.RUNNING:
                step.defer(request, DeferralReason.BUDGET, 0)
        return None

    def _grow(self, request: Request, step: ScheduledStep) -> bool:
        """Gets a decode its next block, at the expense of younger requests; False when it had to give way itself."""
        if request.state is not RequestState.RUNNING:
            return False  # preempted a moment ago, by an older decode of this step
        while not self.pool.can_allocate(1):
            victim = self._youngest()
            self._preempt(victim, step)
            if victim is request:
                return False
        request.block_ids += self.pool.allocate(1)
        return True

    def _blocks_missing(self, request: Request, num_tokens: int) -> int:
        return blocks_for(num_tokens, self.config.block_size) - len(request.block_ids)

    def _youngest(self) -> Request:
        """The next victim of a preemption: the latest arrival that runs, be it a prompt or a decode.

        It has waited least, and the oldest request is never one but for its own sake, so that somebody always finishes.
        """
        return max((requests[-1] for requests in (self._decodes, self._prefills) if requests), key=arrival)

    def _preempt(self, request: Request, step: ScheduledStep) -> None:
        """Gives up a running request's blocks; it will be computed again, except for what is still cached by then."""
        (self._decodes if self._decodes and self._decodes[-1] is request else self._prefills).pop()
        self._release(request)
        request.state = RequestState.PREEMPTED
        request.num_preemptions += 1
        self._waiting.put_back(request)
        self._preemptions += 1
        step.preempted.append(request)

    # Prompts.

    def _schedule_prefills(self, step: ScheduledStep, budget: int) -> tuple[int, int]:
        """Chunks for the prompts that have started; returns the budget left and the blocks promised to them."""
        promised = 0
        for request in self._prefills:
            available = max(0, self.pool.num_available - promised)
            num_tokens = min(budget, request.num_tokens - request.num_computed_tokens)
            if num_tokens <= 0:
                step.defer(request, step.spent_by, 0)
            elif self._blocks_missing(request, request.num_computed_tokens + num_tokens) > available:
                # An older decode took what was promised; it comes back when that one ends or preempts this one.
                step.defer(request, DeferralReason.BLOCKS, available)
            else:
                self._schedule_chunk(step, request, num_tokens)
                budget -= num_tokens
            promised += self._blocks_missing(request, request.num_tokens)
        return budget, promised

    def _schedule_chunk(self, step: ScheduledStep, request: Request, num_tokens: int, is_decode: bool = False) -> None:
        start = request.num_computed_tokens
        end = start + num_tokens
        request.block_ids += self.pool.allocate(self._blocks_missing(request, end))
        request.deferral, request.deferred_steps = None, 0
        step.add(ScheduledSequence(request, start, num_tokens, is_decode, end == request.num_tokens))

    def _admit(self, step: ScheduledStep, budget: int, promised: int) -> None:
        """Starts waiting prompts in order of arrival until one cannot start; that one's reason holds for the rest."""
        while self._waiting:
            request = self._waiting.head
            available = max(0, self.pool.num_available - promised)
            if budget <= 0:
                return self._waiting.defer(step, step.spent_by, 0)
            if self.num_running >= self.config.max_sequences:
                return self._waiting.defer(step, DeferralReason.SEQUENCES, budget)
            if self._prefills and self._prefills[-1].siblings:
                # They are older, and decode as soon as this step is done.
                return self._waiting.defer(step, DeferralReason.FORKS, budget)
            # What was just preempted must not take its blocks back at once. Unless nobody else goes on: victims that share all
            # their blocks yield none, and the oldest then starts again rather than leave the step empty.
            held_back = step.preempted and not step.is_empty
            plan = None if held_back else self._prefixes.plan(request, available, self.config.enable_prefix_cache)
            if plan is None:
                return self._waiting.defer(step, DeferralReason.BLOCKS, available)
            self._start(step, request, plan)
            num_tokens = min(budget, request.num_tokens - request.num_computed_tokens)
            is_decode = plan.num_received > 0 and request.is_decoding  # a prefill instance has computed all of it
            if is_decode:
                self._decodes.append(self._prefills.pop())
            self._schedule_chunk(step, request, num_tokens, is_decode)
            budget -= num_tokens
            promised += self._blocks_missing(request, request.num_tokens)
        return None

    def _start(self, step: ScheduledStep, request: Request, plan: PrefixPlan) -> None:
        self._waiting.pop()
        self._prefills.append(request)
        request.state = RequestState.RUNNING
        self._prefixes.bind(request, plan, step)
        if self.config.enable_prefix_cache:
            step.ghost_hits += self._prefixes.ghost_hits(request, len(plan.shared))
        request.max_computed_tokens = max(request.max_computed_tokens, plan.num_tokens)
        step.received_tokens += plan.num_received
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_cached = plan.num_tokens - plan.num_received
            step.cached_tokens += num_cached
            if self.config.enable_prefix_cache:
                self._prefix_query_tokens += request.num_tokens
                self._prefix_hit_tokens += num_cached

    def _release(self, request: Request) -> None:
        if request.fork_source is not None:
            request.block_ids.append(request.fork_source)
            request.fork_source = None
        self.pool.release(request.block_ids)
        request.block_ids = []
        request.num_computed_tokens = 0
        request.num_hashed_blocks = 0
