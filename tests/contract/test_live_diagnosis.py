"""The whole way: a real server process, a real load, the real command over HTTP."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probes.recording import read_recording
from runbooks.drills.engine_process import EngineProcess
from runbooks.drills.load import Load

pytestmark = pytest.mark.slow


def stallscope(*arguments: str, **options: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "diagnose.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload,no-any-return]


def test_sigkill_during_a_diagnosis_is_a_hard_failure():
    """The engine dies under load while it is watched: exit 4, the verdict says so, and containment comes first."""
    with EngineProcess(["--model", "tiny"]) as engine, Load(engine.url, streams=2, stream_tokens=100) as load:
        watcher = stallscope("diagnose", engine.url, "--window", "30s", "--interval", "200ms", "--json")
        assert watcher.stderr is not None
        assert "watching" in watcher.stderr.readline()
        while not load.ttfts("stream"):
            time.sleep(0.05)
        time.sleep(3.0)  # let the watch have read something good first
        os.kill(engine.pid, signal.SIGKILL)
        out, err = watcher.communicate(timeout=60)
    assert watcher.returncode == 4, err
    diagnosis = json.loads(out)
    assert diagnosis["verdicts"]["hard_failure"]["verdict"] == "supported"
    assert diagnosis["primary"] == "hard_failure"
    assert diagnosis["decision"]["kind"] == "contain"
    assert "refused" in json.dumps(diagnosis["verdicts"]["hard_failure"]["evidence"])
    assert "Traceback" not in err


def test_an_idle_server_is_called_idle():
    """Idle is not healthy-under-load: one line, exit 3."""
    with EngineProcess(["--model", "tiny"]) as engine:
        watcher = stallscope("diagnose", engine.url, "--window", "1s", "--interval", "200ms", "-q")
        out, err = watcher.communicate(timeout=60)
    assert watcher.returncode == 3, err
    assert out.count("\n") == 1
    assert "idle" in out


def test_record_under_load_then_diagnose_the_file(tmp_path: Path):
    """A recording holds all that the live diagnosis saw: steps, scrapes, account."""
    recording = tmp_path / "load.rec"
    with EngineProcess(["--model", "tiny"]) as engine, Load(engine.url, streams=3, stream_tokens=100) as load:
        while not load.ttfts("stream"):
            time.sleep(0.05)
        recorder = stallscope("record", engine.url, "--for", "3s", "--interval", "500ms", "-o", str(recording))
        _, err = recorder.communicate(timeout=60)
        assert recorder.returncode == 0, err
        url = engine.url
    reader = stallscope("diagnose", str(recording), "--baseline", str(recording), "--json")
    out, err = reader.communicate(timeout=60)
    diagnosis = json.loads(out)
    assert diagnosis["target"] == url
    assert diagnosis["windows"]["incident"]["steps"] > 50
    assert diagnosis["account"]["p99"]["total_seconds"] == pytest.approx(
        sum(diagnosis["account"]["p99"]["parts"].values())
    )
    assert diagnosis["symptom"]["median_shift"] == 1.0, "against itself nothing can have shifted"


def num_pages(recording: Path) -> int:
    """So far."""
    if not recording.exists() or not recording.stat().st_size:
        return 0
    return [entry.kind for entry in read_recording(recording.read_bytes()).entries].count("exposition")


def test_interrupting_a_recording_keeps_what_it_has(tmp_path: Path):
    """Ctrl-C in mid-recording: exit 130, no traceback, and the file can be diagnosed."""
    recording = tmp_path / "cut.rec"
    with EngineProcess(["--model", "tiny"]) as engine, Load(engine.url, streams=2, stream_tokens=100):
        recorder = stallscope("record", engine.url, "--for", "60s", "--interval", "200ms", "-o", str(recording))
        while num_pages(recording) < 4:
            time.sleep(0.05)
        recorder.send_signal(signal.SIGINT)
        _, err = recorder.communicate(timeout=30)
    assert recorder.returncode == 130
    assert "Traceback" not in err
    reader = stallscope("diagnose", str(recording), "--json")
    out, err = reader.communicate(timeout=60)
    assert json.loads(out)["windows"]["incident"]["scrapes"] >= 4
