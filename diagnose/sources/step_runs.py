"""A person's summary of a log: runs of steps of one phase, a line each, as `15:20:56  prefill x58  77 s`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diagnose.observation import Event, Span
from diagnose.signals import STEP_RUNS, Gauge, Signals
from diagnose.sources.steps import histogram_of

_PHASE = re.compile(
    r"^\W*(?:[\d:.,T-]+\W+)?(?:(?P<prefill>prefill|extend|context)|(?P<decode>decode|generation)|(?P<mixed>mixed))\b",
    re.IGNORECASE,
)
_COUNT = re.compile(r"[x\u00d7] ?(\d+)\b|\b(\d+) ?[x\u00d7]|\b(\d+) steps?\b", re.IGNORECASE)
_TIME = re.compile(r"\b(\d+(?:\.\d+)?) ?(ms|s|sec|min)\b")
_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0}
_HISTOGRAMS = {"prefill": "step_prefill", "decode": "step_decode", "mixed": "step_mixed"}
_COVERAGE = "means over each run of steps"


class StepRun(NamedTuple):
    phase: str
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StepRunEvidence:
    name: str
    runs: tuple[StepRun, ...]
    """In the order of the lines."""

    @property
    def origin(self) -> str:
        return f"{self.name}: a summary of {sum(run.steps for run in self.runs):,} steps by phase"

    def events(self, span: Span | None) -> Iterable[Event]:
        return ()

    def signals(self, span: Span | None) -> Signals:
        """Whatever the window: a time of day has no date."""
        signals = Signals(STEP_RUNS, sum(run.seconds for run in self.runs), 0)
        for phase, histogram in _HISTOGRAMS.items():
            values = [run.seconds / run.steps for run in self.runs if run.phase == phase for _ in range(run.steps)]
            if values:
                signals.histograms[histogram] = histogram_of(values, STEP_RUNS, _COVERAGE)
        longest = _longest_wait(self.runs)
        if longest is not None:
            signals.gauges["prefill_run_seconds"] = Gauge((longest.seconds,), STEP_RUNS)
            signals.gauges["prefill_run_steps"] = Gauge((float(longest.steps),), STEP_RUNS)
        return signals


def _longest_wait(runs: Sequence[StepRun]) -> StepRun | None:
    """Prefill steps in a row between two decode steps; None without any."""
    longest: StepRun | None = None
    began, count, passed = False, 0, 0.0
    for run in runs:
        if run.phase == "prefill":
            count, passed = count + run.steps, passed + run.seconds
            continue
        if began and count and (longest is None or passed > longest.seconds):
            longest = StepRun("prefill", count, passed)
        began, count, passed = True, 0, 0.0
    return longest


def is_step_runs(text: str) -> bool:
    """At least two lines, and half of all, are runs."""
    lines = [line for line in text.split("\n")[:200] if line.strip()]
    found = sum(_run(line) is not None for line in lines)
    return found >= 2 and found * 2 >= len(lines)


def read_step_runs(name: str, text: str) -> StepRunEvidence:
    return StepRunEvidence(name, tuple(run for line in text.split("\n") if (run := _run(line)) is not None))


def _run(line: str) -> StepRun | None:
    phase = _PHASE.match(line)
    if phase is None:
        return None
    count, time = _COUNT.search(line, phase.end()), _TIME.search(line, phase.end())
    if count is None or time is None:
        return None
    steps = int(next(filter(None, count.groups())))
    named = next(name for name, found in phase.groupdict().items() if found)
    return StepRun(named, steps, float(time[1]) * _SECONDS[time[2]]) if 0 < steps <= _MAX_STEPS else None


_MAX_STEPS = 1_000_000
"""Of one line: beyond it, it is no count of steps."""
