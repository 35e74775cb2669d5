"""Recordings of real drills (tests/data/drill-*.rec) are judged as when they were made: a rule change that breaks one fails here.

Made by `stallscope drill NAME -o FILE.rec` on a busy two-core machine and cut to their middle. Where the engine had no core
for much of the time the account is incomplete: the condition is supported, and no cause is called primary.
"""

from pathlib import Path

import pytest

from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.observation import Observation, observe
from probes.recording import read_recording

DATA = Path(__file__).resolve().parent.parent / "data"
EXPECTED: dict[str, tuple[str | None, set[str], str]] = {
    "hard_failure": ("hard_failure", {"hard_failure"}, "contain"),
    "sequence_cap": (None, {"sequence_cap"}, "experiment"),
    "kv_exhaustion": (None, {"kv_exhaustion", "preemption_storm"}, "experiment"),
}
"""Primary cause, what is supported, kind of decision."""


def read(name: str) -> Observation:
    recording = read_recording((DATA / f"{name}.rec").read_bytes())
    return observe(recording.target, recording.entries)


def replayed(name: str) -> Diagnosis:
    incident = read(f"drill-{name}")
    return judge(incident, read(f"drill-{name}-baseline"), (), is_live=False, target=incident.target)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_drill_is_judged_as_it_was(name: str):
    diagnosis = replayed(name)
    primary, supported, decision = EXPECTED[name]
    assert {f.name for f in diagnosis.findings if f.is_supported} == supported
    assert diagnosis.primary == primary
    assert diagnosis.decision.kind.value == decision
    assert not [f.error for f in diagnosis.findings if f.error]


def test_every_recorded_drill_is_expected_and_small():
    found = {path.stem.removeprefix("drill-") for path in DATA.glob("drill-*.rec") if "-baseline" not in path.stem}
    assert found == set(EXPECTED)
    assert max(path.stat().st_size for path in DATA.glob("drill-*.rec")) < 100 * 1024
