"""`stallscope diagnose` on traces, and with `--pid`: forms, one line for what is wrong, interruption."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from diagnose.cli import stallscope
from diagnose.errors import SourceError
from tests.traces import Trace, steady, with_prefill

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(stallscope, ["diagnose", *map(str, arguments)])
    if isinstance(result.exception, SourceError):
        return 2, str(result.exception)
    return result.exit_code, result.output


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "no-suffix"])
def test_a_trace_is_recognised_by_content(tmp_path, name):
    path = Trace().run(with_prefill()).write(tmp_path / name)
    code, out = run(path, "-q")
    assert (code, out.strip()) == (1, "prefill_interference is supported: 87 % of the excess of the slow gaps")


def test_traces_of_ranks_are_read_together(tmp_path):
    files = [
        Trace(rank=rank).run(steady(comm_us=us)).write(tmp_path / f"r{rank}.json.gz") for rank, us in enumerate((90, 8))
    ]
    code, out = run(*files, "-q")
    assert (code, out.strip()) == (1, "collective_stall is supported")


@pytest.mark.parametrize(("comm_us", "code"), [(300, 1), (60, 3), (1, 0)], ids=["most", "a fair share", "little"])
def test_the_exit_code_follows_the_share_of_collectives(tmp_path, comm_us, code):
    """A regular trace of one rank: no stream stalls. What may be a late rank is not nothing wrong."""
    path = Trace().run(steady(comm_us=comm_us)).write(tmp_path / "t.json")
    found, out = run(path, "-q")
    assert found == code, out


def test_an_incomplete_profile_is_insufficient_evidence(tmp_path):
    path = Trace(skip_every=10).run(with_prefill()).write(tmp_path / "t.json")
    code, out = run(path, "--json")
    assert code == 3
    assert any("incomplete profile, not used" in warning for warning in json.loads(out)["warnings"])


def test_a_trace_measures_no_scheduling(tmp_path):
    path = Trace().run(with_prefill()).write(tmp_path / "t.json")
    protocol = json.loads(run(path, "--json")[1])["protocol"]
    done = {item["name"]: item["done"] for item in protocol}
    assert done["step durations by kind"]
    assert not done["host scheduling and lock"]


def test_a_profile_that_cannot_be_used_is_answered_in_one_screen(tmp_path):
    """The reader has a trace and no server: a list of what every hypothesis lacks would bury the one thing to do."""
    path = tmp_path / "host-only.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 2}]}))
    code, out = run(path)
    assert code == 3
    assert "it holds no device kernels" in " ".join(out.split())
    assert "nothing was judged" in out
    assert run(path, "-q")[1] == "undetermined: the profile is incomplete, and nothing else was given\n"
    assert out.count("/start_profile") == 2  # the protocol's and the decision's
    assert len(out.splitlines()) < 70
    assert "? lacks" not in out
    assert "? lacks" in run(path, "--verbose")[1]


def test_a_broken_trace_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("diagnose.sources.trace_events._MAX_EVENT_BYTES", 1000)
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [' + "x" * 5000)
    code, out = run(path)
    assert code == 2
    assert out.startswith(f"{path}: not a trace")
    assert "\n" not in out


def test_a_baseline_may_be_a_trace(tmp_path):
    good = Trace().run(steady(80)).write(tmp_path / "good.json")
    bad = Trace().run(with_prefill()).write(tmp_path / "bad.json")
    code, out = run(bad, "--baseline", good)
    assert code == 1
    assert "p50 ITL is 1." in out


@pytest.mark.slow
def test_an_interrupt_while_reading_ends_quietly(tmp_path):
    pipe = tmp_path / "t.json"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [sys.executable, "-m", "diagnose.cli", "diagnose", str(pipe)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with pipe.open("w") as file:  # returns once the command reads
        file.write(Trace().run(steady(20)).text()[:50_000])
        file.flush()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted"


# ---- --pid


def test_a_pid_alone_is_a_target():
    code, out = run("--pid", os.getpid(), "--window", "1s", "--json", "--quiet")
    document = json.loads(out)
    assert code in (1, 3)
    assert document["target"] == f"process {os.getpid()}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name what to diagnose"),
        (("--pid", "nobody"), "'nobody' is not a process id"),
        (("--pid", "4194305"), "no process 4194305 on this machine"),
        (("--pid", "1", "some.rec"), "--pid looks at a running server"),
    ],
)
def test_a_wrong_pid_is_one_line(arguments, said):
    code, out = run(*arguments)
    assert code == 2
    assert said in out
