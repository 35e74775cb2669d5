"""`record` and `replay`, and parts of a recording: what they keep, refuse and say."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

from probes.recording import Entry, RecordingWriter, read_recording
from tests.builders import START_UNIX, Engine, make_steps, with_prefill
from tests.diagnose.commands import complaint
from tests.diagnose.fake_target import FakeEngine, serving

ROOT = Path(__file__).resolve().parent.parent.parent


def test_an_existing_recording_is_replaced_only_when_asked(stallscope, files):
    before = files["quiet"].read_bytes()
    with FakeEngine(make_steps(2000)).serving() as target:
        text = complaint(stallscope("record", target.url, "-q", "-o", files["quiet"], "--for", "2s"))
        assert "quiet.rec: is there already; --force replaces it" in text
        assert files["quiet"].read_bytes() == before
        assert stallscope("record", target.url, "-q", "-o", files["quiet"], "--for", "2s", "--force")[0] == 0
    assert read_recording(files["quiet"].read_bytes()).target == target.url


def test_an_unknown_engine_is_recorded_all_the_same(stallscope, tmp_path):
    """What cannot be judged today may be tomorrow; the page is kept as it came."""
    page = "# TYPE some_requests gauge\nsome_requests 3\n"
    with serving(page) as target:
        code, out, err = stallscope("record", target.url, "-o", tmp_path / "a.rec", "--for", "2s")
    assert (code, out) == (0, "")
    assert "an engine this version does not know; its pages are recorded all the same" in err
    entries = read_recording((tmp_path / "a.rec").read_bytes()).entries
    assert [(entry.kind, entry.body) for entry in entries] == [("exposition", page)] * 3


def test_a_log_is_recorded_beside_the_answers(stallscope, tmp_path):
    log = tmp_path / "engine.log"
    log.write_text("long ago\n")
    engine = FakeEngine(make_steps(2000))

    def metrics():
        with log.open("a") as file:
            file.write(f"step {engine.done}\nunfin")
        return engine.metrics()

    with engine.serving() as target:
        target.metrics = metrics
        assert stallscope("record", target.url, "-q", "--for", "2s", "-o", tmp_path / "a.rec", "--log", log)[0] == 0
    entries = read_recording((tmp_path / "a.rec").read_bytes()).entries
    logged = "".join(entry.body for entry in entries if entry.kind == "log")
    assert logged == "step 0\nunfinstep 20\nunfinstep 40\nunfin"
    assert stallscope("diagnose", tmp_path / "a.rec", "-q")[2] == ""
    assert "none.log: cannot be read" in complaint(
        stallscope("record", target.url, "-q", "-o", tmp_path / "b.rec", "--log", tmp_path / "none.log")
    )


def test_a_part_of_a_recording(stallscope, tmp_path):
    """Quiet at first, stalled later: each part has a verdict of its own."""
    path, engine = tmp_path / "day.rec", Engine()
    quiet = make_steps(300)
    stalled = make_steps(300, with_prefill(5, 1500), first_id=300, start_ns=quiet[-1].end_ns)
    with RecordingWriter(path, "http://h:1", START_UNIX) as writer:
        for at, steps in ((0, []), (20, quiet), (40, stalled)):
            engine.run(steps)
            writer.write(Entry(START_UNIX + at, "exposition", engine.page()))
            if steps:
                writer.write(Entry(START_UNIX + at, "steps", engine.steps(steps)))
    assert stallscope("diagnose", path, "--until", "20s")[0] == 0
    code, out, _ = stallscope("diagnose", path, "--since", "20s", "--json")
    assert code == 1
    assert json.loads(out)["windows"]["incident"]["steps"] == 300
    assert "holds 1 scrapes between 30 s and 40 s" in complaint(stallscope("diagnose", path, "--since", "30s"))
    for arguments in (("http://h:1", "--since", "1s"), (path, "--since", "2s", "--until", "1s")):
        code, out, err = stallscope("diagnose", *arguments)
        assert (code, out) == (2, "")
        assert "--since" in err


def test_a_replay_can_be_diagnosed_like_its_target(files):
    arguments = [sys.executable, "-m", "diagnose.cli", "replay", files["quiet"], "--speed", "50"]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as replay:
        try:
            assert replay.stdout is not None
            line = replay.stdout.readline()
            found = re.fullmatch(r"replaying http://h:1, 20 s at 50x, on (http://\S+) \(Ctrl-C ends\)\n", line)
            assert found is not None, line
            watch = [sys.executable, "-m", "diagnose.cli", "diagnose", found[1], "--window", "1s", "--json"]
            done = subprocess.run(watch, cwd=ROOT, capture_output=True, text=True, timeout=60)
            assert json.loads(done.stdout)["target"] == found[1]
        finally:
            replay.send_signal(signal.SIGINT)
        _, err = replay.communicate(timeout=30)
    assert replay.returncode == 130
    assert err.startswith("the recording has ended: its last answers stay, and nothing moves any more\n")
    assert "Traceback" not in err


def test_what_cannot_be_replayed(stallscope, files, tmp_path):
    (tmp_path / "a.prom").write_text("stallscope_x 1\n")
    assert "has no pace to be replayed at" in complaint(stallscope("replay", tmp_path / "a.prom"))
    with FakeEngine([]).serving() as target:
        assert "cannot listen on" in complaint(stallscope("replay", files["quiet"], "--port", target.port))


def test_a_full_disk_ends_a_recording_in_one_line(tmp_path):
    """A real limit on the size of files; what was written until then can be diagnosed."""
    path = tmp_path / "full.rec"
    with FakeEngine(make_steps(20000)).serving() as target:
        command = [sys.executable, "-m", "diagnose.cli", "record", target.url, "-q", "-o", path, "--interval", "5ms"]
        full = subprocess.run(
            ["bash", "-c", 'trap "" XFSZ; ulimit -f 40; exec "$@"', "bash", *command, "--for", "60s"],
            cwd=ROOT, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert full.returncode == 3
    assert re.fullmatch(
        r"stallscope: \S+full\.rec: File too large; what it holds is readable: \d+ exposition, \d+ steps, 40 KiB\n",
        full.stderr,
    )
    assert len(read_recording(path.read_bytes()).entries) > 10
