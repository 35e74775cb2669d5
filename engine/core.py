"""One engine iteration: schedule, run, commit, hand out, record.

The scheduler lock is held while the scheduler decides and while it takes in the tokens, never during the forward pass, so
that requests can arrive and metrics can be read in the middle of a long step.
"""

import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple

from engine.request import FinishReason, Request
from engine.runner.base import Runner, StepResult, TokenLogprobs
from engine.scheduler import Scheduler
from engine.shipping import Outbound, Shipment
from engine.step import BatchPlan, ScheduledStep, plan_batch
from engine.transfers import TransferEvent
from probes.locks import TimedLock
from probes.recorder import Recorder, RequestTrace
from probes.records import BlockCensus, StepRecord, step_kind

log = logging.getLogger("stallscope.engine")


class TokenOutput(NamedTuple):
    """What one step means for one request: a token, its end, or both."""

    request: Request
    token_id: int | None
    """None when the request ended without a token of this step (abort, error)."""
    finish_reason: FinishReason | None = None
    logprobs: TokenLogprobs | None = None
    """Of the token, when the request asked."""


HandOut = Callable[[list[TokenOutput]], None]


class _Decision(NamedTuple):
    """What the scheduler said, and its state at that moment, read under the same hold of the lock."""

    step: ScheduledStep
    census: BlockCensus
    num_running: int
    num_waiting: int
    evicted_blocks: int
    num_transferring: int
    aborted: list[Request]
    arrived: list[TokenOutput]
    """First tokens that a prefill instance sampled."""


class _Times(NamedTuple):
    start_ns: int
    emit_ns: int
    end_ns: int
    schedule_wait_ns: int
    schedule_ns: int
    prepare_ns: int


class _Gaps(NamedTuple):
    regular: int
    late_ns: tuple[int, ...]


class EngineCore:
    """Joins scheduler and runner. Everything but `abort` and `arrive` belongs to the engine thread.

    `step` takes its stamps in the order that `StepRecord` draws:

        start | lock | schedule | prepare | forward | sample | lock | emit | commit, hand out | end
    """

    def __init__(
        self, scheduler: Scheduler, runner: Runner, recorder: Recorder, lock: TimedLock, eos_token_ids: frozenset[int]
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.failures_in_a_row = 0
        self._recorder = recorder
        self._eos_token_ids = eos_token_ids
        self._block_size = scheduler.config.block_size
        self._max_model_len = scheduler.config.max_model_len
        self._schedule_site = lock.site("schedule")
        self._commit_site = lock.site("commit")
        self._step_id = 0
        self._evictions = 0
        self._previous_end_ns: int | None = None
        self._aborts: dict[str, FinishReason] = {}
        self._arrivals: deque[TransferEvent] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self._aborts) or bool(self._arrivals) or self.scheduler.has_work

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """Ends a request before its next step. From any thread; unknown and finished requests are ignored.

        Blocks are never freed under a running forward pass: the next scheduling pass does it.
        """
        self._aborts[request_id] = reason

    def arrive(self, event: TransferEvent) -> None:
        """What a prefill instance sent, in the order of its sending. From any thread; the next step takes it in."""
        self._arrivals.append(event)

    def idle(self) -> None:
        """The loop is about to wait for work: the time until the next step is nobody's host gap."""
        self._previous_end_ns = None

    def step(self, hand_out: HandOut) -> bool:
        """Runs one iteration and hands its outputs out once. False when nothing could run."""
        start_ns = perf_counter_ns()
        decision = self._schedule()
        lock_wait_ns, schedule_ns = self._schedule_site.last_wait_ns, self._schedule_site.last_hold_ns
        if decision.aborted:
            self._trace(decision.aborted, perf_counter_ns())
        if decision.arrived:
            hand_out(decision.arrived)
            self._observe(decision.arrived, perf_counter_ns())
        step = decision.step
        if step.is_empty:
            return False
        try:
            prepare_start_ns = perf_counter_ns()
            self._note_first_scheduled(step, prepare_start_ns)
            plan = plan_batch(step, self._block_size)
            plan.step_id = self._step_id
            prepare_ns = perf_counter_ns() - prepare_start_ns
            result = self.runner.execute(plan)
        except Exception as error:  # noqa: BLE001 - whatever a device raises, only this step's requests may pay for it
            self._fail(step, error, hand_out)
            return True
        self.failures_in_a_row = 0
        shipments = _shipments(step)
        emit_ns, outputs, gaps = self._commit(step, plan, result)
        hand_out(outputs)
        for outbound, shipment, block_ids in shipments:
            self._ship(outbound, shipment, block_ids)
        times = _Times(start_ns, emit_ns, perf_counter_ns(), lock_wait_ns, schedule_ns, prepare_ns)
        self._recorder.on_step(self._record(decision, result, gaps, times))
        for late in result.late_device_ns:
            self._recorder.on_device_time(late.step_id, late.device_ns)
        self._step_id += 1
        self._previous_end_ns = times.end_ns
        self._observe(outputs, emit_ns)
        return True

    def _record(self, decision: _Decision, result: StepResult, gaps: _Gaps, times: _Times) -> StepRecord:
        step = decision.step
        return StepRecord(
            step_id=self._step_id,
            start_ns=times.start_ns,
            emit_ns=times.emit_ns,
            end_ns=times.end_ns,
            kind=step_kind(len(step.decodes), len(step.prefills)),
            num_decode_seqs=len(step.decodes),
            num_prefill_seqs=len(step.prefills),
            prefill_tokens=step.prefill_tokens,
            recomputed_tokens=step.recomputed_tokens,
            cached_tokens=step.cached_tokens,
            decode_context_tokens=step.decode_context_tokens,
            prefill_attention_pairs=step.prefill_attention_pairs,
            emitted_tokens=len(result.token_ids),
            max_batched_tokens=step.max_batched_tokens,
            schedule_ns=times.schedule_ns,
            prepare_ns=times.prepare_ns,
            forward_ns=result.forward_ns,
            sample_ns=result.sample_ns,
            postprocess_ns=times.end_ns - times.emit_ns,
            lock_wait_ns=times.schedule_wait_ns + self._commit_site.last_wait_ns,
            lock_hold_ns=times.schedule_ns + self._commit_site.last_hold_ns,
            host_gap_ns=None if self._previous_end_ns is None else times.start_ns - self._previous_end_ns,
            forward_cpu_ns=result.cpu_ns,
            device_ns=result.device_ns,
            num_running=decision.num_running,
            num_waiting=decision.num_waiting,
            num_preempted=len(step.preempted),
            num_deferred=step.num_deferred,
            deferral=step.deferred[0].reason if step.deferred else None,
            num_regular_gaps=gaps.regular,
            late_gaps_ns=gaps.late_ns,
            census=decision.census,
            evicted_blocks=decision.evicted_blocks,
            ghost_hits=step.ghost_hits,
            received_tokens=step.received_tokens,
            num_transferring=decision.num_transferring,
        )

    def _schedule(self) -> _Decision:
        scheduler = self.scheduler
        with self._schedule_site:
            aborted = self._apply_aborts()
            arrived = self._apply_arrivals()
            step = scheduler.schedule()
            return _Decision(
                step,
                scheduler.census(),
                scheduler.num_running,
                scheduler.num_waiting,
                self._new_evictions(),
                len(scheduler.transfers),
                aborted,
                arrived,
            )

    def _new_evictions(self) -> int:
        """Since the last step: blocks are taken when a step is committed, too."""
        before, self._evictions = self._evictions, self.scheduler.counters.evictions
        return self._evictions - before

    def _apply_aborts(self) -> list[Request]:
        aborted = []
        while self._aborts:
            request_id, reason = self._aborts.popitem()
            request = self.scheduler.abort(request_id)
            if request is not None:
                request.finish_reason = reason
                aborted.append(request)
        return aborted

    def _apply_arrivals(self) -> list[TokenOutput]:
        """Prompts whose KV is here may be scheduled; a first token is emitted at once, and its decode waits for the KV."""
        outputs = []
        transfers = self.scheduler.transfers
        while self._arrivals:
            event = self._arrivals.popleft()
            if event.first_token is not None:
                request = transfers.first_token(event.request_id, event.first_token, perf_counter_ns())
                if request is not None:
                    self._note_served(request, event.asked_ns)
                    reason = self._reason_to_finish(request, event.first_token)
                    if reason is not None:
                        self.scheduler.finish(request, reason)
                    outputs.append(TokenOutput(request, event.first_token, reason, event.first_logprobs))
            if event.ended is not None:
                self._recorder.on_transfer(event.ended)
                request = transfers.end(event.request_id, event.received)
                if request is not None:
                    request.transfer = event.ended
                    if event.received is not None:
                        self._note_served(request, event.asked_ns)
        return outputs

    def _note_served(self, request: Request, asked_ns: int) -> None:
        """What a prefill instance computed was queued here until that one was asked."""
        if request.first_scheduled_ns is None:
            request.first_scheduled_ns = asked_ns
            self._recorder.on_first_scheduled(asked_ns - request.arrival_ns)

    def _ship(self, outbound: Outbound, shipment: Shipment, block_ids: list[int]) -> None:
        """Before the next step, so that nobody has written to the blocks, even if they have been given back."""
        try:
            outbound.send(shipment, self.runner.read_blocks(block_ids))
        except Exception as error:  # a device that cannot be read costs this transfer, not the engine
            log.error("blocks %d to %d could not be read for a transfer", *shipment[:2], exc_info=error)
            outbound.fail(f"{type(error).__name__}: {error}")

    def _note_first_scheduled(self, step: ScheduledStep, now_ns: int) -> None:
        for sequence in step.prefills:
            request = sequence.request
            if request.first_scheduled_ns is None:
                request.first_scheduled_ns = now_ns
                self._recorder.on_first_scheduled(now_ns - request.arrival_ns)

    def _commit(self, step: ScheduledStep, plan: BatchPlan, result: StepResult) -> tuple[int, list[TokenOutput], _Gaps]:
        """Tokens exist once the lock is ours: waiting for it is then part of the gap they end, and is booked as such."""
        with self._commit_site:
            emit_ns = perf_counter_ns()
            gaps = _gaps(plan.sample_requests, self._step_id, emit_ns)
            emitted = self.scheduler.commit(step, result.token_ids, emit_ns)
            logprobs = _by_request(plan, result)
            outputs = []
            for request in emitted:
                request.last_token_ns = emit_ns
                request.last_token_step = self._step_id
                token_id = request.output_token_ids[-1]
                reason = self._reason_to_finish(request, token_id)
                if reason is not None:
                    self.scheduler.finish(request, reason)
                outputs.append(TokenOutput(request, token_id, reason, logprobs.get(request.request_id)))
        return emit_ns, outputs, gaps

    def _reason_to_finish(self, request: Request, token_id: int) -> FinishReason | None:
        if token_id in self._eos_token_ids and not request.params.ignore_eos:
            return FinishReason.STOP
        if len(request.output_token_ids) >= request.params.max_tokens or request.num_tokens >= self._max_model_len:
            return FinishReason.LENGTH
        return None

    def _observe(self, outputs: list[TokenOutput], emit_ns: int) -> None:
        for output in outputs:
            request = output.request
            if len(request.output_token_ids) == 1:
                self._recorder.on_first_token(emit_ns - request.arrival_ns)
        finished = [output.request for output in outputs if output.finish_reason is not None]
        if finished:
            self._trace(finished, emit_ns)

    def _trace(self, requests: list[Request], finished_ns: int) -> None:
        for request in requests:
            self._recorder.on_request_finished(
                RequestTrace(
                    request_id=request.request_id,
                    arrival_ns=request.arrival_ns,
                    first_scheduled_ns=request.first_scheduled_ns,
                    first_token_ns=request.first_token_ns,
                    finished_ns=finished_ns,
                    num_prompt_tokens=len(request.prompt_token_ids),
                    num_cached_tokens=request.num_cached_tokens,
                    num_output_tokens=len(request.output_token_ids),
                    num_preemptions=request.num_preemptions,
                    finish_reason=str(request.finish_reason or FinishReason.ABORT),
                    origin=request.origin,
                    transfer=request.transfer,
                )
            )

    def _fail(self, step: ScheduledStep, error: Exception, hand_out: HandOut) -> None:
        """Ends the requests of a step whose forward pass raised. The step leaves no record: it emitted nothing."""
        self.failures_in_a_row += 1
        with self._commit_site:
            failed = self.scheduler.fail(step)
        for request in failed:
            request.finish_reason = FinishReason.ERROR
        kind = "oom" if _is_out_of_memory(error) else "forward_error"
        log.error("step failed (%s), %d requests ended with an error", kind, len(failed), exc_info=error)
        self._recorder.on_failure(kind)
        hand_out([TokenOutput(request, None, FinishReason.ERROR) for request in failed])
        end_ns = perf_counter_ns()
        self._trace(failed, end_ns)
        self._previous_end_ns = end_ns


def _shipments(step: ScheduledStep) -> list[tuple[Outbound, Shipment, list[int]]]:
    """What of the step's prompts is computed for another instance and can leave now, with its blocks.

    Taken down before the step is committed: a request that ends gives its blocks back.
    """
    due = []
    for request, start, num_tokens, _, _ in step.prefills:
        if request.outbound is not None:
            shipment = request.outbound.shipping.computed(start + num_tokens)
            if shipment is not None:
                blocks = request.block_ids[shipment.first_block : shipment.end_block]
                due.append((request.outbound, shipment, blocks))
    return due


def _gaps(sampled: list[Request], step_id: int, emit_ns: int) -> _Gaps:
    """Inter-token gaps that this step ends. Most run from the previous step's emission; the others are told one by one."""
    regular, late = 0, []
    for request in sampled:
        if request.last_token_ns is None:
            continue
        if request.last_token_step == step_id - 1:
            regular += 1
        else:
            late.append(emit_ns - request.last_token_ns)
    return _Gaps(regular, tuple(late))


def _by_request(plan: BatchPlan, result: StepResult) -> dict[str, TokenLogprobs | None]:
    """Log probabilities by request id: what was aborted meanwhile has a row but emits nothing."""
    if result.logprobs is None:
        return {}
    return {one.request_id: found for one, found in zip(plan.sample_requests, result.logprobs, strict=True)}


def _is_out_of_memory(error: Exception) -> bool:
    # By name, since this file knows no device: torch.OutOfMemoryError, and what torch's CPU allocator says.
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    )
