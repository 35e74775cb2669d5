"""A drill from start to end: a quiet window, a window with the condition, and the diagnosis held against the truth."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from diagnose.commands.diagnose import judge
from diagnose.commands.progress import watch_progress
from diagnose.diagnosis import Diagnosis
from diagnose.errors import TargetError
from diagnose.observation import observe
from diagnose.slo import Reported, parse_reported
from diagnose.sources.clock import SystemClock
from diagnose.sources.http import Endpoint
from diagnose.sources.live import Watch
from probes.recording import Entry, RecordingWriter
from runbooks.drills.catalog import USUAL_PACE, Drill, at_once, varied
from runbooks.drills.engine_process import EngineProcess
from runbooks.drills.service_levels import Levels, quantile
from runbooks.drills.traffic import BackgroundTraffic, Pace, levels_of, measure_pace, warm_prefix
from runbooks.drills.truth import AccountCheck, check_account
from runbooks.errors import DrillError

SETTLE_SECONDS = 3.0
"""From the start of a load to the start of its window."""
_EMPTY_SECONDS = 3.0
"""For what is still inside when a load has ended."""
_QUIET_SECONDS = 8.0
_INCIDENT_SECONDS = 12.0
_LONGEST_FACTOR = 3.0
"""Windows of a slower engine are longer, up to this many times."""
_GATE = {"STALLSCOPE_DRILLS": "1"}


class _Place(NamedTuple):
    """Where a window is watched."""

    url: str
    pid: int | None
    """None: not an engine of ours, and never killed."""

    def kill(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Seen:
    """One window."""

    url: str
    entries: list[Entry]
    levels: Levels

    def write(self, path: Path) -> None:
        """As a recording. Raises OSError."""
        with RecordingWriter(path, self.url, self.entries[0].unix) as writer:
            for entry in self.entries:
                writer.write(entry)


@dataclass(frozen=True, slots=True)
class Outcome:
    drill: Drill
    quiet: Seen
    incident: Seen
    reported: tuple[Reported, ...]
    diagnosis: Diagnosis

    @property
    def moved(self) -> bool:
        """Whether the symptom shows in what clients saw; a drill without counts with the expected answer `nothing`."""
        return self.incident.levels.worse_than(self.quiet.levels, self.drill.symptom)

    @property
    def account_check(self) -> AccountCheck | None:
        return check_account(self.drill.part, self.diagnosis, self.quiet.levels, self.incident.levels)

    @property
    def named(self) -> str | None:
        """The primary cause that was named; a benign one accuses nobody."""
        benign = {finding.name for finding in self.diagnosis.findings if finding.benign}
        return None if self.diagnosis.primary in benign else self.diagnosis.primary

    @property
    def is_right(self) -> bool:
        if not self.moved:
            return self.named is None
        supported = {finding.name for finding in self.diagnosis.findings if finding.is_supported}
        named = self.named in self.drill.primary if self.drill.primary else self.named is None
        return named and set(self.drill.required) <= supported


@dataclass(frozen=True, slots=True)
class DrillRun:
    """How a drill is run. `on_ready` hears the address and pid of the engine whose window begins."""

    drill: Drill
    model: str
    seed: int
    threads: int = 1
    incident_seconds: float | None = None
    on_ready: Callable[[str, str, int | None], None] = lambda _phase, _url, _pid: None
    quiet: bool = True
    """Show no progress of the windows."""
    target: str | None = None
    """A running server to drive by load alone, in place of an engine of the drill's own. It has no pid here."""

    def run(self) -> Outcome:
        """Raises DrillError. Whatever happens, no engine and no request is left."""
        drill = self.drill
        if self.target is not None and drill.needs_own_engine is not None:
            raise DrillError(f"{drill.name} cannot be induced in {self.target} by load alone: {drill.needs_own_engine}")
        options = ["--model", self.model, "--threads", str(self.threads), *drill.options]
        with ExitStack() as stack:
            engine = None if self.target is not None else stack.enter_context(EngineProcess(options))
            place = _Place(self.target or "", None) if engine is None else _Place(engine.url, engine.pid)
            pace = measure_pace(place.url)
            stretch = min(_LONGEST_FACTOR, max(1.0, pace.seconds / USUAL_PACE))
            quiet = self._window(place, "quiet", pace, _QUIET_SECONDS * stretch)
            if drill.fault is not None and engine is not None:
                engine.stop()
                broken = EngineProcess([*options, "--drill-fault", drill.fault], environment=_GATE)
                engine = stack.enter_context(broken)
                place = _Place(engine.url, engine.pid)
            length = self.incident_seconds or _INCIDENT_SECONDS * stretch
            incident = self._window(place, "incident", pace, length)
            if drill.reads_log and engine is not None:
                log = Entry(incident.entries[-1].unix, "log", engine.log_path.read_text(errors="replace"))
                incident.entries.append(log)
        reported: tuple[Reported, ...] = ()
        if drill.slow_reader_seconds:
            reported = parse_reported(f"itl_p99={quantile(incident.levels.gaps, 0.99) * 1e3:.0f}ms")
        diagnosis = judge(
            observe(incident.url, incident.entries),
            observe(quiet.url, quiet.entries),
            (),
            reported=reported,
            is_live=True,
            target=incident.url,
        )
        return Outcome(drill, quiet, incident, reported, diagnosis)

    def _window(self, place: "_Place", phase: str, pace: Pace, seconds: float) -> Seen:
        drill, incident = self.drill, phase == "incident"
        loads = varied(drill.loads if incident else drill.quiet, pace.seconds, self.seed)
        burst = at_once(drill.at_once, self.seed) if incident else []
        if burst:
            warm_prefix(place.url, burst, pace, phase)
        traffic = BackgroundTraffic(
            place.url,
            loads,
            SETTLE_SECONDS + (0.0 if incident and drill.idle_window else seconds + 1.0),
            pace=pace,
            seed=self.seed,
            salt=phase,
            at_once=burst,
            stand_still_seconds=drill.slow_reader_seconds if incident else 0.0,
        )
        killer = threading.Timer(SETTLE_SECONDS + seconds / 2, place.kill)
        self.on_ready(phase, place.url, place.pid)
        with traffic:
            if incident and drill.kills:
                killer.start()
            try:
                time.sleep(SETTLE_SECONDS + (_EMPTY_SECONDS if incident and drill.idle_window else 0.0))
                since = traffic.elapsed()
                with watch_progress(f"{phase} window", seconds, quiet=self.quiet) as on_progress:
                    watch = Watch(Endpoint(place.url, timeout_seconds=30.0), SystemClock(), on_progress=on_progress)
                    watch.run(seconds, 1.0)
            except TargetError as error:
                raise DrillError(f"the engine could not be watched: {error}") from None
            finally:
                killer.cancel()
            until = traffic.elapsed()
        return Seen(place.url, watch.entries, levels_of(traffic.streams, since, until))
