"""The command: exit codes, one clear line for each thing that can go wrong, and no traceback."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest

from diagnose.cli import COMMANDS, main
from diagnose.hypotheses.registry import HYPOTHESES
from probes.recording import Entry, RecordingWriter, read_recording
from tests.builders import START_UNIX, Engine, make_steps, with_prefill
from tests.diagnose.fake_target import FakeClock, FakeEngine, serving

ROOT = Path(__file__).resolve().parent.parent.parent
LIVE = ("--window", "5s", "--interval", "1s")


@pytest.fixture
def stallscope(monkeypatch, capsys):
    """Runs the command in this process: exit code, stdout, stderr. A watch takes no time."""
    for module in ("diagnose.commands.record", "diagnose.sources.clock"):  # where it was imported, and where it will be
        monkeypatch.setattr(f"{module}.SystemClock", FakeClock)

    def run(*arguments: object):
        monkeypatch.setattr(sys, "argv", ["stallscope", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return stopped.value.code, captured.out, captured.err

    return run


def recording(path: Path, steps, *, before=None, gone: bool = False, **state) -> Path:
    engine = Engine(state=state)
    with RecordingWriter(path, "http://h:1", START_UNIX) as writer:
        writer.write(Entry(START_UNIX, "exposition", engine.page()))
        engine.run(steps)
        writer.write(Entry(START_UNIX + 20, "exposition", engine.page()))
        if steps:
            writer.write(Entry(START_UNIX + 20, "steps", engine.steps(steps)))
        if gone:
            writer.write(Entry(START_UNIX + 21, "event", "it is gone", "gone"))
    return path


@pytest.fixture
def files(tmp_path):
    return {
        "quiet": recording(tmp_path / "quiet.rec", make_steps(300)),
        "stalled": recording(tmp_path / "stalled.rec", make_steps(300, with_prefill(5, 1500))),
        "idle": recording(tmp_path / "idle.rec", [], num_running=0),
        "gone": recording(tmp_path / "gone.rec", make_steps(300), gone=True),
    }


# ---- exit codes


@pytest.mark.parametrize(("name", "code"), [("quiet", 0), ("stalled", 1), ("idle", 3), ("gone", 4)])
def test_exit_codes(stallscope, files, name, code):
    got, out, err = stallscope("diagnose", files[name], "--baseline", files["quiet"])
    assert got == code
    assert err == ""
    assert out.strip()


def test_an_objective_turns_a_cause_into_a_failure(stallscope, files):
    assert stallscope("diagnose", files["stalled"], "--slo", "itl_p99=20ms")[0] == 4
    assert stallscope("diagnose", files["stalled"], "--slo", "itl_p99=20s")[0] == 1


def test_idle_is_one_line(stallscope, files):
    _, out, _ = stallscope("diagnose", files["idle"])
    assert out.count("\n") == 1
    assert "http://h:1: idle: no token was computed in 20 s" in out


def test_json_quiet_and_verbose(stallscope, files):
    _, out, _ = stallscope("diagnose", files["stalled"], "--json")
    assert json.loads(out)["primary"] == "prefill_interference"
    _, out, _ = stallscope("diagnose", files["stalled"], "--quiet")
    assert out.startswith("prefill_interference is supported")
    assert out.count("\n") == 1
    _, short, _ = stallscope("diagnose", files["stalled"])
    _, out, _ = stallscope("diagnose", files["stalled"], "--verbose")
    assert len(out) > len(short)
    assert "\x1b" not in short, "captured output is no terminal"


# ---- what can go wrong


def complaint(result: tuple[int, str, str], code: int = 2) -> str:
    got, out, err = result
    assert (got, out) == (code, ""), err
    assert err.startswith("stallscope: ")
    assert err.count("\n") == 1
    return err


def test_unreadable_sources_are_one_line(stallscope, tmp_path, files):
    (tmp_path / "odd").write_text("<html>")
    assert "cannot be read: No such file" in complaint(stallscope("diagnose", tmp_path / "none"))
    assert "neither a recording" in complaint(stallscope("diagnose", tmp_path / "odd"))
    assert "one live target at a time" in complaint(stallscope("diagnose", "http://h:1", files["quiet"]))
    assert "a baseline is made of files" in complaint(
        stallscope("diagnose", files["quiet"], "--baseline", "http://h:1")
    )
    assert "is not a target" in complaint(stallscope("diagnose", "http://"))


def test_a_single_scrape_and_an_unknown_engine(stallscope, tmp_path):
    one = tmp_path / "one.prom"
    one.write_text(Engine().page())
    assert "counters need two" in complaint(stallscope("diagnose", one), 3)
    other = ROOT / "tests/data/vllm-0.32.0-decode-01.prom"
    assert "its metrics begin with process, python, vllm" in complaint(stallscope("diagnose", other, other))


def test_live_targets_that_cannot_be_read(stallscope):
    with serving("<html>\n") as target:
        assert "not a metrics page: line 1" in complaint(stallscope("diagnose", target.url, *LIVE, "-q"))
    assert "nothing listens there" in complaint(stallscope("diagnose", target.url, *LIVE, "-q"))
    assert "nothing listens there" in complaint(stallscope("record", target.url, "-o", "never.rec", "-q"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["diagnose"], "Missing argument 'SOURCES"),
        (["diagnose", "x", "--window", "20"], "'20' is not a duration; write 20s, 200ms or 2m"),
        (["diagnose", "x", "--window", "0s"], "'0s' must be above zero"),
        (["diagnose", "x", "--interval", "often"], "is not a duration"),
        (["diagnose", "x", "--slo", "itl=fast"], "write METRIC_pNN=LIMIT"),
        (["diagnose", "x", "--slo", "itl_p99=200"], "is not a duration"),
        (["diagnose", "x", "--slo", ""], "--slo is empty"),
        (["diagnose", "x", "--no-such-option"], "No such option"),
        (["record", "http://h:1"], "Missing option '-o'"),
        (["record", "http://h:1", "-o", "."], "is a directory"),
        (["no-such-command"], "No such command"),
    ],
)
def test_usage_errors_say_what_would_be_right(stallscope, arguments, expected):
    code, out, err = stallscope(*arguments)
    assert (code, out) == (2, "")
    assert expected in err


# ---- live


def test_a_live_target_and_its_baseline(stallscope, tmp_path):
    """Record a quiet hour, then diagnose the stalled one against it."""
    baseline = tmp_path / "good.rec"
    with FakeEngine(make_steps(2000), per_scrape=100).serving() as target:
        code, out, err = stallscope("record", target.url, "--for", "5s", "-o", baseline)
        assert code == 0
        assert out == ""
        assert f"{baseline}: " in err
    with FakeEngine(make_steps(2000, with_prefill(5, 1500)), per_scrape=100).serving() as target:
        code, out, err = stallscope("diagnose", target.url, *LIVE, "--baseline", baseline, "--json")
    assert code == 1
    diagnosis = json.loads(out)
    assert diagnosis["primary"] == "prefill_interference"
    for window in diagnosis["windows"].values():
        assert (window["scrapes"], window["steps"], window["length_seconds"]) == (6, 500, 5.0)
    assert "watching" in err, "progress goes to stderr, beside JSON too"


def test_a_live_target_that_goes_away(stallscope, tmp_path):
    """While watched it is a hard failure; while recorded, what came before is kept. Both exit 4."""
    for arguments in (("diagnose", "-q", "--window"), ("record", "-q", "-o", tmp_path / "cut.rec", "--for")):
        engine = FakeEngine(make_steps(2000))
        with engine.serving() as target:

            def die_at_the_fifth(target=target, engine=engine):
                return engine.metrics() if engine.done < 100 else None

            target.metrics = die_at_the_fifth
            code, out, err = stallscope(arguments[0], target.url, *arguments[1:], "60s")
        assert code == 4
        assert "hard_failure is supported" in out or "is gone now" in err
    assert read_recording((tmp_path / "cut.rec").read_text()).entries[-1].event == "gone"
    assert stallscope("diagnose", tmp_path / "cut.rec", "-q")[0] == 4


def test_a_wrong_target_does_not_replace_a_recording(stallscope, files):
    """Neither one that is down nor one that answers with something else."""
    before = files["quiet"].read_text()
    with serving("<html>\n") as target:
        stallscope("record", target.url, "-o", files["quiet"])
    stallscope("record", target.url, "-o", files["quiet"])
    assert files["quiet"].read_text() == before


def test_a_recording_that_cannot_be_written(stallscope, tmp_path):
    with FakeEngine([]).serving() as target:
        text = complaint(stallscope("record", target.url, "-q", "-o", tmp_path / "no" / "such" / "folder.rec"))
    assert "folder.rec: cannot be written: No such file or directory" in text


@pytest.mark.parametrize("command", ["diagnose", "record"])
def test_interrupted_watches_end_quietly(tmp_path, command):
    """Ctrl-C: exit 130, one word, no traceback; what was recorded until then is readable."""
    engine, scraped, path = FakeEngine(make_steps(5000)), Event(), tmp_path / "cut.rec"
    with engine.serving() as target:

        def metrics():
            if engine.done >= 100:
                scraped.set()
            return engine.metrics()

        target.metrics = metrics
        options = ["--window", "60s"] if command == "diagnose" else ["--for", "60s", "-o", str(path)]
        arguments = [sys.executable, "-m", "diagnose.cli", command, target.url, "--interval", "20ms", *options]
        process = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert scraped.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    if command == "record":
        entries = read_recording(path.read_text()).entries
        assert [entry.kind for entry in entries].count("exposition") >= 4


# ---- help and explanations


@pytest.mark.parametrize("name", [None, "diagnose", "record", "explain"])
def test_help_is_light(name):
    """None of the heavy libraries is imported to print a help page."""
    program = f"""
import sys
from diagnose.cli import main
sys.argv = ["stallscope", *{[name] if name else []!r}, "--help"]
try:
    main()
except SystemExit as stop:
    assert stop.code in (0, None), stop.code
heavy = {{"torch", "textual", "numpy", "prometheus_client", "starlette", "rich"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: stallscope" in done.stdout


def test_the_command_list_names_every_command(stallscope):
    code, out, _ = stallscope("--help")
    assert code == 0
    assert all(f"  {name} " in out for name in COMMANDS)
    assert "4 hard failure" in out


def test_the_version_is_known_or_said_to_be_unknown(stallscope):
    code, out, _ = stallscope("--version")
    assert code == 0
    assert out.startswith("stallscope")


def test_recordings_of_a_real_server(stallscope):
    """A real model on a busy machine, recorded quiet and under long prompts."""
    quiet, disturbed = (ROOT / "tests" / "data" / name for name in ("quiet.rec", "interference.rec"))
    assert stallscope("diagnose", quiet)[0] == 0
    code, out, _ = stallscope("diagnose", disturbed, "--baseline", quiet, "--json")
    assert code == 1
    diagnosis = json.loads(out)
    assert diagnosis["primary"] == "prefill_interference"
    supported = {name for name, finding in diagnosis["verdicts"].items() if finding["verdict"] == "supported"}
    assert supported == {"prefill_interference"}


def test_explanations(stallscope):
    code, out, _ = stallscope("explain")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [hypothesis.name for hypothesis in HYPOTHESES]
    _, out, _ = stallscope("explain", "kv_exhaustion")
    assert "Proves nothing" in out
    assert "no hypothesis 'magic'; there are prefill_interference" in complaint(stallscope("explain", "magic"))


def test_a_closed_pipe_is_no_error(files):
    """`stallscope diagnose ... | head -0`."""
    command = [sys.executable, "-m", "diagnose.cli", "diagnose", str(files["stalled"])]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(timeout=60) in (1, 141)
    assert "Traceback" not in err
