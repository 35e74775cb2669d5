"""Recordings of real drills (tests/data/drill-*.rec) are judged as when they were made: a rule change that breaks one fails here.

Made by `stallscope drill NAME -o FILE.rec` on a busy two-core machine and cut to their middle. The engine had no core for much of
the time: where a queue does not hold most of what requests lost, the account is too incomplete for a primary cause.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from diagnose.case import Case
from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.hypotheses.base import Hypothesis
from diagnose.hypotheses.registry import HYPOTHESES
from diagnose.observation import Observation, observe
from diagnose.verdict import Argument, Judgement, Verdict
from probes.recording import read_recording

DATA = Path(__file__).resolve().parent.parent / "data"
RULES = {hypothesis.name: hypothesis for hypothesis in HYPOTHESES}
EXPECTED: dict[str, tuple[str | None, set[str], str]] = {
    "admission_stall": ("admission_stall", {"admission_stall"}, "experiment"),
    "bandwidth_saturation": ("bandwidth_saturation", {"bandwidth_saturation"}, "experiment"),
    "hard_failure": ("hard_failure", {"hard_failure"}, "contain"),
    "sequence_cap": ("sequence_cap", {"sequence_cap"}, "experiment"),
    "kv_leak": ("kv_leak", {"kv_leak"}, "experiment"),
    "kv_exhaustion": ("kv_exhaustion", {"kv_exhaustion", "preemption_storm"}, "experiment"),
}
"""Primary cause, what is supported, kind of decision."""


@cache
def read(name: str) -> Observation:
    recording = read_recording((DATA / f"{name}.rec").read_bytes())
    return observe(recording.target, recording.entries)


def replayed(name: str) -> Diagnosis:
    incident = read(f"drill-{name}")
    return judge(incident, read(f"drill-{name}-baseline"), (), is_live=False, target=incident.target)


def differences(name: str, diagnosis: Diagnosis) -> list[str]:
    """What is judged otherwise than when it was recorded."""
    primary, supported, decision = EXPECTED[name]
    found = {f.name for f in diagnosis.findings if f.is_supported}
    changed = [f"supported: {one}" for one in sorted(found ^ supported)]
    changed += [f"primary: {diagnosis.primary}"] if diagnosis.primary != primary else []
    changed += [f"decision: {diagnosis.decision.kind.value}"] if diagnosis.decision.kind.value != decision else []
    return changed + [f"{f.name}: {f.error}" for f in diagnosis.findings if f.error]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_drill_is_judged_as_it_was(name: str):
    assert differences(name, replayed(name)) == []


def broken(verdict: Verdict) -> Callable[[Hypothesis, Case, Argument], Judgement]:
    return lambda _rule, _case, argument: argument.conclude(verdict)


@pytest.mark.parametrize(
    ("name", "rule"), [(name, rule) for name, (_, rules, _) in EXPECTED.items() for rule in sorted(rules)]
)
def test_a_rule_that_no_longer_sees_what_was_induced_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str, rule: str):
    monkeypatch.setattr(type(RULES[rule]), "judge", broken(Verdict.UNDETERMINED))
    assert f"supported: {rule}" in differences(name, replayed(name))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_rule_that_sees_what_was_not_induced_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str):
    for rule in sorted(RULES.keys() - EXPECTED[name][1]):
        with monkeypatch.context() as patch:
            patch.setattr(type(RULES[rule]), "judge", broken(Verdict.SUPPORTED))
            assert f"supported: {rule}" in differences(name, replayed(name)), rule


def test_every_recorded_drill_is_expected_and_small():
    found = {path.stem.removeprefix("drill-") for path in DATA.glob("drill-*.rec") if "-baseline" not in path.stem}
    assert found == set(EXPECTED)
    assert max(path.stat().st_size for path in DATA.glob("drill-*.rec")) < 100 * 1024
