"""`stallscope experiment` as it is typed: plans, comparisons, crashes, interruptions, and what it writes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import urllib3

from tests.engine.serving import serving
from tests.requirements import covers
from tests.runbooks.experiments.fake_server import FakeServer

ROOT = Path(__file__).resolve().parents[3]
SHORT = ["--block", "2s", "--washout", "300ms", "--drain", "2s", "--load", "rate=8,prompt=10,output=20", "--quiet"]


@pytest.fixture
def noisy(tmp_path):
    """Options for a test machine that other work slows: a late client and a changed speed are not what a test is about."""
    path = tmp_path / "noisy.toml"
    path.write_text(
        "[thresholds]\nmatched_speed = 1.0\nclient_lag = 1.0\nclient_late_sends = 1.0\nmatched_arrivals = 0.5\n"
    )
    return "--policy", str(path)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "diagnose.cli", "experiment", *arguments]


def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )


@pytest.mark.slow
def test_two_servers_of_which_one_stalls(tmp_path, noisy):
    diagnosis = tmp_path / "diagnosis.json"
    diagnosis.write_text(
        json.dumps(
            {
                "primary": None,
                "verdicts": {"prefill_interference": {"verdict": "supported", "evidence": []}},
                "decision": {"kind": "experiment"},
            }
        )
    )
    report = tmp_path / "report.json"
    with FakeServer(gap=0.02, stall=0.3) as slow, FakeServer(gap=0.02, stall=0.1) as fast:
        done = run(
            "--arm-a", slow.url, "--arm-b", fast.url, *SHORT, "--hypothesis", "prefill_interference",
            "--diagnosis", str(diagnosis), "-o", str(report), *noisy,
        )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("Confirmed for this target under this load: ITL p99 ")
    found = json.loads(report.read_text())
    assert found["outcome"] == "confirmed"
    assert found["pairs"] == 6
    difference = found["rows"]["itl_p99"]["difference"]
    assert difference["high"] < 0
    assert difference["p"] == pytest.approx(2 / 64)
    assert [block["arm"] for block in found["blocks"]].count("A") == 6
    updated = json.loads(diagnosis.read_text())
    assert updated["primary"] == "prefill_interference"
    assert updated["verdicts"]["prefill_interference"]["verdict"] == "confirmed"
    assert updated["decision"]["kind"] == "change"


@pytest.mark.slow
def test_the_same_server_twice_gives_a_noise_floor(noisy):
    with FakeServer(gap=0.02, stall=0.1) as server:
        done = run("--arm-a", server.url, "--arm-b", server.url, *SHORT, *noisy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Experiment: noise floor\nNoise floor, the arms being the same: ")
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def state(url: str, token: str) -> dict[str, object]:
    answer = urllib3.request("GET", f"{url}/admin/state", headers={"Authorization": f"Bearer {token}"})
    found: dict[str, object] = answer.json()
    return found


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text("a-secret-token\n")
    return path


@pytest.mark.slow
def test_a_knob_is_changed_only_with_apply_and_put_back_on_ctrl_c(token_file):
    options = ("--model", "tiny", "--kv-blocks", "256", "--admin-token-file", str(token_file))
    with serving(*options) as server:
        knob = (server.url, "--knob", "max_batched_tokens=128,64", "--admin-token-file", str(token_file))
        plan = run(*knob, *SHORT)
        assert plan.returncode == 0
        assert plan.stdout.startswith("Plan (nothing was changed; --apply runs it): max_batched_tokens=128 against")
        before = state(server.url, "a-secret-token")["max_batched_tokens"]
        assert before == 512
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        running = subprocess.Popen(
            command(*knob, *SHORT, "--apply"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        deadline = time.monotonic() + 60
        while state(server.url, "a-secret-token")["max_batched_tokens"] == 512 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(5)
        running.send_signal(signal.SIGINT)
        out, errors = running.communicate(timeout=60)
        assert running.returncode == 130, out + errors
        assert "Interrupted: " in out
        assert "what was changed has been put back" in out
        assert state(server.url, "a-secret-token")["max_batched_tokens"] == before


@pytest.mark.slow
def test_a_crash_of_one_arm_is_an_outcome():
    with FakeServer(gap=0.02) as stays, FakeServer(gap=0.02) as dies:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        running = subprocess.Popen(
            command("--arm-a", stays.url, "--arm-b", dies.url, *SHORT),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        while len(dies.prompts) < 5:
            time.sleep(0.05)
        dies.stop()
        out, errors = running.communicate(timeout=90)
    assert running.returncode == 4, out + errors
    assert "arm B crashed: " in out
    assert "of 6 pairs were completed" in out


@pytest.mark.slow
def test_launched_arms_are_started_on_free_ports_and_stopped(tmp_path):
    engine = f"{sys.executable} -m diagnose.cli serve --model tiny --kv-blocks 128 --port {{port}}"
    done = run(
        "--launch-a", f"{engine} --max-batched-tokens 128", "--launch-b", f"{engine} --max-batched-tokens 64",
        "--keep-running", *SHORT, "--matters", "1", timeout=240,
    )  # fmt: skip
    assert "They differ in\n  max_batched_tokens 128 -> 64\n" in done.stdout, done.stdout + done.stderr
    assert "6 pairs of blocks" in done.stdout
    dies = run("--launch-a", "sh -c 'echo out of memory; exit 3' {port}", "--launch-b", engine, *SHORT)
    assert dies.returncode == 2
    assert "arm A crashed: exit code 3; its last words: out of memory" in dies.stderr


@covers("S8.9")
def test_a_plan_says_what_is_matched_what_is_compared_and_when_it_stops(token_file):
    """Exercise 3: 2048 against 512 under the same load."""
    knob = ("http://127.0.0.1:9", "--knob", "max_batched_tokens=2048,512", "--admin-token-file", str(token_file))
    done = run(*knob, *SHORT)
    assert done.returncode == 0, done.stderr
    for part in (
        "max_batched_tokens=2048 against max_batched_tokens=512",
        "p50, p95 and p99 of ITL and TTFT",
        "only if matched: arrival rate, prompt and output length, prefix hit rate",
        "precision",
        "stops after 6 pairs: ITL p99 at p <= 0.05 decides",
    ):
        assert part in done.stdout


def test_confounded_arms_are_refused():
    first = ("--max-batched-tokens", "128", "--max-sequences", "4")
    with serving("--model", "tiny", *first) as one, serving("--model", "tiny") as other:
        done = run("--arm-a", one.url, "--arm-b", other.url, *SHORT)
    assert done.returncode == 2
    assert "the arms differ in 2 things (max_batched_tokens 128 -> 512; max_sequences 4 -> 64)" in done.stderr
    assert "--allow-confounded" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of: TARGET with --knob; --arm-a with --arm-b; --launch-a with --launch-b (found: none)"),
        (["http://h:1", "--arm-a", "http://h:2"], "give one of"),
        (["--arm-a", "http://h:2"], "give one of"),
        (["--arm-a", "h:2", "--arm-b", "h:3"], "'h:2' is not a target: write http://h:2"),
        (["http://h:1", "--knob", "speed=1,2"], "--knob speed: not one of max_batched_tokens"),
        (["http://h:1", "--knob", "max_sequences=1"], "write NAME=VALUE_A,VALUE_B"),
        (["http://h:1", "--knob", "max_sequences=1,x"], "'x' is not a number"),
        (["http://h:1", "--knob", "max_sequences=1,2", "--apply"], "needs --admin-token-file"),
        (["--launch-a", "a", "--launch-b", "b {port}"], "--launch-a: write {port}"),
        (["--arm-a", "http://h:2", "--arm-b", "http://h:3", "--pairs", "5"], "at least 6"),
        (["--arm-a", "http://h:2", "--arm-b", "http://h:3", "--washout", "50s"], "leaves nothing of --block"),
        (["--arm-a", "http://h:2", "--arm-b", "http://h:3", "--metric", "goodput"], "needs --slo"),
        (["--arm-a", "http://h:2", "--arm-b", "http://h:3", "--diagnosis", "x.json"], "needs --hypothesis"),
        (["--arm-a", "http://h:2", "--arm-b", "http://h:3", "--load", "rate=0"], "rate must be above 0"),
        (["--arm-a", "http://h:2", "--arm-b", "http://h:3", "--key-file", "/absent"], "/absent: cannot be read"),
        (["--arm-a", "http://h:2", "--arm-b", "http://h:3", "-o", "/absent/x.md"], "there is no folder"),
    ],
)
def test_a_wrong_request_is_one_line(arguments, message):
    from click.testing import CliRunner

    from runbooks.experiments.command import experiment_command

    result = CliRunner().invoke(experiment_command, arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
