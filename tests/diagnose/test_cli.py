"""The command: exit codes, one clear line for each thing that can go wrong, and no traceback."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest

from diagnose.cli import COMMANDS
from diagnose.hypotheses.registry import HYPOTHESES
from probes.recording import read_recording
from tests.builders import Engine, make_steps, with_prefill
from tests.diagnose.commands import complaint
from tests.diagnose.fake_target import FakeEngine, serving

ROOT = Path(__file__).resolve().parent.parent.parent
LIVE = ("--window", "5s", "--interval", "1s")


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


def test_unreadable_sources_are_one_line(stallscope, tmp_path, files):
    (tmp_path / "odd").write_text("<html>")
    assert "cannot be read: No such file" in complaint(stallscope("diagnose", tmp_path / "none"))
    assert "an HTML or XML page; what can be read: " in complaint(stallscope("diagnose", tmp_path / "odd"))
    assert "of another time beside a live target" in complaint(stallscope("diagnose", "http://h:1", files["quiet"]))
    assert "record one with `stallscope record http://h:1 --for 60s -o good.rec`" in complaint(
        stallscope("diagnose", files["quiet"], "--baseline", "http://h:1")
    )
    assert "is not a target" in complaint(stallscope("diagnose", "http://"))


def test_a_single_scrape_and_an_unknown_engine(stallscope, tmp_path):
    one = tmp_path / "one.prom"
    one.write_text(Engine().page())
    code, out, _ = stallscope("diagnose", one)
    assert code == 3
    assert "one scrape is a moment and no window" in " ".join(out.split())
    other = tmp_path / "other.prom"
    other.write_text("node_load1 0.5\n")
    assert "a metrics page of node_exporter" in complaint(stallscope("diagnose", other, other))


def test_live_targets_that_cannot_be_read(stallscope):
    with serving("<html>\n") as target:
        assert "not a metrics page: line 1" in complaint(stallscope("diagnose", target.url, *LIVE, "-q"))
    assert "nothing listens there" in complaint(stallscope("diagnose", target.url, *LIVE, "-q"))
    assert "nothing listens there" in complaint(stallscope("record", target.url, "-o", "never.rec", "-q"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["diagnose"], "name what to diagnose"),
        (["diagnose", "x", "--window", "20"], "'20' is not a duration; write 20s, 200ms or 2m"),
        (["diagnose", "x", "--window", "0s"], "'0s' must be above zero"),
        (["diagnose", "x", "--interval", "often"], "is not a duration"),
        (["diagnose", "x", "--slo", "itl=fast"], "write METRIC_pNN=TIME"),
        (["diagnose", "x", "--reported", "itl=fast"], "--reported 'itl=fast': write METRIC_pNN=TIME"),
        (["diagnose", "x", "--slo", "itl_p99=200"], "is not a duration"),
        (["diagnose", "x", "--slo", ""], "--slo is empty"),
        (["diagnose", "x", "--no-such-option"], "No such option"),
        (["record", "http://h:1"], "Missing option '-o'"),
        (["record", "http://h:1", "-o", "."], "is a directory"),
        (["no-such-command"], "no command 'no-such-command'"),
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
    assert read_recording((tmp_path / "cut.rec").read_bytes()).entries[-1].event == "gone"
    assert stallscope("diagnose", tmp_path / "cut.rec", "-q")[0] == 4


def test_a_wrong_target_does_not_replace_a_recording(stallscope, files):
    """Neither one that is down nor one that answers with something else."""
    before = files["quiet"].read_bytes()
    with serving("<html>\n") as target:
        stallscope("record", target.url, "-o", files["quiet"])
    stallscope("record", target.url, "-o", files["quiet"])
    assert files["quiet"].read_bytes() == before


def test_a_recording_that_cannot_be_written(stallscope, tmp_path):
    with FakeEngine([]).serving() as target:
        text = complaint(stallscope("record", target.url, "-q", "-o", tmp_path / "no" / "such" / "folder.rec"))
    assert "folder.rec: cannot be written: No such file or directory" in text


def interrupt(command: str, after_steps: int, *options: str) -> tuple[int, str, str]:
    """Ctrl-C once the engine has executed some steps of a watch of a minute."""
    engine, scraped = FakeEngine(make_steps(5000)), Event()
    with engine.serving() as target:

        def metrics():
            page = engine.metrics()
            if engine.done >= after_steps:
                scraped.set()
                if not after_steps:
                    target.released.wait()
            return page

        target.metrics = metrics
        arguments = [sys.executable, "-m", "diagnose.cli", command, target.url, "--interval", "20ms", *options]
        process = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert scraped.wait(60)
        process.send_signal(signal.SIGINT)
        target.released.set()
        out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    return process.returncode, out, err


def test_an_interrupted_recording_is_readable(tmp_path):
    path = tmp_path / "cut.rec"
    code, out, err = interrupt("record", 140, "--for", "60s", "-o", str(path))
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted"
    assert re.search(r"cut.rec: \d+ exposition, \d+ steps, \d+ KiB of http://\S+ in \d+ s$", err, re.MULTILINE)
    assert [entry.kind for entry in read_recording(path.read_bytes()).entries].count("exposition") >= 4


def test_an_interrupted_watch_is_judged_by_what_it_saw(tmp_path):
    """Nothing is lost: the report comes, says how far the watch got, and the exit code still says interrupted."""
    code, out, _ = interrupt("diagnose", 200, "--window", "60s")
    assert code == 130
    assert re.search(r"! interrupted after \d+\.\d s of 60 s: this is what was seen until then", out)
    assert "Refuted (checked)" in out
    report = tmp_path / "cut.json"
    code, out, err = interrupt("diagnose", 200, "--window", "60s", "-o", str(report))
    assert (code, out) == (130, "")
    document = json.loads(report.read_text())
    assert document["windows"]["incident"]["scrapes"] >= 9
    assert document["warnings"][0].startswith("interrupted after ")
    assert f"{report}: json, " in err


def test_a_watch_that_saw_nothing_yet_ends_quietly():
    code, out, err = interrupt("diagnose", 0, "--window", "60s")
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted"


# ---- forms and files


@pytest.mark.parametrize(
    ("name", "first"), [("r.html", "<!doctype html>"), ("r.md", "# prefill"), ("r.json", "{"), ("r.txt", "http://h:1")]
)
def test_the_files_name_chooses_the_form(stallscope, files, tmp_path, name, first):
    code, out, err = stallscope("diagnose", files["stalled"], "-o", tmp_path / name)
    assert (code, out) == (1, "")
    assert err.startswith(f"{tmp_path / name}: ")
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert text.startswith(first)
    assert text.endswith("\n") and not text.endswith("\n\n")
    assert "\x1b" not in text


def test_a_form_that_is_asked_for_wins(stallscope, files, tmp_path):
    assert stallscope("diagnose", files["stalled"], "--format", "markdown", "-o", tmp_path / "r.html", "-q")[2] == ""
    assert (tmp_path / "r.html").read_text().startswith("# ")
    assert stallscope("diagnose", files["stalled"], "--format", "html")[1].startswith("<!doctype html>")
    same = stallscope("diagnose", files["stalled"], "--json")[1]
    assert stallscope("diagnose", files["stalled"], "--format", "json")[1] == same
    code, _, err = stallscope("diagnose", files["stalled"], "--json", "--format", "html")
    assert code == 2
    assert "ask for two forms" in err


def test_a_report_that_cannot_be_written_is_not_lost(stallscope, files, tmp_path):
    """A missing folder is found before anything is watched; what fails later still prints the report."""
    text = complaint(stallscope("diagnose", "http://127.0.0.1:1", "-o", tmp_path / "none" / "r.html"))
    assert "there is no folder" in text
    code, out, err = stallscope(
        "diagnose", files["stalled"], "-o", f"/dev/full{'' if Path('/dev/full').exists() else '/x'}"
    )
    assert code == 2
    assert "prefill_interference is supported" in out
    assert "cannot be written: No space left on device; the report is on stdout" in err


def test_thresholds_from_a_file(stallscope, files, tmp_path):
    policy = tmp_path / "strict.toml"
    policy.write_text("[thresholds]\nmaterial_stall_share = 0.99\n")
    code, out, _ = stallscope("diagnose", files["stalled"], "--policy", policy)
    assert code == 0
    assert "thresholds overridden: material_stall_share 0.99 (default 0.1)" in out
    policy.write_text("[thresholds]\nmaterial_stall_share = 7\n")
    text = complaint(stallscope("diagnose", files["stalled"], "--policy", policy))
    assert "material_stall_share = 7: must be a number from 0 to 1" in text
    assert "cannot be read" in complaint(stallscope("diagnose", files["stalled"], "--policy", tmp_path / "none"))


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
    assert [line.split()[0] for line in out.splitlines() if line[:1] != " "] == [
        hypothesis.name for hypothesis in HYPOTHESES
    ]
    _, out, _ = stallscope("explain", "kv_exhaustion")
    assert "Proves nothing" in out
    _, out, _ = stallscope("explain", "--thresholds")
    assert "slow_gap_factor = 2  (a number from 1 to 100)" in out
    assert "cannot tell it from jitter." in out
    assert "leave the name out" in stallscope("explain", "--thresholds", "kv_exhaustion")[2]
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
