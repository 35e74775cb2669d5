"""`stallscope drill`: what it offers, what it refuses, and that nothing is left of it."""

import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diagnose.case import Window, make_window
from diagnose.cli import stallscope
from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.hypotheses.registry import HYPOTHESES
from diagnose.observation import observe
from diagnose.policy import DEFAULT_POLICY
from engine.server.drill_fault import parse_fault
from probes.recording import read_recording
from runbooks.drills.catalog import DRILLS, USUAL_PACE, at_once, varied
from runbooks.drills.run import DrillRun, Outcome, Seen
from runbooks.drills.service_levels import Levels, Symptom
from runbooks.drills.traffic import Pace, levels_of
from runbooks.drills.truth import check_account
from runbooks.experiments.client import Stream
from runbooks.experiments.workload import Arrival, parse_load
from tests.builders import Machine, make_signals, make_steps
from tests.runbooks.test_demo import is_alive

DATA = Path(__file__).resolve().parent.parent / "data"
COMMAND = [sys.executable, "-m", "diagnose.cli", "drill"]


def test_the_list_names_every_drill_with_its_deciding_signal():
    result = CliRunner().invoke(stallscope, ["drill", "--list"])
    assert result.exit_code == 0
    for drill in DRILLS.values():
        assert drill.name in result.output
        assert drill.deciding in result.output


@pytest.mark.parametrize("arguments", [["no_such_drill"], []])
def test_an_unknown_drill_is_one_line_and_exit_2(arguments: list[str]):
    result = CliRunner().invoke(stallscope, ["drill", *arguments])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_an_older_recording_is_never_replaced(tmp_path: Path):
    (tmp_path / "a-baseline.rec").write_text("old")
    result = CliRunner().invoke(stallscope, ["drill", "quiet", "-o", str(tmp_path / "a.rec")])
    assert result.exit_code == 2
    assert "a-baseline.rec is there already" in result.output
    assert (tmp_path / "a-baseline.rec").read_text() == "old"


@pytest.mark.parametrize("drill", DRILLS.values(), ids=DRILLS.keys())
def test_what_a_drill_expects_exists_and_its_loads_are_loads(drill):
    known = {hypothesis.name for hypothesis in HYPOTHESES}
    assert {*drill.primary, *drill.required} <= known
    assert bool(drill.primary) == (drill.symptom is not Symptom.NONE)
    for texts in (drill.quiet, drill.loads):
        usual, slow = varied(texts, USUAL_PACE, seed=1), varied(texts, 10 * USUAL_PACE, seed=1)
        assert [one.rate for one in slow] == pytest.approx([one.rate / 10 for one in usual])
    if drill.fault is not None:
        parse_fault(drill.fault, "1")
    assert len(at_once(drill.at_once, seed=1)) == (round(parse_load(drill.at_once).rate) if drill.at_once else 0)
    assert all(arrival.at == 0 for arrival in at_once(drill.at_once, seed=1))


@pytest.mark.slow
def test_a_server_without_the_gate_refuses_the_fault():
    command = [
        sys.executable,
        "-m",
        "diagnose.cli",
        "serve",
        "--model",
        "tiny",
        "--port",
        "0",
        "--drill-fault",
        "lock=5ms",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "STALLSCOPE_DRILLS=1" in done.stderr and done.stderr.count("\n") <= 2


def replayed(drill: str) -> Outcome:
    """The outcome of a drill whose windows are those of a recording."""
    seen = []
    for name in (f"drill-{drill}-baseline", f"drill-{drill}"):
        recording = read_recording((DATA / f"{name}.rec").read_bytes())
        seen.append(Seen(recording.target, recording.entries, Levels([0.02] * 50, [0.1] * 20)))
    seen[1].levels.ttfts[:] = [2.0] * 20
    quiet, incident = seen
    diagnosis = judge(
        observe(incident.url, incident.entries),
        observe(quiet.url, quiet.entries),
        (),
        is_live=True,
        target=incident.url,
    )
    return Outcome(DRILLS[drill], quiet, incident, (), diagnosis)


def blind(monkeypatch: pytest.MonkeyPatch, guess: str) -> Result:
    outcome = replayed("hard_failure")

    def run(self: DrillRun) -> Outcome:
        self.on_ready("quiet", outcome.quiet.url, 1)
        self.on_ready("incident", outcome.incident.url, 1)
        return replace(outcome, drill=self.drill)

    monkeypatch.setattr(DrillRun, "run", run)
    monkeypatch.setattr("runbooks.drills.catalog.DRILLS", {"hard_failure": DRILLS["hard_failure"]})
    return CliRunner().invoke(stallscope, ["drill", "--blind", "--seed", "3"], input=f"{guess}\n")


@pytest.mark.parametrize(("guess", "said"), [("hard_failure", "right"), ("kv_leak", "not so")])
def test_a_blind_drill_hides_its_name_until_it_is_guessed(monkeypatch: pytest.MonkeyPatch, guess: str, said: str):
    result = blind(monkeypatch, guess)
    assert result.exit_code == 0, result.output
    before, _, after = result.output.partition("What is wrong?")
    assert DRILLS["hard_failure"].summary not in before and "look at it for 60 s" in before
    assert f"You said: {guess}: {said}. It was hard_failure" in after
    assert DRILLS["hard_failure"].deciding in after
    assert after.index("It was hard_failure") < after.index("Truth")


def test_a_target_is_driven_by_load_alone_and_no_engine_is_started(monkeypatch: pytest.MonkeyPatch):
    outcome = replayed("sequence_cap")
    asked: list[tuple[str, int | None, str]] = []

    def window(_: DrillRun, place: tuple[str, int | None], phase: str, pace: Pace, seconds: float) -> Seen:
        asked.append((*place, phase))
        return outcome.quiet if phase == "quiet" else outcome.incident

    monkeypatch.setattr("runbooks.drills.run.EngineProcess", None)
    monkeypatch.setattr("runbooks.drills.run.measure_pace", lambda url: Pace(0.005, 1.0))
    monkeypatch.setattr(DrillRun, "_window", window)
    url = "http://127.0.0.1:9"
    DrillRun(DRILLS["prefill_interference"], "tiny", 1, target=url).run()
    assert asked == [(url, None, "quiet"), (url, None, "incident")]


@pytest.mark.parametrize("name", ["slow_host", "hard_failure", "sequence_cap"])
def test_a_drill_that_breaks_or_configures_the_engine_never_touches_a_target(name: str):
    result = CliRunner().invoke(stallscope, ["drill", name, "--target", "http://127.0.0.1:9"])
    assert result.exit_code == 2
    assert f"{name} cannot be induced in http://127.0.0.1:9 by load alone" in result.output
    assert result.output.strip().count("\n") <= 1


def test_an_outcome_is_right_by_what_was_induced_and_what_showed():
    outcome = replayed("hard_failure")
    assert outcome.moved and outcome.named == "hard_failure" and outcome.is_right
    assert not replace(outcome, drill=DRILLS["kv_leak"]).is_right
    assert not replace(
        outcome, drill=DRILLS["queue_overload"], incident=replace(outcome.incident, levels=Levels())
    ).moved


def test_an_account_is_held_against_the_clients_clocks():
    def window(postprocess_us: float) -> Window:
        machine = Machine(postprocess_us=postprocess_us)
        return make_window(make_signals(steps=tuple(make_steps(400, machine=machine))), DEFAULT_POLICY)

    quiet, slow = window(100), window(5100)
    case = diagnosis_of(slow, quiet)
    floor = quiet.mean_gap()
    assert floor is not None
    before, after = Levels([floor] * 400), Levels([floor + 0.005] * 400)
    check = check_account("host", case, before, after)
    assert check is not None
    assert check.clients == pytest.approx(0.005) and check.said == pytest.approx(0.005, rel=0.01)
    assert check.error < 0.01
    blamed = check_account("lock", case, before, after)
    assert blamed is not None and blamed.error == pytest.approx(1.0, abs=0.01)
    assert check_account("", case, before, after) is None
    assert check_account("host", case, before, before) is None


def diagnosis_of(incident: Window, baseline: Window) -> Diagnosis:
    return diagnose("drill", incident.signals, baseline.signals, is_live=True)


def test_levels_are_of_the_window_and_count_who_still_waits():
    streams = [
        Stream(0.0, tokens=[0.5, 1.5, 2.5, 3.5]),
        Stream(2.0),  # no token yet
        Stream(9.0, tokens=[9.5]),  # after the window
        Stream(1.5, error="HTTP 503"),
        Stream(0.0, tokens=[0.5, 0.9], error="ClientPayloadError"),  # before the window
        Stream(0.0, tokens=[0.5, 2.9], error="ClientPayloadError"),
    ]
    levels = levels_of(streams, since=1.0, until=3.0)
    assert levels.gaps == [1.0, 1.0, pytest.approx(2.4)]
    assert levels.ttfts == [1.0]
    assert levels.unanswered == 1
    assert levels.failed == 2
    assert "1 without a first token, 2 failed" in levels.text(str)


def test_a_symptom_is_measured_against_the_quiet_window():
    quiet, slow, late = (
        Levels([0.01] * 100, [0.1] * 20),
        Levels([0.013] * 100, [0.1] * 20),
        Levels([0.01] * 100, [0.3] * 20),
    )
    assert slow.worse_than(quiet, Symptom.ITL) and not slow.worse_than(quiet, Symptom.TTFT)
    assert late.worse_than(quiet, Symptom.TTFT) and not late.worse_than(quiet, Symptom.ITL)
    assert slow.worse_than(quiet, Symptom.EITHER) and late.worse_than(quiet, Symptom.EITHER)
    assert not quiet.worse_than(quiet, Symptom.EITHER)
    assert Levels(failed=1).worse_than(quiet, Symptom.FAILED) and not quiet.worse_than(quiet, Symptom.FAILED)
    assert not Levels().worse_than(Levels(), Symptom.ITL)


def test_lengths_in_tokens_are_sent_as_words():
    assert Pace(0.005, 6.0).in_words(Arrival(1.0, 300, 4, 60, 2)) == Arrival(1.0, 50, 4, 10, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"), [("oom_abort", "counted 3 oom"), ("dropped_connections", "connection_dropped")]
)
def test_a_failure_that_is_induced_for_real_is_seen_and_named(name: str, told: str):
    outcome = DrillRun(DRILLS[name], "tiny", 1).run()
    assert outcome.moved and outcome.incident.levels.failed > 0
    assert outcome.named == "hard_failure" and outcome.is_right
    failure = next(found for found in outcome.diagnosis.findings if found.name == "hard_failure")
    assert told in " ".join(item.text for item in failure.judgement.evidence)
    assert {entry.kind for entry in outcome.incident.entries} >= ({"log"} if DRILLS[name].reads_log else set())


@pytest.mark.slow
def test_an_interrupted_drill_leaves_no_process():
    drill = subprocess.Popen([*COMMAND, "quiet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert drill.stdout is not None
    pid = None
    for line in drill.stdout:
        if match := re.search(r"window on \S+ \(pid (\d+)\)", line):
            pid = int(match[1])
            break
    assert pid is not None and is_alive(pid)
    drill.send_signal(signal.SIGINT)
    _, err = drill.communicate(timeout=90)
    assert drill.returncode == 130
    assert "Traceback" not in err
    assert not is_alive(pid)
