"""One look at a target: watched over a window, judged against a good time, kept as a recording and as what it says."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from diagnose.commands.diagnose import judge
from diagnose.decision import DecisionKind
from diagnose.diagnosis import Diagnosis
from diagnose.errors import DiagnoseError, ErrorAnswer
from diagnose.observation import Observation, observe
from diagnose.report.json_report import to_json
from diagnose.report.outline import headline
from diagnose.sources.clock import Clock
from diagnose.sources.files import read_files
from diagnose.sources.http import Endpoint
from diagnose.sources.live import Watch
from probes.recording import Entry, RecordingWriter
from runbooks.errors import ConfigError
from runbooks.response.config import Config, Runbook, Target
from runbooks.response.symptom import Reading

_ATTEMPTS = 3
"""To reach a target at all: one refused connection may be a restart, or the way there."""
_RETRY_SECONDS = 2.0
_MIN_PAGES = 3
"""Of equal pages, from which on a page counts as frozen: two may fall into one step of a slow engine."""
_HARD = ("hard_failure", "engine_hung")
_STATED = ("max_batched_tokens", "max_sequences")


class Look(msgspec.Struct, frozen=True):
    kind: Literal["diagnosed", "unreachable", "unreadable"]
    headline: str
    decision: str
    """none, measure, experiment, contain or change."""
    summary: str
    steps: list[str] = []
    """What a person would do next, ready to run."""
    causes: list[str] = []
    """What may be acted on."""
    reading: Reading | None = None
    idle: bool = False
    frozen: int = 0
    """Number of scrapes that all brought the same page; 0 when it moved."""
    stated: dict[str, float] = {}
    """Settings by the page's own word."""
    warnings: list[str] = []
    recording: str = ""
    diagnosis: dict[str, Any] | None = None


Looks = Callable[[Target, Runbook, str, float | None], Look]
"""Target, runbook, a name for the recording, and the time of the alert where it is known."""
Before = Callable[[Target, float, float], Observation]
"""The window of so many seconds before a time, from elsewhere. Raises DiagnoseError."""


class Examiner:
    def __init__(self, config: Config, clock: Clock, before: Before | None = None) -> None:
        self._config, self._clock, self._before = config, clock, before

    def look(self, target: Target, runbook: Runbook, name: str, alert_unix: float | None) -> Look:
        """Never raises for what a target does or does not do: that is the evidence."""
        window = runbook.window_seconds
        warnings: list[str] = []
        baseline = self._baseline(target, window, alert_unix, warnings)
        path = self._config.path(self._config.receiver.recordings) / f"{name}.rec"
        try:
            endpoint = Endpoint(target.url)
            self._reach(endpoint)
        except ErrorAnswer as error:
            return _unreadable(str(error), warnings)
        except DiagnoseError as error:
            return _unreachable(str(error), warnings)
        watch = Watch(endpoint, self._clock)
        try:
            entries = watch.run(window, min(1.0, window / 5))
        except DiagnoseError as error:
            return _unreadable(str(error), warnings)
        recording = _keep(path, endpoint.url, entries, warnings)
        try:
            diagnosis = judge(
                observe(endpoint.url, entries),
                baseline,
                self._config.objectives(target),
                is_live=True,
                target=endpoint.url,
            )
        except DiagnoseError as error:
            return _unreadable(str(error), warnings)
        return describe(diagnosis, runbook, entries, warnings, recording)

    def _reach(self, endpoint: Endpoint) -> None:
        """Raises DiagnoseError after the last attempt; an error answer is an answer, and is raised at once."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                endpoint.get("/metrics")
            except ErrorAnswer:
                raise
            except DiagnoseError:
                if attempt == _ATTEMPTS:
                    raise
                self._clock.sleep(_RETRY_SECONDS)
            else:
                return

    def _baseline(
        self, target: Target, window: float, alert_unix: float | None, warnings: list[str]
    ) -> Observation | None:
        """A recording before Prometheus; neither is worth failing for."""
        try:
            if target.baseline:
                return _recorded(self._config, target)
            if self._before is not None and target.selector and alert_unix is not None:
                return self._before(target, window, alert_unix)
        except DiagnoseError as error:
            warnings.append(f"without a baseline: {error}")
        return None


def check_baselines(config: Config) -> None:
    """At the start rather than at night, when a look would go on without. Raises ConfigError for one that cannot be read."""
    for target in config.targets:
        try:
            if target.baseline:
                _recorded(config, target)
        except DiagnoseError as error:
            raise ConfigError(f"target {target.name}: baseline {error}") from None


def _recorded(config: Config, target: Target) -> Observation:
    """Raises DiagnoseError."""
    return read_files([str(config.path(name)) for name in target.baseline], None).observation()


def describe(
    diagnosis: Diagnosis, runbook: Runbook, entries: Sequence[Entry], warnings: Sequence[str], recording: str
) -> Look:
    signals = diagnosis.case.signals
    return Look(
        kind="diagnosed",
        headline=headline(diagnosis),
        decision=diagnosis.decision.kind.value,
        summary=diagnosis.decision.summary,
        steps=[str(step) for step in diagnosis.decision.steps],
        causes=_causes(diagnosis),
        reading=runbook.the_symptom.read(diagnosis),
        idle=diagnosis.idle,
        frozen=_frozen(entries),
        stated={name: value for name in _STATED if (value := signals.last(name)) is not None},
        warnings=[*warnings, *diagnosis.warnings],
        recording=recording,
        diagnosis=to_json(diagnosis),
    )


def _causes(diagnosis: Diagnosis) -> list[str]:
    """The primary cause and hard failures.

    With a hard failure verified and no primary cause (the account may be incomplete), the only supported cause of latency
    counts as well: containment comes before full profiling, is bounded, and is undone unless it is seen to help.
    """
    supported = [finding for finding in diagnosis.findings if finding.is_supported]
    hard = [finding.name for finding in supported if finding.name in _HARD]
    if diagnosis.primary is not None:
        return list(dict.fromkeys([diagnosis.primary, *hard]))
    of_latency = [finding.name for finding in supported if finding.causes_latency and finding.name not in _HARD]
    return [*(of_latency if hard and len(of_latency) == 1 else []), *hard]


def _frozen(entries: Sequence[Entry]) -> int:
    pages = [entry.body for entry in entries if entry.kind == "exposition"]
    return len(pages) if len(pages) >= _MIN_PAGES and len(set(pages)) == 1 else 0


def _unreachable(detail: str, warnings: list[str]) -> Look:
    summary = f"the target does not answer: {detail}"
    return Look("unreachable", summary, DecisionKind.CONTAIN.value, summary, causes=["hard_failure"], warnings=warnings)


def _unreadable(detail: str, warnings: list[str]) -> Look:
    """It answers, and not as an engine does: no hard failure is verified, and nothing is known of its tokens."""
    summary = f"the target answers, and its answer cannot be judged: {detail}"
    return Look("unreadable", summary, DecisionKind.MEASURE.value, summary, warnings=warnings)


def _keep(path: Path, url: str, entries: Sequence[Entry], warnings: list[str]) -> str:
    """The recording's path; a disk that cannot take it costs the recording and not the look."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with RecordingWriter(path, url, entries[0].unix, existing="replace") as writer:
            for entry in entries:
                writer.write(entry)
    except OSError as error:
        warnings.append(f"the evidence could not be kept in {path}: {error.strerror or error}")
        return ""
    return str(path)
