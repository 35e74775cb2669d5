"""Faults that a drill asks for, so that a diagnosis can be tried on a server of which one knows what is wrong.

`--drill-fault` is hidden, and refused unless STALLSCOPE_DRILLS=1 is set: no server has a fault by mistake.
"""

import logging
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from engine.config import SchedulerConfig
from engine.core import EngineCore, HandOut, TokenOutput
from engine.errors import ConfigError
from engine.prefix_binding import PrefixPlan
from engine.prefix_cache import CacheScope
from engine.request import FinishReason, Request
from engine.runner.base import Runner, StepResult
from engine.scheduler import Scheduler
from engine.step import BatchPlan, ScheduledStep
from probes.locks import LockSite, TimedLock
from probes.recorder import Recorder
from probes.records import DeferralReason

GATE = "STALLSCOPE_DRILLS"
_LOOKUP_THREADS = 2
_GROWTHS = 10
_GROWTH_SECONDS = 1.0
_MIB = 1 << 20

log = logging.getLogger("stallscope.engine")


class _Kind(NamedTuple):
    unit: str
    most: int


KINDS: dict[str, _Kind] = {
    "lock": _Kind("ms", 5000),
    "host": _Kind("ms", 5000),
    "lookups": _Kind("tokens", 2_000_000),
    "leak": _Kind("blocks", 1000),
    "stall": _Kind("requests", 1_000_000),
    "memory": _Kind("MiB", 1 << 20),
    "frontend": _Kind("ms", 5000),
    "drop": _Kind("requests", 1_000_000),
    "transfer": _Kind("ms", 5000),
}


@dataclass(frozen=True, slots=True)
class DrillFault:
    """
    lock      another thread holds the scheduler lock for so many milliseconds, again and again
    host      handing out a step's tokens takes so long
    lookups   other threads look prompts of so many tokens up in the prefix index, under the scheduler lock
    leak      every request that ends leaves so many blocks without an owner, and nothing checks for them
    stall     after about so many requests the head of the line can never be started, and nobody passes it
    memory    from the first step on the engine takes so much more each second, under a limit of ten times that
    frontend  the event loop that reads requests and sends tokens stands still for so many milliseconds, again and again
    drop      of so many streams one is cut off in its middle, and its connection closed
    transfer  a prefill instance waits so long before it sends a chunk
    """

    kind: str
    amount: int

    @property
    def seconds(self) -> float:
        return self.amount / 1e3


def parse_fault(text: str, gate: str | None) -> DrillFault:
    """Of `lock=20ms`; `gate` is the value of the variable. Raises ConfigError."""
    if gate != "1":
        raise ConfigError(f"--drill-fault makes a server faulty on purpose: it needs {GATE}=1 in the environment")
    name, _, rest = text.partition("=")
    kind = KINDS.get(name)
    number = rest.removesuffix(kind.unit) if kind is not None else rest
    if kind is None or number == rest or not number.isdecimal() or not 0 < int(number) <= kind.most:
        forms = ", ".join(f"{one}=NUMBER{form.unit}" for one, form in KINDS.items())
        raise ConfigError(f"--drill-fault {text!r}: write one of {forms}, such as lock=20ms")
    return DrillFault(name, int(number))


def make_faulty_core(
    fault: DrillFault,
    config: SchedulerConfig,
    scope: CacheScope,
    runner: Runner,
    recorder: Recorder,
    lock: TimedLock,
    eos_token_ids: frozenset[int],
) -> EngineCore:
    """As the server's own, with what the drill asked to be wrong."""
    log.warning("this server is faulty on purpose: --drill-fault %s=%d", fault.kind, fault.amount)
    scheduler: Scheduler
    if fault.kind == "leak":
        scheduler = LeakyScheduler(config, scope, fault.amount)
    elif fault.kind == "stall":
        scheduler = StuckScheduler(config, scope, fault.amount)
    else:
        scheduler = Scheduler(config, scope)
    if fault.kind == "memory":
        runner = cast(Runner, HungryRunner(runner, fault.amount * _MIB))
    if fault.kind == "host":
        return SlowHostCore(fault.seconds, scheduler, runner, recorder, lock, eos_token_ids)
    if fault.kind == "lock":
        contend(lock.site("drill"), lambda: time.sleep(fault.seconds), pause_seconds=fault.seconds / 5)
    elif fault.kind == "lookups":
        prompt, site = list(range(fault.amount // config.block_size * config.block_size)), lock.site("drill")
        for _ in range(_LOOKUP_THREADS):
            contend(site, lambda: scheduler.index.lookup(prompt), pause_seconds=0.002)
    return EngineCore(scheduler, runner, recorder, lock, eos_token_ids)


class SlowHostCore(EngineCore):
    """Hands its tokens out slowly, as a callback does that computes on the engine's thread."""

    def __init__(
        self,
        hand_out_seconds: float,
        scheduler: Scheduler,
        runner: Runner,
        recorder: Recorder,
        lock: TimedLock,
        eos_token_ids: frozenset[int],
    ) -> None:
        super().__init__(scheduler, runner, recorder, lock, eos_token_ids)
        self._hand_out_seconds = hand_out_seconds

    def step(self, hand_out: HandOut) -> bool:
        def slow(outputs: list[TokenOutput]) -> None:
            time.sleep(self._hand_out_seconds)
            hand_out(outputs)

        return super().step(slow)


class HungryRunner:
    """A runner that takes more and more memory and gives none back, until the process may have no more: the allocation then
    fails for good, and with it each step. Only address space is taken, so that the machine itself lacks nothing."""

    def __init__(self, runner: Runner, growth_bytes: int) -> None:
        """Raises ConfigError where a process has no such limit."""
        if sys.platform != "linux":
            raise ConfigError("--drill-fault memory=... limits the address space of the process, which takes Linux")
        self._runner = runner
        self._growth_bytes = growth_bytes
        self._taken: list[bytearray] = []
        self._began: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, plan: BatchPlan) -> StepResult:
        now = time.monotonic()
        if self._began is None:
            self._began = now
            self._set_limit()
        while len(self._taken) * _GROWTH_SECONDS < now - self._began:
            self._taken.append(bytearray(self._growth_bytes))
        return self._runner.execute(plan)

    def _set_limit(self) -> None:
        """What is there, ten growths, and half of one that the rest of the server keeps when the last one fails."""
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = size + _GROWTHS * self._growth_bytes + self._growth_bytes // 2
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def transfer_delay(text: str | None, gate: str | None) -> float:
    """Seconds before each chunk; 0 unless that is the fault asked for. Raises ConfigError as `parse_fault`."""
    fault = None if text is None else parse_fault(text, gate)
    return fault.seconds if fault is not None and fault.kind == "transfer" else 0.0


class LeakyScheduler(Scheduler):
    """Forgets to give blocks back. The check at idle that would stop such an engine is gone as well."""

    def __init__(self, config: SchedulerConfig, scope: CacheScope, blocks_per_request: int) -> None:
        super().__init__(config, scope)
        self._blocks_per_request = blocks_per_request

    def finish(self, request: Request, reason: FinishReason) -> None:
        super().finish(request, reason)
        if self.pool.can_allocate(self._blocks_per_request):
            self.pool.allocate(self._blocks_per_request)

    def check_invariants(self) -> None:
        """Nothing: the leak is what it would find."""


class StuckScheduler(Scheduler):
    """Starts so many requests, and who is admitted with the last of them; the next one seems to want more blocks than there
    are, and nobody passes it."""

    def __init__(self, config: SchedulerConfig, scope: CacheScope, startable: int) -> None:
        super().__init__(config, scope)
        self._startable = startable
        self._started = 0

    def _start(self, step: ScheduledStep, request: Request, plan: PrefixPlan) -> None:
        self._started += 1
        super()._start(step, request, plan)

    def _admit(self, step: ScheduledStep, budget: int, promised: int) -> None:
        """A preempted request starts again: it was served once."""
        if self._started >= self._startable and self._waiting and not self._waiting.head.num_preemptions:
            return self._waiting.defer(step, DeferralReason.BLOCKS, self.pool.num_available)
        return super()._admit(step, budget, promised)


def contend(site: LockSite, hold: Callable[[], object], pause_seconds: float) -> None:
    """A thread that takes the lock, does `hold` under it, and pauses, for as long as the process lives."""

    def work() -> None:
        while True:
            with site:
                hold()
            time.sleep(pause_seconds)

    threading.Thread(target=work, name="drill-fault", daemon=True).start()
