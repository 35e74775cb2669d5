"""The probe inside a real vLLM engine: exact, and harmless."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM: make test-vllm"),
    pytest.mark.timeout(900),
]


def run(case: str, **environment: str) -> tuple[dict[str, Any], str]:
    """The result of a case of `tests.vllm.in_process`, and what it logged."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.in_process", case],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
        env=os.environ | environment,
    )
    log = done.stdout + done.stderr
    assert done.returncode == 0, log[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT ")), log


def test_the_census_is_a_scan_at_every_step_under_pressure():
    """Preemptions, hits, evictions, ghosts, aborts and a reset: counted without a scan, and never off by a block."""
    found, _ = run("census")
    assert found["mismatches"] == []
    assert found["checks"] > 2 * 200
    assert (found["hook_errors"], found["recorder_errors"], found["negative_parts"]) == (0, 0, 0)
    assert found["preemptions"] == found["preempted"] > 0
    assert found["evictions"] > 0
    assert found["ghost_hits"] > 0
    assert found["cached_tokens"] > 0
    assert found["recomputed_tokens"] > 0
    # Every token that was scheduled is in exactly one phase; a resumed request's last one is neither prefill nor recompute.
    booked = found["decodes"] + found["prefill_tokens"] + found["recomputed_tokens"]
    assert 0 <= found["scheduled_tokens"] - booked <= found["preemptions"]
    assert found["finished"] == {"length": 21, "abort": 2}
    assert found["reclaimable_before_reset"] > 0
    assert found["was_reset"] is True
    assert found["census_after_reset"] == {"active": 0, "reclaimable": 0, "free": 32}


def test_a_probe_that_fails_is_taken_off_and_the_engine_goes_on():
    found, log = run("faulty")
    assert found["same_tokens"] is True
    assert found["records_after"] <= found["records_before"] + 1
    assert "of its hooks failed" in found["off_reason"]
    assert found["hooked_still"] is False
    assert log.count("the probe is off until the next start") == 1


def test_an_unknown_version_gets_no_probe_and_one_line():
    found, log = run("unknown")
    assert found == {"tokens": 5, "has_probe": False, "hooked": False}
    assert log.count("vLLM 0.99.1 has not been tried (tried: 0.32)") == 1


def test_an_unknown_version_can_be_tried_by_force():
    found, log = run("unknown", STALLSCOPE_PROBE="force")
    assert found == {"tokens": 5, "has_probe": True, "hooked": True}
    assert "has not been tried" not in log


def test_the_switch_keeps_it_off_without_a_word():
    found, log = run("unknown", STALLSCOPE_PROBE="0")
    assert found == {"tokens": 5, "has_probe": False, "hooked": False}
    assert "stallscope:" not in log
