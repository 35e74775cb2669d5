"""One target as the interface knows it: health, history, recent steps, marks, verdict. Only the interface's thread touches it."""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from dashboard.model.history import History
from dashboard.model.request_times import RequestTimes
from dashboard.model.requests import Requests
from dashboard.model.summary import Summary
from dashboard.model.update import Levels, Update
from diagnose.observation import GONE_AFTER_FAILURES
from probes.records import StepRecord

RECENT_STEPS = 600
IDLE_AFTER_SECONDS = 10.0
_KEPT_LEVELS = 2


class Phase(StrEnum):
    CONNECTING = "connecting"
    UNREACHABLE = "unreachable"
    """It has not answered yet, and the last try failed."""
    NOT_METRICS = "not a metrics endpoint"
    """Something answers, and it is nothing that can be watched."""
    LIVE = "live"
    IDLE = "idle"
    STALE = "stale"
    """A scrape is under way for longer than it should be: what is shown is old."""
    LOST = "lost"
    """It had answered and does not any more."""
    RECORDING = "recording"
    """A file: nothing new will come."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A first answer that cannot be watched, or none."""

    unix: float
    text: str
    answered: bool
    """Whether something answered at all."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A window that a person marked; open while `end` is None."""

    start: float
    end: float | None = None

    def closed_at(self, unix: float) -> "Mark":
        return Mark(min(self.start, unix), max(self.start, unix))


@dataclass(slots=True)
class Target:
    name: str
    """URL, or the file's."""
    interval: float
    history: History
    is_file: bool = False
    address: str = ""
    """Where a command reaches it: for a file, the target that was recorded."""
    steps: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    steps_offset_ns: int | None = None
    levels: deque[Levels] = field(default_factory=lambda: deque(maxlen=_KEPT_LEVELS))
    dialect: str = ""
    info: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    problem: str = ""
    refusal: Refusal | None = None
    first_try: float | None = None
    failures: int = 0
    """Scrapes in a row to which nothing answered."""
    restarts: int = 0
    incident: Mark | None = None
    baseline: Mark | None = None
    baseline_file: str = ""
    summary: Summary | None = None
    """Of the newest diagnosis."""
    diagnosing: bool = False
    requests: Requests | None = None
    request_times: RequestTimes = field(default_factory=RequestTimes)
    write_problem: str = ""
    """Why a recording or the spool could not be written."""

    def __post_init__(self) -> None:
        self.address = self.address or self.name

    @property
    def is_gone(self) -> bool:
        """Nothing has answered several times; whether it ever had, its phase says."""
        return self.failures >= GONE_AFTER_FAILURES

    def apply(self, update: Update) -> None:
        self.refusal = None
        if update.point.values.get("up") == 1.0:
            self.problem, self.failures = "", 0
            self.missing = update.missing
        else:
            self.problem = update.problem
            self.failures = self.failures + 1 if update.unreachable else 0
        self.history.append(update.point)
        if update.restarted:
            self.restarts += 1
            self.steps.clear()
        if update.levels is not None:
            self.levels.append(update.levels)
            self.info = dict(update.levels.info) or self.info
        if update.steps_offset_ns is not None:
            self.steps_offset_ns = update.steps_offset_ns
        if update.steps and self.steps and update.steps[0].step_id <= self.steps[-1].step_id:
            self.steps.clear()  # a restart that the start time did not show
        self.steps.extend(update.steps)

    def phase(self, now: float, at: float | None = None) -> Phase:
        """Now, or what it was at `at`."""
        moment = now if at is None else at
        last = self.history.last
        if last is None:
            if self.refusal is None:
                return Phase.CONNECTING
            return Phase.NOT_METRICS if self.refusal.answered else Phase.UNREACHABLE
        up = self.history.at("up", moment)
        if up == 0.0:
            return Phase.LOST
        if at is None and not self.is_file and now - last > max(3.0, 3 * self.interval):
            return Phase.STALE
        if self._idle(moment):
            return Phase.IDLE
        return Phase.RECORDING if self.is_file and at is None else Phase.LIVE

    def _idle(self, unix: float) -> bool:
        """Counters decide, gauges confirm: nothing computed, nothing running, nothing waiting for a while."""
        start = unix - IDLE_AFTER_SECONDS
        rates = [self.history.between(f"{phase}_rate", start, unix) for phase in ("decode", "prefill", "recompute")]
        if not any(rates) or any(value > 0 for series in rates for _, value in series):
            return False
        return not self.history.at("running", unix) and not self.history.at("waiting", unix)

    def lost_for(self, now: float) -> float | None:
        """Seconds since the last good answer; None when there was none."""
        answered = self.history.last_up(now)
        return None if answered is None else now - answered

    def end(self, now: float) -> float:
        """The newest moment there is: a file's last answer, or now."""
        return self.history.last or now if self.is_file else now

    def unix_of(self, stamp_ns: int) -> float | None:
        """Wall time of a step's stamp."""
        return None if self.steps_offset_ns is None else (stamp_ns + self.steps_offset_ns) / 1e9
