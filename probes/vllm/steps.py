"""Step records of a vLLM engine, from the calls of its scheduler. Reads vLLM's objects and changes none of them.

    schedule() | worker: execute, sample | update_from_output()
    start      |                         | emit               end

With asynchronous scheduling, vLLM plans a step while the one before it runs. Such a step's record begins where the one
before ended, since what is hidden behind another step's work costs nobody time.
"""

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

from probes.arithmetic import attention_pairs
from probes.recorder import Recorder, RequestTrace
from probes.records import BlockCensus, DeferralReason, StepRecord, step_kind
from probes.vllm.census import PoolCensus
from probes.vllm.worker import WorkerTimes, times_of

NOT_SCHEDULABLE = "not_schedulable_yet"
"""vLLM passed over them for reasons of their own: a grammar that is compiled, an adapter limit, KV on its way."""


class Request(Protocol):
    """Of vLLM's Request. After schedule(), `num_computed_tokens` is with the tokens of the step."""

    @property
    def request_id(self) -> str: ...
    @property
    def arrival_time(self) -> float: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def block_hashes(self) -> Sequence[bytes]: ...


class SchedulerOutput(Protocol):
    """Of vLLM's SchedulerOutput. `finished_req_ids` ended since the step before, the aborted ones among them."""

    @property
    def num_scheduled_tokens(self) -> Mapping[str, int]: ...
    @property
    def finished_req_ids(self) -> Collection[str]: ...


class Scheduler(Protocol):
    """Of vLLM's Scheduler."""

    @property
    def requests(self) -> Mapping[str, Request]: ...
    @property
    def running(self) -> Sequence[Request]: ...
    @property
    def deferred_waiting(self) -> Collection[Request]: ...
    @property
    def max_num_active_reqs(self) -> int: ...
    @property
    def max_num_scheduled_tokens(self) -> int: ...
    def get_request_counts(self) -> tuple[int, int]: ...


@dataclass(slots=True)
class _Work:
    """What one step computes."""

    num_decodes: int = 0
    num_prefills: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0
    context_tokens: int = 0
    pairs: int = 0
    ghost_hits: int | None = 0


@dataclass(slots=True)
class _Admitted:
    """A request from its first step to its end. Stamps are monotonic ns."""

    request: Request
    arrival_ns: int
    first_scheduled_ns: int
    cached_tokens: int
    first_token_ns: int | None = None


class _Planned(NamedTuple):
    """A scheduled step that has not come back yet."""

    output: SchedulerOutput
    start_ns: int
    schedule_ns: int
    work: _Work
    num_running: int
    num_waiting: int
    num_preempted: int
    num_deferred: int
    deferral: str | None
    census: BlockCensus
    evicted_blocks: int


class _Split(NamedTuple):
    """Of the time from the end of scheduling to the tokens, ns."""

    prepare: int
    forward: int
    sample: int
    cpu: int | None


class StepProbe:
    """Its methods are hooked to the scheduler's; all of them run on the engine's thread."""

    def __init__(self, scheduler: Scheduler, census: PoolCensus, recorder: Recorder, block_size: int) -> None:
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self._scheduler = scheduler
        self._census = census
        self._recorder = recorder
        self._block_size = block_size
        self._planned: deque[_Planned] = deque()
        self._admitted: dict[str, _Admitted] = {}
        self._next_start: dict[str, int] = {}
        """Where the next chunk of a prompt that is being computed begins, by request id."""
        self._computed_before: dict[str, int] = {}
        """Tokens whose KV existed when a request was preempted: what is computed below that is recompute."""
        self._step_id = 0
        self._schedule_start_ns = self._emit_ns = self._end_ns = self._previous_emit_ns = 0
        self._evictions = 0
        self._num_preempted = 0
        self._is_idle = True
        self._emitted: set[str] = set()
        """Unfinished requests that emitted in the step before."""
        self._last_emit_ns: dict[str, int] = {}
        """Of unfinished requests that emitted, but not in the step before."""
        self._waiting_reason: str | None = None

    def waiting_by_reason(self) -> dict[str, int]:
        """By the last scheduling pass; from any thread."""
        waiting = self._scheduler.get_request_counts()[1]
        unready = min(waiting, len(self._scheduler.deferred_waiting))
        counts = {NOT_SCHEDULABLE: unready, self._waiting_reason or "not_considered_yet": waiting - unready}
        return {reason: count for reason, count in counts.items() if count}

    # Hooks on schedule() and _preempt_request().

    def before_schedule(self, *_: Any) -> None:
        self._schedule_start_ns = perf_counter_ns()

    def before_preempt(self, request: Request, *_: Any) -> None:
        self._num_preempted += 1
        name = request.request_id
        self._computed_before[name] = max(self._computed_before.get(name, 0), request.num_computed_tokens)
        self._next_start.pop(name, None)

    def after_schedule(self, output: SchedulerOutput, *_: Any) -> None:
        now_ns = perf_counter_ns()
        for name in output.finished_req_ids:
            self._forget(name, now_ns)
        census = self._census.publish()
        if not output.num_scheduled_tokens:
            return  # nothing to run: vLLM turns over its housekeeping
        work = self._classify(output.num_scheduled_tokens, now_ns)
        running, waiting = self._scheduler.get_request_counts()
        deferred = running + waiting - work.num_decodes - work.num_prefills
        reason = self._reason(output, work, running) if deferred else None
        self._waiting_reason = reason
        preempted, self._num_preempted = self._num_preempted, 0
        before, self._evictions = self._evictions, self._census.evictions
        start_ns = self._schedule_start_ns
        self._planned.append(
            _Planned(
                output,
                start_ns,
                now_ns - start_ns,
                work,
                running,
                waiting,
                preempted,
                deferred,
                reason,
                census,
                self._evictions - before,
            )
        )

    def _classify(self, scheduled: Mapping[str, int], now_ns: int) -> _Work:
        work = _Work()
        requests, recompute = self._scheduler.requests, self._computed_before
        decodes = context = 0
        for name, tokens in scheduled.items():
            request = requests[name]
            end = request.num_computed_tokens
            if end - tokens >= request.num_prompt_tokens and name not in recompute:
                decodes += 1
                context += end
            else:
                self._classify_chunk(work, request, end - tokens, tokens, now_ns)
        work.num_decodes, work.context_tokens = decodes, context
        return work

    def _classify_chunk(self, work: _Work, request: Request, start: int, tokens: int, now_ns: int) -> None:
        name, end = request.request_id, start + tokens
        known = self._computed_before.get(name, 0)
        work.num_prefills += 1
        work.recomputed_tokens += max(0, min(end, known) - start)
        work.prefill_tokens += max(0, min(end, request.num_prompt_tokens) - max(start, known))
        work.pairs += attention_pairs(start, tokens)
        if name not in self._next_start:
            work.cached_tokens += start
            if name not in self._admitted:
                self._admit(work, request, start, now_ns)
        if end >= known:
            self._computed_before.pop(name, None)
        if end < max(known, request.num_prompt_tokens):
            self._next_start[name] = end
        else:
            self._next_start.pop(name, None)

    def _admit(self, work: _Work, request: Request, cached: int, now_ns: int) -> None:
        waited_ns = max(0, round((time.time() - request.arrival_time) * 1e9))
        self._admitted[request.request_id] = _Admitted(request, now_ns - waited_ns, now_ns, cached)
        self._recorder.on_first_scheduled(waited_ns)
        self.prefix_query_tokens += request.num_prompt_tokens
        self.prefix_hit_tokens += cached
        hits = self._census.ghost_hits(request.block_hashes[cached // self._block_size :])
        work.ghost_hits = None if hits is None or work.ghost_hits is None else work.ghost_hits + hits

    def _reason(self, output: SchedulerOutput, work: _Work, running: int) -> str:
        """Why somebody got no tokens, in the order in which vLLM's scheduler gives up."""
        if self._num_preempted:
            return DeferralReason.BLOCKS
        if sum(output.num_scheduled_tokens.values()) >= self._scheduler.max_num_scheduled_tokens:
            return DeferralReason.PREFILL_AHEAD if work.num_prefills else DeferralReason.BUDGET
        if running >= self._scheduler.max_num_active_reqs:
            return DeferralReason.SEQUENCES
        return DeferralReason.BLOCKS

    # Hooks on update_from_output().

    def before_update(self, *_: Any) -> None:
        self._emit_ns = perf_counter_ns()

    def after_update(self, outputs: Mapping[int, Any], output: SchedulerOutput, model_output: Any) -> None:
        """`outputs` are vLLM's EngineCoreOutputs by client."""
        end_ns = perf_counter_ns()
        self._census.publish()
        if not output.num_scheduled_tokens:
            return
        planned = self._planned.popleft()
        while planned.output is not output:
            planned = self._planned.popleft()  # a step that vLLM dropped
        each = [one for client in outputs.values() for one in client.outputs]
        emitted = {one.request_id for one in each if one.new_token_ids}
        finished = {one.request_id: str(one.finish_reason) for one in each if one.finish_reason is not None}
        num_tokens = sum(len(one.new_token_ids) for one in each)
        self._recorder.on_step(self._record(planned, times_of(model_output), emitted, num_tokens, end_ns))
        self._note_first_tokens(planned.work, emitted)
        for name, reason in finished.items():
            self._finish(name, reason, self._emit_ns)
        self._emitted = emitted - finished.keys()
        self._step_id += 1
        self._end_ns = end_ns
        self._is_idle = not self._planned and not any(self._scheduler.get_request_counts())

    def _record(
        self, planned: _Planned, times: WorkerTimes | None, emitted: set[str], num_tokens: int, end_ns: int
    ) -> StepRecord:
        work, emit_ns = planned.work, self._emit_ns
        start_ns, schedule_ns = planned.start_ns, planned.schedule_ns
        if start_ns < self._end_ns:
            start_ns, schedule_ns = self._end_ns, 0
        split = _split(times, start_ns + schedule_ns, emit_ns)
        regular, late_ns = self._gaps(emitted)
        return StepRecord(
            step_id=self._step_id,
            start_ns=start_ns,
            emit_ns=emit_ns,
            end_ns=end_ns,
            kind=step_kind(work.num_decodes, work.num_prefills),
            num_decode_seqs=work.num_decodes,
            num_prefill_seqs=work.num_prefills,
            prefill_tokens=work.prefill_tokens,
            recomputed_tokens=work.recomputed_tokens,
            cached_tokens=work.cached_tokens,
            decode_context_tokens=work.context_tokens,
            prefill_attention_pairs=work.pairs,
            emitted_tokens=num_tokens,
            max_batched_tokens=self._scheduler.max_num_scheduled_tokens,
            schedule_ns=schedule_ns,
            prepare_ns=split.prepare,
            forward_ns=split.forward,
            sample_ns=split.sample,
            postprocess_ns=end_ns - emit_ns,
            lock_wait_ns=0,  # vLLM's scheduler belongs to one thread and has no lock
            lock_hold_ns=0,
            host_gap_ns=None if self._is_idle else start_ns - self._end_ns,
            forward_cpu_ns=split.cpu,
            device_ns=None,
            num_running=planned.num_running,
            num_waiting=planned.num_waiting,
            num_preempted=planned.num_preempted,
            num_deferred=planned.num_deferred,
            deferral=planned.deferral,
            num_regular_gaps=regular,
            late_gaps_ns=late_ns,
            census=planned.census,
            evicted_blocks=planned.evicted_blocks,
            ghost_hits=work.ghost_hits,
        )

    def _gaps(self, emitted: set[str]) -> tuple[int, tuple[int, ...]]:
        """Of the step that emitted at `_emit_ns`: regular gaps, and the others one by one."""
        before, last = self._emitted, self._last_emit_ns
        for name in before - emitted:
            last[name] = self._previous_emit_ns
        late = [self._emit_ns - last.pop(name) for name in emitted - before if name in last]
        self._previous_emit_ns = self._emit_ns
        return len(emitted & before), tuple(late)

    def _note_first_tokens(self, work: _Work, emitted: set[str]) -> None:
        if not work.num_prefills:
            return
        for name in emitted:
            admitted = self._admitted.get(name)
            if admitted is not None and admitted.first_token_ns is None:
                admitted.first_token_ns = self._emit_ns
                self._recorder.on_first_token(self._emit_ns - admitted.arrival_ns)

    def _finish(self, name: str, reason: str, now_ns: int) -> None:
        admitted = self._admitted.pop(name, None)
        if admitted is None:
            return
        request = admitted.request
        self._recorder.on_request_finished(
            RequestTrace(
                request_id=name,
                arrival_ns=admitted.arrival_ns,
                first_scheduled_ns=admitted.first_scheduled_ns,
                first_token_ns=admitted.first_token_ns,
                finished_ns=now_ns,
                num_prompt_tokens=request.num_prompt_tokens,
                num_cached_tokens=admitted.cached_tokens,
                num_output_tokens=request.num_output_tokens,
                num_preemptions=request.num_preemptions,
                finish_reason=reason,
            )
        )

    def _forget(self, name: str, now_ns: int) -> None:
        """A request that ended; one that is still booked here was aborted."""
        self._finish(name, "abort", now_ns)
        self._next_start.pop(name, None)
        self._computed_before.pop(name, None)
        self._last_emit_ns.pop(name, None)
        self._emitted.discard(name)


def _split(times: WorkerTimes | None, begin_ns: int, emit_ns: int) -> _Split:
    """Without the worker's times all of it is forward; with them what is neither forward nor sampling is preparation:
    sending the plan, fetching the output, and an engine thread that had not come for it yet."""
    whole = emit_ns - begin_ns
    if times is None or times.end_ns > emit_ns:
        return _Split(0, whole, 0, None)
    forward = max(0, times.forward_end_ns - max(times.begin_ns, begin_ns))
    sample = max(0, times.end_ns - max(times.sample_begin_ns, begin_ns))
    return _Split(whole - forward - sample, forward, sample, times.cpu_ns)
