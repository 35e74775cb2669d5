"""Our probes in somebody else's engine: tell them what happens, step by step, and stallscope can diagnose it.

`docs/embedding.md` has a whole example. Nothing here raises into the engine: faults are counted in `probe_errors_total`.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from threading import get_ident
from time import perf_counter_ns, thread_time_ns
from typing import Concatenate, ParamSpec

from probes.arithmetic import attention_pairs
from probes.locks import LockSite, TimedLock
from probes.recorder import RequestTrace, RingRecorder
from probes.records import BlockCensus, StepRecord, step_kind
from probes.snapshot import EngineSnapshot
from probes.wire import StepsHeader, encode_steps

log = logging.getLogger("stallscope.probes")

P = ParamSpec("P")
NO_BLOCKS = BlockCensus(0, 0, 0)


class ProbeMisuse(Exception):
    """Calls that do not make a step. Never leaves the probes: it is logged and counted."""


def _guarded(probe: Callable[Concatenate["EngineProbes", P], None]) -> Callable[Concatenate["EngineProbes", P], None]:
    @wraps(probe)
    def call(probes: "EngineProbes", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            probe(probes, *args, **kwargs)
        except Exception:
            if not probes.recorder.counters.probe_errors:
                log.exception("%s failed; the engine goes on, further faults are only counted", probe.__name__)
            probes.recorder.counters.probe_errors += 1

    return call


@dataclass(slots=True)
class _Request:
    arrival_ns: int
    num_prompt_tokens: int
    computed: int = 0
    """Positions whose KV is there."""
    high_water: int = 0
    """Positions that were there once: computing them again is recompute."""
    cached: int = 0
    outputs: int = 0
    preemptions: int = 0
    first_scheduled_ns: int | None = None
    first_token_ns: int | None = None
    last_emit_ns: int = 0
    last_emit_step: int = -2


@dataclass(slots=True)
class _Step:
    """What is known of the step that runs."""

    start_ns: int
    thread_id: int = 0
    decodes: int = 0
    prefills: int = 0
    prefill_tokens: int = 0
    recomputed: int = 0
    cached: int = 0
    context: int = 0
    pairs: int = 0
    preempted: int = 0
    num_running: int = 0
    num_waiting: int = 0
    lock_wait_ns: int = 0
    lock_hold_ns: int = 0
    scheduled_ns: int = 0
    prepared_ns: int = 0
    computed_ns: int = 0
    emit_ns: int = 0
    cpu_start_ns: int = 0
    cpu_ns: int = 0
    emitted: int = 0
    regular_gaps: int = 0
    late_gaps_ns: list[int] = field(default_factory=list)
    has_failed: bool = False
    is_shared: bool = False
    """Between two threads, each of which tells of a step of its own."""

    def misuse(self, end_ns: int) -> str | None:
        """Why this step leaves no record: a part of it that nobody told would become a figure of hours."""
        if not self.start_ns:
            return "step_ends without step_begins"
        if self.is_shared:
            return "two threads told of steps at the same time"
        if not self.scheduled_ns:
            return "scheduled was not called in this step, or it failed"
        if self.lock_wait_ns > self.scheduled_ns - self.start_ns:
            return "the site given to scheduled was not taken between step_begins and scheduled"
        moments = (self.scheduled_ns, self.prepared_ns, self.computed_ns or self.emit_ns, self.emit_ns, end_ns)
        if any(later < earlier for earlier, later in pairwise(moments)):
            return "the calls of this step came in another order than scheduled, prepared, computed, emitted, step_ends"
        return None


class EngineProbes:
    """Recorder, scheduler lock and exporter state of one engine. `arrived` may be called by any thread, the others belong
    to the engine's, in this order for each step:

        step_begins  scheduled  [prepared]  [computed]  emitted  step_ends

    Args:
        model, version: shown in reports; a change of them between two windows is told first.
        max_batched_tokens, max_sequences: limits in force; assign to the attributes when they change.
        census: the KV pool's blocks now, without waiting for a lock; None where there is no paged pool.
        computes_on_thread: the forward pass is work of the engine's own thread (no GPU, no helper threads): its CPU time then
            tells work from waiting for a processor.
        facts: further labels of `engine_info`, as `weight_bytes`, `kv_bytes_per_token`, `block_size`, `device`.
    """

    def __init__(
        self,
        *,
        model: str,
        version: str,
        max_batched_tokens: int,
        max_sequences: int,
        census: Callable[[], BlockCensus] | None = None,
        computes_on_thread: bool = False,
        facts: Mapping[str, str | int] | None = None,
    ) -> None:
        self.recorder = RingRecorder()
        self.lock = TimedLock(perf_counter_ns)
        self.max_batched_tokens = max_batched_tokens
        self.max_sequences = max_sequences
        self._census = census or (lambda: NO_BLOCKS)
        self._computes_on_thread = computes_on_thread
        self._engine_id = secrets.token_hex(8)
        told = {name: str(value) for name, value in (facts or {}).items()}  # labels are text, and 7 is easily given
        self._info = {"model": model, "version": version, **told, "engine_id": self._engine_id}
        self._start_unix = time.time()
        self._requests: dict[str, _Request] = {}
        self._running: set[str] = set()
        self._query_tokens = self._hit_tokens = 0
        self._step = _Step(0)
        self._step_id = 0
        self._previous_end_ns: int | None = None

    @_guarded
    def arrived(self, request_id: str, num_prompt_tokens: int) -> None:
        """From any thread, before the engine can schedule it."""
        self._requests[request_id] = _Request(perf_counter_ns(), num_prompt_tokens)

    @_guarded
    def idle(self) -> None:
        """The engine is about to wait for work: the time until the next step is nobody's host gap. A step that began and
        found nothing to compute is over."""
        self._step, self._previous_end_ns = _Step(0), None

    @_guarded
    def step_begins(self) -> None:
        """Before the scheduler is asked, and before its lock. A step that began and had nothing to compute may be left so."""
        left, self._step = self._step, _Step(perf_counter_ns(), get_ident())
        if left.start_ns and left.thread_id != self._step.thread_id:
            self._step.is_shared = True
            raise ProbeMisuse("another thread is within a step: an engine's steps are told by one thread at a time")
        if left.scheduled_ns and left.decodes + left.prefills:
            self._previous_end_ns = None  # its time is nobody's host gap
            if not left.has_failed:
                raise ProbeMisuse("the step before never ended: call step_ends, or failed(kind) where it raised")

    @_guarded
    def scheduled(
        self,
        decodes: Iterable[str],
        prefills: Mapping[str, int],
        *,
        site: LockSite | None = None,
        cached: Mapping[str, int] | None = None,
        preempted: Iterable[str] = (),
    ) -> None:
        """What the step computes: ids that decode one token, and prompt tokens to compute by id.

        `site`: where the scheduler lock was taken, and has been released. `cached`: prompt tokens that a prefix cache held, of
        requests that begin in this step. `preempted`: requests whose KV was given up.
        """
        step, now_ns = self._step, perf_counter_ns()
        if site is not None:
            step.lock_wait_ns, step.lock_hold_ns = site.last_wait_ns, site.last_hold_ns
        for request_id in preempted:
            self._preempt(request_id)
        for request_id in decodes:
            request = self._requests[request_id]
            request.computed += 1
            step.decodes += 1
            step.context += request.computed
        for request_id, tokens in prefills.items():
            self._prefill(request_id, tokens, (cached or {}).get(request_id, 0), now_ns)
        step.num_running = len(self._running)
        step.num_waiting = self._num_waiting()
        step.scheduled_ns = step.prepared_ns = now_ns
        step.cpu_start_ns = thread_time_ns()

    def _preempt(self, request_id: str) -> None:
        request = self._requests[request_id]
        request.high_water = max(request.high_water, request.computed)
        request.computed = 0
        request.preemptions += 1
        self._running.discard(request_id)
        self._step.preempted += 1

    def _prefill(self, request_id: str, tokens: int, cached: int, now_ns: int) -> None:
        step, request = self._step, self._requests[request_id]
        if request.first_scheduled_ns is None:
            request.first_scheduled_ns = now_ns
            request.cached = cached
            self.recorder.on_first_scheduled(now_ns - request.arrival_ns)
            self._query_tokens += request.num_prompt_tokens
            self._hit_tokens += cached
            step.cached += cached
        self._running.add(request_id)
        request.computed += cached
        again = max(0, min(tokens, request.high_water - request.computed))
        step.prefills += 1
        step.recomputed += again
        step.prefill_tokens += tokens - again
        step.pairs += attention_pairs(request.computed, tokens)
        request.computed += tokens

    @_guarded
    def prepared(self) -> None:
        """Inputs are ready, the forward pass begins. Without this call preparing counts as forward."""
        self._step.prepared_ns = perf_counter_ns()

    @_guarded
    def computed(self) -> None:
        """The forward pass has ended, sampling begins. Without this call sampling counts as forward."""
        self._step.computed_ns = perf_counter_ns()

    @_guarded
    def emitted(self, request_ids: Iterable[str]) -> None:
        """A token of each of these exists: prompts that ended, and decodes."""
        step = self._step
        step.emit_ns = now_ns = perf_counter_ns()
        step.cpu_ns = thread_time_ns() - step.cpu_start_ns
        for request_id in request_ids:
            request = self._requests[request_id]
            if request.first_token_ns is None:
                request.first_token_ns = now_ns
                self.recorder.on_first_token(now_ns - request.arrival_ns)
            elif request.last_emit_step == self._step_id - 1:
                step.regular_gaps += 1
            else:
                step.late_gaps_ns.append(now_ns - request.last_emit_ns)
            request.last_emit_ns, request.last_emit_step = now_ns, self._step_id
            request.outputs += 1
            step.emitted += 1

    @_guarded
    def step_ends(self, finished: Mapping[str, str] | None = None, *, deferral: str | None = None) -> None:
        """Tokens are handed out. `finished`: reasons by id. `deferral`: why a prompt got none of this step's budget, one of
        `probes.records.DeferralReason`."""
        step, end_ns = self._step, perf_counter_ns()
        if not step.emit_ns:  # no token in this step: a prompt's chunk, say
            step.emit_ns, step.cpu_ns = step.computed_ns or end_ns, thread_time_ns() - step.cpu_start_ns
        for request_id, reason in (finished or {}).items():
            self._finish(request_id, reason, step.emit_ns)
        step.is_shared |= step.thread_id != get_ident()
        misuse = step.misuse(end_ns)
        if misuse is None:
            self.recorder.on_step(self._record(end_ns, deferral))
            self._step_id += 1
        self._step, self._previous_end_ns = _Step(0), end_ns
        if misuse is not None:
            raise ProbeMisuse(f"{misuse}; the step leaves no record")

    @_guarded
    def aborted(self, request_id: str, reason: str = "abort") -> None:
        """A request ends outside of a step: its client left, or it was rejected. Unknown ones are ignored."""
        if request_id in self._requests:
            self._finish(request_id, reason, perf_counter_ns())

    @_guarded
    def failed(self, kind: str) -> None:
        """A failure that an operator must see: `oom`, `forward_error`, `engine_dead`. A step that raised need not end."""
        self._step.has_failed = True
        self.recorder.on_failure(kind)

    def _finish(self, request_id: str, reason: str, now_ns: int) -> None:
        request = self._requests.pop(request_id)
        self._running.discard(request_id)
        self.recorder.on_request_finished(
            RequestTrace(
                request_id=request_id,
                arrival_ns=request.arrival_ns,
                first_scheduled_ns=request.first_scheduled_ns,
                first_token_ns=request.first_token_ns,
                finished_ns=now_ns,
                num_prompt_tokens=request.num_prompt_tokens,
                num_cached_tokens=request.cached,
                num_output_tokens=request.outputs,
                num_preemptions=request.preemptions,
                finish_reason=reason,
            )
        )

    def _record(self, end_ns: int, deferral: str | None) -> StepRecord:
        step, before = self._step, self._previous_end_ns
        computed_ns = step.computed_ns or step.emit_ns
        return StepRecord(
            step_id=self._step_id,
            start_ns=step.start_ns,
            emit_ns=step.emit_ns,
            end_ns=end_ns,
            kind=step_kind(step.decodes, step.prefills),
            num_decode_seqs=step.decodes,
            num_prefill_seqs=step.prefills,
            prefill_tokens=step.prefill_tokens,
            recomputed_tokens=step.recomputed,
            cached_tokens=step.cached,
            decode_context_tokens=step.context,
            prefill_attention_pairs=step.pairs,
            emitted_tokens=step.emitted,
            max_batched_tokens=self.max_batched_tokens,
            schedule_ns=step.scheduled_ns - step.start_ns - step.lock_wait_ns,
            prepare_ns=step.prepared_ns - step.scheduled_ns,
            forward_ns=computed_ns - step.prepared_ns,
            sample_ns=step.emit_ns - computed_ns,
            postprocess_ns=end_ns - step.emit_ns,
            lock_wait_ns=step.lock_wait_ns,
            lock_hold_ns=step.lock_hold_ns,
            host_gap_ns=None if before is None else step.start_ns - before,
            forward_cpu_ns=step.cpu_ns if self._computes_on_thread else None,
            device_ns=None,
            num_running=step.num_running,
            num_waiting=step.num_waiting,
            num_preempted=step.preempted,
            num_deferred=int(deferral is not None),
            deferral=deferral,
            num_regular_gaps=step.regular_gaps,
            late_gaps_ns=tuple(step.late_gaps_ns),
            census=self._census(),
            evicted_blocks=0,
        )

    def _num_waiting(self) -> int:
        return max(0, len(self._requests) - len(self._running))  # other threads may add to the first meanwhile

    # What observers read, from any thread.

    def snapshot(self) -> EngineSnapshot:
        return EngineSnapshot(
            census=self._census(),
            num_running=len(self._running),
            num_waiting=self._num_waiting(),
            waiting_by_reason={},
            prefix_query_tokens=self._query_tokens,
            prefix_hit_tokens=self._hit_tokens,
            max_batched_tokens=self.max_batched_tokens,
            max_sequences=self.max_sequences,
            memory_bytes={},
            bandwidth_bytes_per_second=None,
            start_unix=self._start_unix,
            info=self._info,
        )

    def steps(self, since: int = 0, limit: int | None = None) -> Iterable[str]:
        """The answer of `/debug/steps?since=N`: JSON lines, the header first."""
        found = self.recorder.steps_since(since, limit)
        header = StepsHeader(self._engine_id, found.next_id, found.lost, perf_counter_ns(), time.time_ns())
        return encode_steps(header, found.records)
