"""The engine thread: takes requests in from any thread, steps while there is work, sleeps while there is none."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter_ns
from typing import NamedTuple, Protocol

from engine.core import EngineCore, TokenOutput
from engine.errors import EngineUnavailable
from engine.request import FinishReason, Request, RequestView, view_of
from engine.scheduler import Scheduler
from engine.transfers import TransferEvent
from probes.locks import TimedLock
from probes.recorder import Recorder
from probes.records import DeferralReason
from probes.snapshot import EngineSnapshot

log = logging.getLogger("stallscope.engine")

MAX_FAILURES_IN_A_ROW = 3
"""Forward passes that may fail one after the other before the engine is declared dead."""
BLOCKED_RETRY_SECONDS = 0.005
"""Pause when work is there but nothing of it can run; an abort or a new limit ends it early."""

Sink = Callable[[TokenOutput], None]
Deliver = Callable[[list[TokenOutput]], None]
Post = Callable[[Deliver, list[TokenOutput]], None]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What does not change while the engine runs, for exporters."""

    engine_id: str
    memory_bytes: dict[str, int]
    bandwidth_bytes_per_second: float | None
    start_unix: float
    info: dict[str, str]
    flops_per_second: float | None = None


class EngineState(NamedTuple):
    """What the admin surface can change, and what it needs to judge the change by."""

    status: str
    """ok, draining, drained or dead."""
    max_batched_tokens: int
    max_sequences: int
    prefix_cache_enabled: bool
    num_running: int
    num_waiting: int


class PrefillPeer(Protocol):
    """A prefill instance that computes prompts for this one. Its answers come as events to `EngineThread.arrive`."""

    min_tokens: int
    """Prompt tokens not cached here from which it is asked."""

    @property
    def is_available(self) -> bool:
        """False while it is known not to answer: prompts are then computed here without a wait."""
        ...

    def fetch(self, request: Request, first_block: int) -> None:
        """Asks for the KV of a prompt from that block on. Returns at once; exactly one event with `ended` follows,
        unless the fetch is cancelled."""
        ...

    def cancel(self, request_id: str) -> None:
        """Idempotent; unknown ids are ignored."""
        ...


class EngineThread:
    """Owns the engine core. Callers may be any thread; outputs reach each request's sink through `post`.

    `post(deliver, outputs)` is called once per step and moves the batch to where the sinks live (an event loop's
    `call_soon_threadsafe`); without it sinks run on the engine thread.
    """

    def __init__(self, core: EngineCore, lock: TimedLock, recorder: Recorder, facts: EngineFacts) -> None:
        self.facts = facts
        self.prefill_peer: PrefillPeer | None = None
        """Set before `start`; None: every prompt is computed here."""
        self.dead_reason: str | None = None
        self._core = core
        self._scheduler = core.scheduler
        self._recorder = recorder
        self._submit_site = lock.site("submit")
        self._snapshot_site = lock.site("snapshot")
        self._admin_site = lock.site("admin")
        self._idle_site = lock.site("idle_check")
        self._sinks: dict[str, tuple[Request, Sink]] = {}
        self._post: Post = _call
        self._wake = threading.Event()
        self._stopping = False
        self._draining = False
        self._checked = True
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, post: Post | None = None) -> None:
        if post is not None:
            self._post = post
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> bool:
        """Ends the thread after its current step; False when that takes longer than `timeout`."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    # Requests.

    def submit(self, request: Request, sink: Sink, siblings: Sequence[tuple[Request, Sink]] = ()) -> None:
        """`siblings` ask for more answers to the same prompt, which is computed once.

        Raises RequestRejected (never servable) or EngineUnavailable (not now), with nothing submitted.
        """
        self._require_available()
        group = {one.request_id: (one, its_sink) for one, its_sink in ((request, sink), *siblings)}
        # Known before they can emit: the engine thread may schedule them the moment the lock is released.
        self._sinks |= group
        try:
            with self._submit_site:
                self._scheduler.add(request, [sibling for sibling, _ in siblings])
                first_block = self._begin_transfer(request)
        except BaseException:
            for request_id in group:
                del self._sinks[request_id]
            raise
        self._wake.set()
        if self.prefill_peer is not None and first_block is not None:
            self.prefill_peer.fetch(request, first_block)

    def _begin_transfer(self, request: Request) -> int | None:
        """The block from which a prefill instance is to compute the prompt; None: all of it is computed here."""
        peer, scheduler = self.prefill_peer, self._scheduler
        if peer is None or not peer.is_available:
            return None
        return scheduler.transfers.begin(request, peer.min_tokens, scheduler.config.enable_prefix_cache)

    def arrive(self, event: TransferEvent) -> None:
        """From the prefill peer's threads."""
        self._core.arrive(event)
        self._wake.set()

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """Idempotent; the sink hears nothing more. Blocks are back after the next scheduling pass."""
        if self._sinks.pop(request_id, None) is not None:
            self._core.abort(request_id, reason)
            self._cancel_transfer(request_id)
            self._wake.set()

    def _cancel_transfer(self, request_id: str) -> None:
        if self.prefill_peer is not None:
            self.prefill_peer.cancel(request_id)

    def fail_all(self) -> None:
        """Ends every open request with an error at its sink (shutdown, dead engine)."""
        open_requests = [request for request, _ in list(self._sinks.values())]
        for request in open_requests:
            self._core.abort(request.request_id, FinishReason.ERROR)
            self._cancel_transfer(request.request_id)
        self._wake.set()
        self._hand_out([TokenOutput(request, None, FinishReason.ERROR) for request in open_requests])

    # Control. Every verb may be repeated without harm.

    def drain(self) -> None:
        """No new requests; the ones inside finish."""
        self._draining = True

    def resume(self) -> None:
        self._draining = False

    @property
    def is_drained(self) -> bool:
        return self._draining and not self._sinks and not self._core.has_work

    def set_limits(self, max_batched_tokens: int | None = None, max_sequences: int | None = None) -> None:
        """Raises ConfigError (a ValueError) that names the bound; nothing has changed then."""
        with self._admin_site:
            self._scheduler.set_limits(max_batched_tokens=max_batched_tokens, max_sequences=max_sequences)
        self._wake.set()

    def set_prefix_cache(self, enabled: bool) -> None:
        with self._admin_site:
            self._scheduler.set_prefix_cache(enabled)

    def reset_prefix_cache(self) -> int:
        with self._admin_site:
            return self._scheduler.reset_prefix_cache()

    # Views.

    def snapshot(self) -> EngineSnapshot:
        scheduler, facts = self._scheduler, self.facts
        with self._snapshot_site:
            return EngineSnapshot(
                census=scheduler.census(),
                num_running=scheduler.num_running,
                num_waiting=scheduler.num_waiting,
                num_forking=scheduler.num_forking,
                num_transferring=None if self.prefill_peer is None else len(scheduler.transfers),
                waiting_by_reason=_by_reason(scheduler),
                prefix_query_tokens=scheduler.counters.prefix_query_tokens,
                prefix_hit_tokens=scheduler.counters.prefix_hit_tokens,
                max_batched_tokens=scheduler.config.max_batched_tokens,
                max_sequences=scheduler.config.max_sequences,
                memory_bytes=facts.memory_bytes,
                bandwidth_bytes_per_second=facts.bandwidth_bytes_per_second,
                start_unix=facts.start_unix,
                info=facts.info,
                reuse=None if scheduler.reuse is None else scheduler.reuse.snapshot(),
                flops_per_second=facts.flops_per_second,
            )

    def requests(self, limit: int) -> tuple[list[RequestView], int]:
        """The oldest `limit` live requests, and how many there are."""
        now_ns = perf_counter_ns()
        with self._snapshot_site:
            self._scheduler.refresh_deferrals()
            live = self._scheduler.requests
            return [view_of(request, now_ns) for request in islice(live.values(), limit)], len(live)

    def state(self) -> EngineState:
        with self._snapshot_site:
            scheduler = self._scheduler
            return EngineState(
                self.status(),
                scheduler.config.max_batched_tokens,
                scheduler.config.max_sequences,
                scheduler.config.enable_prefix_cache,
                scheduler.num_running,
                scheduler.num_waiting,
            )

    def status(self) -> str:
        if self.dead_reason is not None:
            return "dead"
        if self._draining:
            return "drained" if self.is_drained else "draining"
        return "ok"

    # The thread.

    def _require_available(self) -> None:
        if self.dead_reason is not None:
            raise EngineUnavailable(f"the engine is dead: {self.dead_reason}", code="engine_dead")
        if self._draining or self._stopping:
            raise EngineUnavailable("the engine is draining and takes no new requests", code="draining")

    def _run(self) -> None:
        try:
            while not self._stopping:
                if not self._core.has_work:
                    self._wait_for_work()
                elif not self._core.step(self._hand_out):
                    self._wake.wait(BLOCKED_RETRY_SECONDS)
                    self._wake.clear()
                else:
                    self._checked = False
                    if self._core.failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
                        return self._die(f"{MAX_FAILURES_IN_A_ROW} forward passes in a row failed")
        except Exception as error:
            # The last frame of the thread: say it loudly and answer the clients, whatever it was.
            log.critical("the engine thread stopped", exc_info=error)
            self._die(f"{type(error).__name__}: {error}")

    def _wait_for_work(self) -> None:
        self._core.idle()
        self._wake.clear()
        if self._core.has_work or self._stopping:
            return  # arrived between the check and the clear: waiting now would miss it
        if not self._checked:
            # Once per busy spell, when it disturbs nobody.
            with self._idle_site:
                self._scheduler.check_invariants()
            self._checked = True
        self._wake.wait()

    def _die(self, reason: str) -> None:
        log.critical("engine dead: %s", reason)
        self.dead_reason = reason
        self._recorder.on_failure("engine_dead")
        self.fail_all()

    def _hand_out(self, outputs: list[TokenOutput]) -> None:
        if outputs:
            self._post(self._deliver, outputs)

    def _deliver(self, outputs: list[TokenOutput]) -> None:
        """Runs where the sinks live."""
        for output in outputs:
            request_id = output.request.request_id
            entry = self._sinks.get(request_id)
            if entry is None:
                continue  # its client left, or a stop string ended it
            if output.finish_reason is not None:
                del self._sinks[request_id]
                self._cancel_transfer(request_id)
            entry[1](output)


def _by_reason(scheduler: Scheduler) -> dict[str, int]:
    """Of those in the queue, and of those that are kept out of it."""
    counts = scheduler.waiting_by_reason()
    if scheduler.transfers:
        counts[DeferralReason.KV_TRANSFER] = len(scheduler.transfers)
    return counts


def _call(deliver: Deliver, outputs: list[TokenOutput]) -> None:
    deliver(outputs)
