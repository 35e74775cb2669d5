"""`stallscope drill`: what it offers, what it refuses, and that nothing is left of it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from diagnose.cli import stallscope
from diagnose.hypotheses.registry import HYPOTHESES
from engine.server.drill_fault import parse_fault
from runbooks.drills.catalog import DRILLS, USUAL_PACE, varied
from runbooks.drills.service_levels import Levels, Symptom
from runbooks.drills.traffic import Pace, levels_of
from runbooks.experiments.client import Stream
from runbooks.experiments.workload import Arrival
from tests.runbooks.test_demo import is_alive

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


def test_levels_are_of_the_window_and_count_who_still_waits():
    streams = [
        Stream(0.0, tokens=[0.5, 1.5, 2.5, 3.5]),
        Stream(2.0),  # no token yet
        Stream(9.0, tokens=[9.5]),  # after the window
        Stream(1.5, error="HTTP 503"),
    ]
    levels = levels_of(streams, since=1.0, until=3.0)
    assert levels.gaps == [1.0, 1.0]
    assert levels.ttfts == [1.0]
    assert levels.unanswered == 1


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
    assert not Levels().worse_than(Levels(), Symptom.ITL)


def test_lengths_in_tokens_are_sent_as_words():
    assert Pace(0.005, 6.0).in_words(Arrival(1.0, 300, 4, 60, 2)) == Arrival(1.0, 50, 4, 10, 2)


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
