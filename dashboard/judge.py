"""Diagnoses in the background: one thread, one job at a time, the newest per target. It posts summaries, nothing else."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dashboard.feed import read_evidence
from dashboard.model.spool import Spool
from dashboard.model.summary import Summary
from diagnose.errors import DiagnoseError
from diagnose.exposition import ExpositionParser
from diagnose.slo import Objective
from probes.recording import Entry

if TYPE_CHECKING:
    from diagnose.diagnosis import Diagnosis
    from diagnose.observation import Observation
    from diagnose.policy import Policy

MAX_TRAILING_PAGES = 12
"""Counters need the first and the last page; a dozen samples of each gauge show its peaks. Marked windows use every page."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to diagnose: windows in Unix seconds, cut from what the spool holds."""

    target: int
    name: str
    is_live: bool
    spool: Spool
    start: float
    end: float
    trailing: bool
    baseline: tuple[float, float] | None = None
    baseline_file: str = ""
    with_steps: bool = True
    """False where step records cover only a part of the window."""
    gone: str = ""
    """Why the target, which had answered, is gone at the window's end; empty while it is not."""

    def entries(self) -> list[Entry]:
        """All that was read in the incident window, and that the target is gone where it is."""
        found = self.spool.between(self.start, self.end)
        entries = [entry for entry in found if self.with_steps or entry.kind != "steps"]
        return [*entries, Entry(self.end, "event", self.gone, "gone")] if self.gone else entries


@dataclass(frozen=True, slots=True)
class Judged:
    """The answer to a job."""

    job: Job
    summary: Summary | None
    problem: str
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Rules:
    objectives: Sequence[Objective] = ()
    policy: "Policy | None" = None
    """None: the default thresholds."""


def window_entries(entries: Sequence[Entry], *, most_pages: int | None = None) -> list[Entry]:
    """Entries of one window: step records that follow its first page were made before it, so they are left out.

    `most_pages` thins the pages evenly and keeps the first and the last.
    """
    pages = [place for place, entry in enumerate(entries) if entry.kind == "exposition"]
    if len(pages) < 2:
        return list(entries)
    kept = set(pages)
    if most_pages is not None and len(pages) > most_pages:
        kept = {pages[round(i * (len(pages) - 1) / (most_pages - 1))] for i in range(most_pages)}
    return [
        entry
        for place, entry in enumerate(entries)
        if place in kept or (entry.kind != "exposition" and not (entry.kind == "steps" and place < pages[1]))
    ]


def make_diagnosis(
    job: Job, rules: Rules, baseline_entries: Sequence[Entry] | None = None, parser: ExpositionParser | None = None
) -> "Diagnosis":
    """Raises DiagnoseError when the window holds too little."""
    from diagnose.commands.diagnose import judge  # loads every rule: after the first paint
    from diagnose.observation import observe
    from diagnose.policy import DEFAULT_POLICY

    most = MAX_TRAILING_PAGES if job.trailing else None
    incident = observe(job.name, window_entries(job.entries(), most_pages=most), parser)
    baseline: Observation | None = None
    if job.baseline is not None:
        baseline = observe(job.name, window_entries(job.spool.between(*job.baseline)), parser)
    elif baseline_entries is not None:
        baseline = observe(job.baseline_file, baseline_entries)
    return judge(
        incident, baseline, rules.objectives, is_live=job.is_live, target=job.name, policy=rules.policy or DEFAULT_POLICY
    )  # fmt: skip


class Judge(threading.Thread):
    """Jobs of a target replace each other while they wait: only its newest question is answered."""

    def __init__(self, rules: Rules, post: Callable[[Judged], None], parser: ExpositionParser) -> None:
        super().__init__(name="judge", daemon=True)
        self._rules, self._post, self._parser = rules, post, parser
        self._waiting: dict[int, Job] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._files: dict[str, list[Entry]] = {}

    def ask(self, job: Job) -> None:
        with self._changed:
            self._waiting[job.target] = job
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                job = self._waiting.pop(next(iter(self._waiting)))
            self._post(self._answer(job))

    def _answer(self, job: Job) -> Judged:
        started = time.thread_time()
        summary, problem = None, ""
        try:
            diagnosis = make_diagnosis(job, self._rules, self.baseline_entries(job), self._parser)
            from dashboard.model.verdicts import summarise

            summary = summarise(diagnosis, time.time(), job.start, job.end, trailing=job.trailing)
        except DiagnoseError as error:
            problem = str(error)
        return Judged(job, summary, problem, time.thread_time() - started)

    def baseline_entries(self, job: Job) -> list[Entry] | None:
        """Of the file that was given as a baseline; read once. Raises SourceError."""
        if job.baseline is not None or not job.baseline_file:
            return None
        if job.baseline_file not in self._files:
            self._files[job.baseline_file] = read_evidence(job.baseline_file).entries
        return self._files[job.baseline_file]
