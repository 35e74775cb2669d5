"""Where the engine leaves its facts: bounded rings of step records and request traces, and cumulative counters beside them.

One thread writes (the engine's); any number read. Counters only grow, and readers take differences, so that two readers
never rob each other. The rings are lossy by count: what a reader came too late for is counted, never silently missing.

    on_step ---> ring ---> counters: every COUNTED_TOGETHER steps by the writer, and by a reader before it reads them
"""

from collections import Counter, deque
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Concatenate, NamedTuple, ParamSpec, Protocol

from probes.counters import Counters, DecodeFloor
from probes.locks import Histogram
from probes.records import DeviceTime, OpClass, StepKind, StepRecord

COUNTED_TOGETHER = 16
"""Steps. After a forward pass the processor's caches hold none of the counting: what that costs is paid once for so many."""


class RequestOrigin(NamedTuple):
    """What the client's request says of itself, for its span."""

    operation: str
    """chat or text_completion."""
    group: str
    """Id of the request's first choice; its other choices are traced by themselves."""
    traceparent: str | None = None
    tracestate: str | None = None
    """W3C trace context headers, as they came."""


class TransferTrace(NamedTuple):
    """How the KV of a prompt came from a prefill instance, as the decode side saw it."""

    wait_ns: int
    """From asking the prefill instance until all of it was here, or until it was given up."""
    exposed_ns: int | None
    """Of that, what the transfer added to the prefill instance's own work; None: it failed, so that nobody knows."""
    wire_ns: int | None
    """Time in which its chunks were sent, summed up, as the sender saw it; hidden behind computation or not."""
    num_bytes: int
    num_chunks: int
    failure: str | None = None
    """Why it ended early; the prompt was then computed here."""


class RequestTrace(NamedTuple):
    """One finished request; stamps are monotonic ns, None when the request never got there."""

    request_id: str
    arrival_ns: int
    first_scheduled_ns: int | None
    first_token_ns: int | None
    finished_ns: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_preemptions: int
    finish_reason: str
    origin: RequestOrigin | None = None
    transfer: TransferTrace | None = None
    """None: the prompt was computed here from the start."""


class StepSlice(NamedTuple):
    records: list[StepRecord]
    next_id: int
    """Pass as `since` of the next read."""
    lost: int
    """Records in the asked range that had been overwritten."""


class TraceSlice(NamedTuple):
    traces: list[RequestTrace]
    """In the order in which the requests finished."""
    next_id: int
    """Pass as `since` of the next read."""
    lost: int
    """Traces in the asked range that had been overwritten."""


class Recorder(Protocol):
    """What the engine calls. Implementations are O(1) and never raise into the engine."""

    def on_step(self, record: StepRecord) -> None: ...

    def on_device_time(self, step_id: int, device_ns: DeviceTime | None) -> None:
        """The device time of an earlier step, which its record lacked; None: it will never be known."""
        ...

    def on_first_scheduled(self, queue_ns: int) -> None: ...

    def on_first_token(self, ttft_ns: int) -> None: ...

    def on_request_finished(self, trace: RequestTrace) -> None: ...

    def on_failure(self, kind: str) -> None: ...

    def on_transfer(self, trace: TransferTrace) -> None:
        """A prompt's KV has come, or will not come."""
        ...

    def on_delivered(self, delay_ns: int) -> None:
        """The front end has taken a step's tokens, so long after the engine handed them out. From the front end's thread."""
        ...


class NullRecorder:
    """Records nothing: the other arm of every measurement of what recording costs."""

    def on_step(self, record: StepRecord) -> None:
        pass

    def on_device_time(self, step_id: int, device_ns: DeviceTime | None) -> None:
        pass

    def on_first_scheduled(self, queue_ns: int) -> None:
        pass

    def on_first_token(self, ttft_ns: int) -> None:
        pass

    def on_request_finished(self, trace: RequestTrace) -> None:
        pass

    def on_failure(self, kind: str) -> None:
        pass

    def on_transfer(self, trace: TransferTrace) -> None:
        pass

    def on_delivered(self, delay_ns: int) -> None:
        pass


P = ParamSpec("P")


def _guarded(
    probe: Callable[Concatenate["RingRecorder", P], None],
) -> Callable[Concatenate["RingRecorder", P], None]:
    """A fault of the probe must not stop a serving engine: it is counted, and exported as `probe_errors_total`."""

    @wraps(probe)
    def call(recorder: "RingRecorder", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            probe(recorder, *args, **kwargs)
        except Exception:  # noqa: BLE001 - see above
            recorder._counters.probe_errors += 1

    return call


class RingRecorder:
    """Ring of the last `capacity` step records, one of the last `trace_capacity` request traces, and the counters."""

    def __init__(self, capacity: int = 8192, trace_capacity: int = 4096) -> None:
        for name, value in (("capacity", capacity), ("trace_capacity", trace_capacity)):
            if value <= 0:
                raise ValueError(f"{name} must be positive, got {value}")
        self._ring: list[StepRecord | None] = [None] * capacity
        self._capacity, self._count_at = capacity, min(COUNTED_TOGETHER, capacity)
        self._next_id = 0
        # Each with its number: traces have none of their own by which a reader could tell that a slot was overwritten.
        self._traces: list[tuple[int, RequestTrace] | None] = [None] * trace_capacity
        self._next_trace = 0
        # Who counts holds this lock.
        self._counting = Lock()
        self._counted = 0
        """Steps below this number are in the counters."""
        self._device_times: deque[tuple[StepKind, DeviceTime]] = deque()
        """Not counted yet: they come with their step or some steps later."""
        self._last_emit_ns = 0
        self._floor = DecodeFloor()
        self._sending = Lock()
        self._counters = Counters(
            step_duration={kind: Histogram() for kind in StepKind},
            device_ns={kind: [0] * len(OpClass) for kind in StepKind},
            schedule=Histogram(),
            host_gap=Histogram(),
            inter_token_latency=Histogram(),
            time_to_first_token=Histogram(),
            e2e=Histogram(),
            queue_time=Histogram(),
            frontend_delay=Histogram(),
            tokens=Counter(),
            deferrals=Counter(),
            failures=Counter(),
            finished=Counter(),
            stall_ns=Counter(),
            transfer_wire=Histogram(),
            transfer_exposed=Histogram(),
            transfer_bytes=Counter(),
            transfer_chunks=Counter(),
            transfer_failures=Counter(),
        )

    @property
    def counters(self) -> Counters:
        """With every step recorded so far. From any thread."""
        with self._counting:
            self._count_new()
        return self._counters

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def next_id(self) -> int:
        return self._next_id

    @_guarded
    def on_step(self, record: StepRecord) -> None:
        if record.step_id != self._next_id:
            self._go_on_at(record.step_id)
        # The slot is filled before the cursor moves: a reader never sees an empty slot below next_id.
        self._ring[record.step_id % self._capacity] = record
        self._next_id = record.step_id + 1
        if record.device_ns is not None:
            self._device_times.append((record.kind, record.device_ns))
        behind = self._next_id - self._counted
        # It waits for a reader that is counting only where the next step would overwrite one that is not counted.
        if behind >= self._count_at and self._counting.acquire(blocking=behind >= self._capacity):
            try:
                self._count_new()
            finally:
                self._counting.release()

    @_guarded
    def on_device_time(self, step_id: int, device_ns: DeviceTime | None) -> None:
        """Fills in the record; who read it before keeps it without. A record no longer held has no kind to count under,
        so that its time is lost."""
        slot = step_id % len(self._ring)
        record = self._ring[slot]
        if device_ns is None or record is None or record.step_id != step_id:
            self._counters.lost_device_times += 1
            return
        self._ring[slot] = record._replace(device_ns=device_ns)
        self._device_times.append((record.kind, device_ns))

    def _go_on_at(self, step_id: int) -> None:
        """Numbers that do not follow, as when an engine starts over: what came before is counted first."""
        with self._counting:
            self._count_new()
            self._counted = self._next_id = step_id

    def _count_new(self) -> None:
        """For whoever holds `_counting`. What cannot be counted is a fault of the probe; the rest is counted."""
        fresh = self.steps_since(self._counted)
        self._counted = fresh.next_id
        for record in fresh.records:
            self._count(record)
        while self._device_times:
            self._count_device_time(*self._device_times.popleft())

    @_guarded
    def _count_device_time(self, kind: StepKind, device_ns: DeviceTime) -> None:
        sums = self._counters.device_ns[kind]
        for op, ns in enumerate(device_ns):
            sums[op] += ns

    @_guarded
    def _count(self, record: StepRecord) -> None:
        counters = self._counters
        counters.step_duration[record.kind].observe(record.end_ns - record.start_ns)
        if record.schedule_ns is not None:
            counters.schedule.observe(record.schedule_ns)
        if record.host_gap_ns is not None:
            counters.host_gap.observe(record.host_gap_ns)
        tokens = counters.tokens
        tokens["prefill"] += record.prefill_tokens or 0
        tokens["recompute"] += record.recomputed_tokens or 0
        tokens["cached"] += record.cached_tokens or 0
        tokens["received"] += record.received_tokens or 0
        tokens["decode"] += record.emitted_tokens or 0
        if record.deferral is not None:
            counters.deferrals[record.deferral] += record.num_deferred or 0
        counters.evictions += record.evicted_blocks or 0
        counters.ghost_hits += record.ghost_hits or 0
        counters.preemptions += record.num_preempted or 0
        self._count_gaps(record)

    def _count_gaps(self, record: StepRecord) -> None:
        """Inter-token gaps of this step and by how much their causes exceeded the decode floor."""
        late = record.late_gaps_ns
        if record.num_regular_gaps:
            self._counters.inter_token_latency.observe(record.emit_ns - self._last_emit_ns, record.num_regular_gaps)
        for gap in late:
            self._counters.inter_token_latency.observe(gap)
        self._last_emit_ns = record.emit_ns

        decodes, device_ns = record.num_decode_seqs, record.forward_ns + (record.sample_ns or 0)
        if not decodes:
            return
        stall = self._counters.stall_ns
        if record.kind is StepKind.DECODE:
            self._floor.learn(decodes, device_ns)
        else:
            floor = self._floor.of(decodes)
            if floor is not None and device_ns > floor:
                stall["prefill", "some"] += round(device_ns - floor)
                stall["prefill", "full"] += round(device_ns - floor)
        host = (
            (record.schedule_ns or 0)
            + (record.prepare_ns or 0)
            + (record.end_ns - record.emit_ns)
            + (record.host_gap_ns or 0)
        )
        for cause, ns in (("host", host), ("lock", record.lock_wait_ns or 0)):
            stall[cause, "some"] += ns
            stall[cause, "full"] += ns
        if late:
            # Others went on meanwhile, so the stall of a preempted or deferred sequence is never full. One whose first token
            # came before its KV waited for the transfer.
            cause = "kv_transfer" if record.received_tokens else "preemption_or_deferral"
            stall[cause, "some"] += max(late)

    @_guarded
    def on_request_finished(self, trace: RequestTrace) -> None:
        number = self._next_trace
        self._traces[number % len(self._traces)] = (number, trace)
        self._next_trace = number + 1
        counters = self._counters
        counters.finished[trace.finish_reason] += 1
        counters.e2e.observe(trace.finished_ns - trace.arrival_ns)

    @_guarded
    def on_first_scheduled(self, queue_ns: int) -> None:
        self._counters.queue_time.observe(queue_ns)

    @_guarded
    def on_first_token(self, ttft_ns: int) -> None:
        self._counters.time_to_first_token.observe(ttft_ns)

    @_guarded
    def on_failure(self, kind: str) -> None:
        self._counters.failures[kind] += 1

    @_guarded
    def on_transfer(self, trace: TransferTrace) -> None:
        counters = self._counters
        counters.transfer_bytes["received"] += trace.num_bytes
        counters.transfer_chunks["received"] += trace.num_chunks
        if trace.failure is not None:
            counters.transfer_failures[trace.failure] += 1
        if trace.wire_ns is not None:
            counters.transfer_wire.observe(trace.wire_ns)
        if trace.exposed_ns is not None:
            counters.transfer_exposed.observe(trace.exposed_ns)

    @_guarded
    def on_delivered(self, delay_ns: int) -> None:
        self._counters.frontend_delay.observe(delay_ns)

    @_guarded
    def on_kv_sent(self, num_bytes: int, num_chunks: int, wire_ns: int, failure: str | None = None) -> None:
        """The prefill side's view of one prompt. From any thread: each connection has its own."""
        counters = self._counters
        with self._sending:
            counters.transfer_bytes["sent"] += num_bytes
            counters.transfer_chunks["sent"] += num_chunks
            if failure is not None:
                counters.transfer_failures[failure] += 1
            elif num_chunks:
                counters.transfer_wire.observe(wire_ns)

    def steps_since(self, since: int, limit: int | None = None) -> StepSlice:
        """Records with step_id >= since that are still held. Safe beside the writer: a slot is one reference."""
        start, end = _held(since, limit, self._next_id, len(self._ring))
        records: list[StepRecord] = []
        for step_id in range(start, end):
            record = self._ring[step_id % len(self._ring)]
            if record is not None and record.step_id == step_id:  # else: overwritten while we were reading
                records.append(record)
        return StepSlice(records, end, max(0, end - max(since, 0)) - len(records))

    def traces_since(self, since: int, limit: int | None = None) -> TraceSlice:
        """Finished requests from number `since` on (they count from 0) that are still held. Safe beside the writer."""
        start, end = _held(since, limit, self._next_trace, len(self._traces))
        traces: list[RequestTrace] = []
        for number in range(start, end):
            slot = self._traces[number % len(self._traces)]
            if slot is not None and slot[0] == number:
                traces.append(slot[1])
        return TraceSlice(traces, end, max(0, end - max(since, 0)) - len(traces))


def _held(since: int, limit: int | None, next_id: int, capacity: int) -> tuple[int, int]:
    """The range of numbers a reader can get of a ring, cut to `limit` of them."""
    oldest = max(since, next_id - capacity, 0)
    return oldest, next_id if limit is None else min(next_id, oldest + limit)
