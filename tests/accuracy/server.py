"""A simulated server: the engine's own scheduler, pool and prefix cache in virtual time, with a cost model for its steps.

Nothing of a condition is painted on: queues, preemptions, evictions and ghost hits are what the real policy makes of the load.
Only what work costs is made up, and with it the faults that lie outside of the policy (a slow host, a leak, a hang).
"""

from collections import deque
from collections.abc import Sequence
from random import Random

from engine.config import SchedulerConfig
from engine.prefix_cache import CacheScope
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler import Scheduler
from engine.step import ScheduledStep
from probes.locks import TimedLock
from probes.recorder import RequestTrace, RingRecorder
from probes.records import BlockCensus, StepRecord, step_kind
from runbooks.drills.service_levels import Levels
from runbooks.experiments.workload import Arrival
from tests.accuracy.accounts import PARTS, TrueGap
from tests.accuracy.scenario import Faults, Shape
from tests.accuracy.vllm import VllmFace, start_up, usage_of
from tests.builders import START_UNIX, make_exposition

US, SECOND = 1_000, 1_000_000_000
_BLOCKED_RETRY_NS = 5_000_000
_VOCABULARY = 30_000
_FRONT_END_NS = 200 * US
"""From the hand-out of a step's tokens to an event loop that has nothing else to do."""


class SimulatedServer:
    """Runs arrivals in virtual time. `now_ns` is its clock; pages and records are read between two calls of `run`."""

    def __init__(self, shape: Shape, faults: Faults, seed: str) -> None:
        self.shape, self.faults = shape, faults
        self.now_ns = SECOND
        self.recorder = RingRecorder(capacity=1 << 16)
        self.lock = TimedLock()
        self.clients = Levels()
        self.window_ns = self.now_ns
        """When the watch began: `START_UNIX` on the pages."""
        self.is_dead = False
        self.gaps: list[TrueGap] = []
        """Of the window: where the time between tokens really went."""
        self._site = self.lock.site("schedule")
        config = SchedulerConfig(
            shape.budget, shape.max_sequences, shape.block_size, shape.kv_blocks, shape.kv_blocks * shape.block_size
        )
        self.scheduler = Scheduler(config, CacheScope(weights=shape.name), clock_ns=lambda: self.now_ns)
        self._random = Random(seed)
        self._arrivals: deque[Request] = deque()
        self._line: list[Request] = []
        """Behind a head that can never start: the scheduler does not see them."""
        self._closed = False
        self._step_id = 0
        self._evictions = 0
        self._previous_end_ns: int | None = None
        self._numbers = 0
        self._last_hand_out_ns = 0
        self._taken_up_ns: dict[str, int] = {}
        """By request: how late the front end was with its latest token."""
        self.vllm = VllmFace(shape.name, START_UNIX)
        if faults.leaked_share:
            self.scheduler.pool.allocate(round(faults.leaked_share * shape.kv_blocks))

    def offer(self, arrivals: Sequence[Arrival], salt: str) -> None:
        """Arrivals of the time from now on. A group's prefix is the same tokens for the same salt."""
        for arrival in arrivals:
            shared = _tokens(f"{salt}/{arrival.prefix_group}", arrival.prefix_words)
            own = _tokens(f"{salt}/own/{self._numbers}", max(1, arrival.prompt_words - arrival.prefix_words))
            params = SamplingParams(max_tokens=max(1, arrival.output_tokens), ignore_eos=True)
            at = self.now_ns + round(arrival.at * SECOND)
            self._arrivals.append(Request(f"r{self._numbers}", shared + own, params, at))
            self._numbers += 1

    def begin_window(self) -> None:
        """Forgets what clients saw until now; from here on a blocked line blocks."""
        self.clients = Levels()
        self._closed = self.faults.blocked_line

    def begin_watch(self) -> None:
        """What is recorded of the window begins here, at `START_UNIX`; a log with what the server stated at its start."""
        self.gaps, self.window_ns = [], self.now_ns
        self.vllm.log = start_up(self.scheduler, self.shape.name, START_UNIX)
        self.vllm.begin_interval(START_UNIX)

    def run(self, seconds: float) -> None:
        until = self.now_ns + round(seconds * SECOND)
        if self.faults.hangs and self._step_id:
            self.now_ns = until
            self._take_arrivals()
            return
        while self.now_ns < until:
            self._take_arrivals()
            if not self.scheduler.has_work:
                self._previous_end_ns = None
                self.now_ns = min(until, self._arrivals[0].arrival_ns) if self._arrivals else until
            elif not self._step():
                self.now_ns += _BLOCKED_RETRY_NS

    def end_window(self) -> Levels:
        """What the clients of the window saw, those still without a token included."""
        waiting = [r for r in (*self.scheduler.requests.values(), *self._line) if r.first_token_ns is None]
        self.clients.unanswered = len(waiting)
        self.clients.ttfts += [(self.now_ns - r.arrival_ns) / 1e9 for r in waiting]
        return self.clients

    def run_out_of_memory(self) -> None:
        """Three steps in a row fail, whose requests end with an error as all others do then."""
        for kind in ("oom", "oom", "oom", "engine_dead"):
            self.recorder.on_failure(kind)
        for request_id in list(self.scheduler.requests):
            self.scheduler.abort(request_id)
            self.clients.failed += 1
        self.is_dead = True

    @property
    def num_waiting(self) -> int:
        return self.scheduler.num_waiting + len(self._line)

    def look(self) -> tuple[str, str]:
        """Its page, and vLLM's."""
        return self.page(), self.vllm.page(self.scheduler, self.num_waiting)

    def page(self) -> str:
        scheduler, shape = self.scheduler, self.shape
        reasons = dict(scheduler.waiting_by_reason())
        if self._line:
            reasons["not_considered_yet"] = reasons.get("not_considered_yet", 0) + len(self._line)
        counters = scheduler.counters
        total = 100 << 30
        return make_exposition(
            self.recorder,
            self.lock,
            start_unix=START_UNIX,
            gpu=self.faults.gpu,
            census=scheduler.census(),
            num_running=scheduler.num_running,
            num_waiting=self.num_waiting,
            waiting_by_reason=reasons,
            prefix_query_tokens=counters.prefix_query_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            max_batched_tokens=scheduler.config.max_batched_tokens,
            max_sequences=scheduler.config.max_sequences,
            memory_bytes={
                "total": total,
                "reserved": round(total * shape.memory_share),
                "weights": total // 5,
                "kv_pool": round(total * shape.memory_share) - total // 5,
            },
            bandwidth_bytes_per_second=shape.read_rate,
            flops_per_second=None,
            info=shape.info,
            reuse=None if scheduler.reuse is None else scheduler.reuse.snapshot(),
        )

    def _take_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0].arrival_ns <= self.now_ns:
            request = self._arrivals.popleft()
            if self.is_dead:
                self.clients.failed += 1
            elif self._closed:
                self._line.append(request)
            else:
                self.scheduler.add(request)

    def _step(self) -> bool:
        shape, faults = self.shape, self.faults
        start_ns = self.now_ns
        wait_ns = round(self._random.expovariate(1 / (faults.lock_wait_us * US))) if faults.lock_wait_us else 0
        self._site.wait.observe(wait_ns)
        schedule_ns = round(shape.schedule_us * faults.schedule_factor * self._random.uniform(0.7, 1.3) * US)
        self.now_ns += wait_ns + schedule_ns
        self._site.hold.observe(schedule_ns)
        step = self.scheduler.schedule()
        if step.is_empty:
            return False
        census, running, waiting = self.scheduler.census(), self.scheduler.num_running, self.scheduler.num_waiting
        for chunk in step.prefills:
            if chunk.request.first_scheduled_ns is None:
                chunk.request.first_scheduled_ns = self.now_ns
                self.recorder.on_first_scheduled(self.now_ns - chunk.request.arrival_ns)
        decode_ns, prompt_ns = self._cost_ns(step)
        forward_ns = decode_ns + prompt_ns
        self.now_ns += 100 * US + forward_ns
        emit_ns = self.now_ns
        late_ns = self._front_end_ns(emit_ns)
        self.recorder.on_delivered(late_ns)
        truth = self._truth(step, decode_ns, prompt_ns, (wait_ns, schedule_ns))
        gaps = self._gaps(step, emit_ns, truth, late_ns)
        finished = self._commit(step, emit_ns, late_ns)
        self._last_hand_out_ns = round(faults.postprocess_us * self._random.uniform(0.7, 1.3) * US)
        self.now_ns += self._last_hand_out_ns
        self.recorder.on_step(
            self._record(
                step, census, (start_ns, emit_ns), (wait_ns, schedule_ns, forward_ns), gaps, (running, waiting)
            )
        )
        for request in finished:
            self.recorder.on_request_finished(_trace(request, emit_ns))
            self.vllm.on_finished(request, emit_ns)
        unix = START_UNIX + (self.now_ns - self.window_ns) / SECOND
        self.vllm.on_step(step, forward_ns, unix, usage_of(self.scheduler))
        self._step_id += 1
        self._previous_end_ns = self.now_ns
        return True

    def _cost_ns(self, step: ScheduledStep) -> tuple[int, int]:
        """Of its decodes, with all that a step costs anyway, and of its prompts."""
        shape, faults = self.shape, self.faults
        read = shape.weight_read_us + shape.per_context_us * step.decode_context_tokens
        rest = shape.overhead_us + shape.per_sequence_us * len(step.decodes)
        tokens = step.prefill_tokens + step.recomputed_tokens
        prompts = shape.per_prompt_token_us * tokens + shape.per_pair_us * step.prefill_attention_pairs
        # Ordinary jitter, and now and then a step that something else disturbs.
        jitter = max(0.7, self._random.gauss(1.0, shape.noise)) + (0.5 if self._random.random() < 0.002 else 0.0)
        factor = faults.slowdown * jitter * US
        return round((read + rest) * factor), round(prompts * factor)

    def _truth(
        self, step: ScheduledStep, decode_ns: int, prompt_ns: int, before_ns: tuple[int, int]
    ) -> dict[str, float]:
        """Where the time from the last tokens to these goes, in seconds by part; `before_ns`: lock and schedule."""
        tokens = step.prefill_tokens + step.recomputed_tokens
        again = prompt_ns * step.recomputed_tokens / tokens if tokens else 0.0
        wait_ns, schedule_ns = before_ns
        host_ns = schedule_ns + 100 * US + self._last_hand_out_ns
        spent = {
            "decode": decode_ns,
            "prefill": prompt_ns - again,
            "recompute": again,
            "host": host_ns,
            "lock": wait_ns,
        }
        return {name: ns / SECOND for name, ns in spent.items()}

    def _front_end_ns(self, emit_ns: int) -> int:
        """From the hand-out to the end of what the front end does just then."""
        block_ns = round(self.faults.frontend_block_us * US)
        return _FRONT_END_NS + max(0, block_ns - emit_ns % round(1.2 * block_ns)) if block_ns else _FRONT_END_NS

    def _gaps(
        self, step: ScheduledStep, emit_ns: int, truth: dict[str, float], late_ns: int
    ) -> tuple[int, tuple[int, ...]]:
        """Of the requests that get a token now: gaps from the step before, and longer ones one by one."""
        regular, late = 0, []
        for sequence in step.sampled:
            request = sequence.request
            if request.last_token_ns is None:
                continue
            gap_ns = emit_ns - request.last_token_ns
            self.clients.gaps.append((gap_ns + late_ns - self._taken_up_ns[request.request_id]) / SECOND)
            self.vllm.on_token(request, gap_ns / SECOND, None)
            if request.last_token_step == self._step_id - 1:
                regular += 1
            else:
                late.append(gap_ns)
        for seconds, count in ((sum(truth.values()), regular), *((ns / SECOND, 1) for ns in late)):
            if count:
                waited = max(0.0, seconds - sum(truth.values()))
                parts = tuple(waited if name == "waiting" else truth.get(name, 0.0) for name in PARTS)
                self.gaps.append(TrueGap(seconds, count, parts))
        return regular, tuple(late)

    def _commit(self, step: ScheduledStep, emit_ns: int, late_ns: int) -> list[Request]:
        finished = []
        tokens = [self._random.randrange(_VOCABULARY) for _ in step.sampled]
        for request in self.scheduler.commit(step, tokens, emit_ns):
            request.last_token_step = self._step_id
            self._taken_up_ns[request.request_id] = late_ns
            if len(request.output_token_ids) == 1:
                self.recorder.on_first_token(emit_ns - request.arrival_ns)
                self.clients.ttfts.append((emit_ns + late_ns - _FRONT_END_NS - request.arrival_ns) / 1e9)
                self.vllm.on_token(request, None, (emit_ns - request.arrival_ns) / 1e9)
            if len(request.output_token_ids) >= request.params.max_tokens:
                self.scheduler.finish(request, FinishReason.LENGTH)
                finished.append(request)
        return finished

    def _record(
        self,
        step: ScheduledStep,
        census: BlockCensus,
        stamps: tuple[int, int],
        times: tuple[int, int, int],
        gaps: tuple[int, tuple[int, ...]],
        state: tuple[int, int],
    ) -> StepRecord:
        (start_ns, emit_ns), (wait_ns, schedule_ns, forward_ns) = stamps, times
        evictions = self.scheduler.counters.evictions
        evicted, self._evictions = evictions - self._evictions, evictions
        return StepRecord(
            step_id=self._step_id,
            start_ns=start_ns,
            emit_ns=emit_ns,
            end_ns=self.now_ns,
            kind=step_kind(len(step.decodes), len(step.prefills)),
            num_decode_seqs=len(step.decodes),
            num_prefill_seqs=len(step.prefills),
            prefill_tokens=step.prefill_tokens,
            recomputed_tokens=step.recomputed_tokens,
            cached_tokens=step.cached_tokens,
            decode_context_tokens=step.decode_context_tokens,
            prefill_attention_pairs=step.prefill_attention_pairs,
            emitted_tokens=len(step.sampled),
            max_batched_tokens=step.max_batched_tokens,
            schedule_ns=schedule_ns,
            prepare_ns=100 * US,
            forward_ns=forward_ns,
            sample_ns=0,
            postprocess_ns=self.now_ns - emit_ns,
            lock_wait_ns=wait_ns,
            lock_hold_ns=schedule_ns,
            host_gap_ns=None if self._previous_end_ns is None else start_ns - self._previous_end_ns,
            forward_cpu_ns=forward_ns if self.shape.has_cpu_time else None,
            device_ns=None,
            num_running=state[0],
            num_waiting=state[1],
            num_preempted=len(step.preempted),
            num_deferred=step.num_deferred,
            deferral=step.deferred[0].reason if step.deferred else None,
            num_regular_gaps=gaps[0],
            late_gaps_ns=gaps[1],
            census=census,
            evicted_blocks=evicted,
            ghost_hits=step.ghost_hits,
        )


def _trace(request: Request, finished_ns: int) -> RequestTrace:
    return RequestTrace(
        request_id=request.request_id,
        arrival_ns=request.arrival_ns,
        first_scheduled_ns=request.first_scheduled_ns,
        first_token_ns=request.first_token_ns,
        finished_ns=finished_ns,
        num_prompt_tokens=len(request.prompt_token_ids),
        num_cached_tokens=request.num_cached_tokens,
        num_output_tokens=len(request.output_token_ids),
        num_preemptions=request.num_preemptions,
        finish_reason=str(request.finish_reason),
    )


def _tokens(seed: str, count: int) -> list[int]:
    """A run of ids from a place of its own: no two seeds share a block, and it costs nothing to draw."""
    first = Random(seed).randrange(1 << 30)
    return list(range(first, first + count))
