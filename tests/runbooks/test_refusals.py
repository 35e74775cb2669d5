"""What people can get wrong with drills, experiments and runbooks: one line that says what would be right, exit code 2."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from diagnose.cli import stallscope
from diagnose.errors import DiagnoseError
from runbooks.admin import AdminClient
from runbooks.drills import demo
from runbooks.drills.run import DrillRun, Outcome, Seen
from runbooks.drills.traffic import BackgroundTraffic, Pace, measure_pace
from runbooks.errors import AdminError, AdminRefused, ConfigError, DrillError, ExperimentError, JournalError, Refused
from runbooks.experiments.arms import KnobArms
from runbooks.experiments.workload import parse_load
from runbooks.response.approval import ApprovalLinks
from runbooks.response.config import read_config
from runbooks.response.journal import Journal
from runbooks.response.window_before import PrometheusWindow
from tests.builders import make_steps
from tests.diagnose.fake_target import Answer, FakeEngine, Server, raw, serving
from tests.runbooks.experiments.fake_server import FakeServer
from tests.runbooks.response.fake_admin import FakeAdmin
from tests.runbooks.response.scenes import ACT, alert, better, make_scene, slow, write_config
from tests.runbooks.test_drill import replayed

NOBODY = "http://127.0.0.1:1"
ARMS = ("--arm-a", NOBODY, "--arm-b", NOBODY)


@pytest.fixture(autouse=True)
def own_signals():
    """The commands take SIGTERM as Ctrl-C."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def complaint(*words: object, code: int = 2) -> str:
    done = CliRunner().invoke(stallscope, [str(word) for word in words])
    error = done.exception
    if isinstance(error, DiagnoseError):  # what main() makes a line and a code of
        assert int(error.exit_code) == code
        return str(error)
    assert done.exit_code == code, done.output
    assert not error or isinstance(error, SystemExit)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 or lines[0].startswith("Usage: "), lines
    return done.stderr


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """The URL of a server that always answers so."""
    server = Server(0, lambda _: answer)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


# ---- the admin surface


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (raw("200 OK", "<html>"), AdminError, "its answer is not the state of an engine"),
        (raw("200 OK", "[]"), AdminError, "its answer is not the state of an engine"),
        (raw("404 Not Found"), AdminRefused, "is the engine served with --admin-token-file?"),
        (raw("401 Unauthorized"), AdminRefused, "is the engine served with --admin-token-file?"),
        (raw("422 Unprocessable", "at least 1"), AdminRefused, "answered HTTP 422 at least 1"),
        (raw("500 Internal Server Error"), AdminError, "answered HTTP 500"),
        (None, AdminError, "does not answer"),
    ],
)
def test_an_answer_that_is_no_state(answer: Answer, error: type[AdminError], words: str):
    with answering(answer) as url, pytest.raises(AdminError) as refused:
        AdminClient(url, "secret", timeout_seconds=5.0).state()
    assert words in str(refused.value)
    assert type(refused.value) is error, "a refusal is the caller's fault, everything else the engine's"


def test_an_engine_that_is_gone_is_said_in_words():
    with pytest.raises(AdminError, match=r"does not answer \(connection refused: nothing listens there\)"):
        AdminClient(NOBODY, "secret", timeout_seconds=5.0).state()


def test_a_setting_that_cannot_be_put_back_is_said_and_hides_no_other_error():
    with FakeAdmin() as admin:
        arms = KnobArms(admin.url, "max_batched_tokens", ("512", "96"), "secret").__enter__()
    with pytest.raises(ExperimentError, match=r"max_batched_tokens could not be put back to 512: .* does not answer"):
        arms.close(None)
    first = ValueError("the first one")
    arms.close(first)
    assert "could not be put back to 512" in first.__notes__[0]


# ---- drills and the demo


def test_a_drill_against_nobody():
    err = complaint("drill", "prefill_interference", "--target", NOBODY)
    assert err.splitlines()[-1].startswith("stallscope drill: ")
    assert NOBODY in err


@pytest.mark.parametrize("command", [("drill", "quiet"), ("experiment", *ARMS)], ids=lambda words: words[0])
def test_without_the_client_of_the_load_the_extra_is_named(command, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("runbooks.drills.", "runbooks.experiments."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    err = complaint(*command)
    assert "aiohttp, which the load needs," in err
    assert "stallscope[lab]" in err


def test_a_disk_that_takes_no_recording_of_a_drill(monkeypatch, tmp_path: Path):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DrillRun, "run", lambda _: replayed("hard_failure"))
    monkeypatch.setattr(Seen, "write", fail)
    err = complaint("drill", "hard_failure", "-o", tmp_path / "a.rec")
    assert err == f"stallscope drill: {tmp_path / 'a.rec'}: cannot be written: No space left on device\n"


def test_a_load_that_cannot_start_or_gets_no_answer():
    load = [parse_load("rate=1")]
    with pytest.raises(DrillError, match="the load could not start: "):
        BackgroundTraffic(NOBODY, load, 1.0, pace=Pace(0.01, 1.0), seed=1, salt="x").__enter__()
    with FakeServer(status=503) as server, pytest.raises(DrillError, match=r"was not answered .*HTTP 503"):
        measure_pace(server.url)


@pytest.mark.parametrize(
    ("ends", "code", "words"),
    [
        (DrillError("the engine ended with 1"), 2, "stallscope demo: the engine ended with 1\n"),
        (AdminError("it does not answer"), 2, "stallscope demo: it does not answer\n"),
        (False, 1, "this diagnosis is not what the demo induced"),
        (True, 0, ""),
    ],
)
def test_how_the_demo_ends(monkeypatch, ends, code, words):
    def run(*_: object) -> bool:
        if isinstance(ends, Exception):
            raise ends
        return bool(ends)

    monkeypatch.setattr(demo, "_interference", run)
    monkeypatch.setattr(demo, "_reservation", run)
    for condition in ("interference", "reservation"):
        done = CliRunner().invoke(stallscope, ["demo", "--condition", condition])
        assert done.exit_code == code
        assert words in done.stderr


def test_a_drill_whose_symptom_did_not_show_does_not_count(monkeypatch):
    """Whatever was named."""
    outcome = replayed("hard_failure")
    same = replace(outcome.incident, levels=outcome.quiet.levels)

    def run(self: DrillRun) -> Outcome:
        return replace(outcome, drill=self.drill, incident=same)

    monkeypatch.setattr(DrillRun, "run", run)
    done = CliRunner().invoke(stallscope, ["drill", "prefill_interference"])
    assert done.exit_code == 3
    assert "the symptom did not show in what clients saw: this run does not count" in done.output


def test_a_demo_whose_load_is_refused_says_so_after_a_window_that_shows_its_progress(monkeypatch, capsys):
    monkeypatch.setattr(demo, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    models = json.dumps({"data": [{"id": "m"}]})
    with (
        serving(FakeEngine(make_steps(100)).metrics, others={"/v1/models": models}) as target,
        pytest.raises(DrillError, match=r"the load met \d+ errors, the first: "),
    ):
        demo._measure(target.url, 1.0, demo.Plan(streams=1), disturbed=False)
    assert f"watching {target.url}" in capsys.readouterr().err


# ---- experiments


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://h:1", "--knob", "prefix_cache=yes,no"], "--knob prefix_cache: 'yes' is neither true nor false"),
        ([*ARMS, "--trace", "x.csv", "--load", "rate=1"], "--trace and --load both say what arrives"),
        ([*ARMS, "--trace", "negative.csv"], "row 1 is not an arrival: ValueError('negative length -5')"),
        ([*ARMS, "--diagnosis", "none.json", "--hypothesis", "prefill_interference"], "none.json"),
        ([*ARMS, "--diagnosis", "none.json"], "--diagnosis needs --hypothesis"),
        (
            ["--launch-a", "no-such-server {port}", "--launch-b", "no-such-server {port}"],
            "--launch-a: no-such-server: No such file or directory",
        ),
        ([NOBODY, "--knob", "max_sequences=1,2", "--admin-token-file", "token", "--apply"], "does not answer"),
        ([*ARMS, "--load", "rate=fast"], "--load 'rate=fast'"),
        ([*ARMS, "--load", "prompt=5-2"], "length '5-2': write 256, 128-512"),
    ],
)
def test_an_experiment_that_cannot_be_made(words, said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("token").write_text("secret")
    Path("negative.csv").write_text("Timestamp,Request tokens,Response tokens\n0,-5,3\n")
    assert said in complaint("experiment", *words, "-q")


def test_a_server_that_does_not_say_its_models():
    with answering(raw("401 Unauthorized")) as url:
        err = complaint("experiment", "--arm-a", url, "--arm-b", url, "-q")
    assert f"{url}/v1/models" in err
    assert "401" in err


# ---- runbooks


def test_a_key_of_approval_links_that_is_none(tmp_path):
    (tmp_path / "j.db.key").write_bytes(b"short")
    with pytest.raises(ConfigError, match="is no key of approval links; remove it"):
        ApprovalLinks(tmp_path / "j.db", NOBODY)
    with pytest.raises(ConfigError, match="cannot be used as the key of approval links: No such file"):
        ApprovalLinks(tmp_path / "none" / "j.db", NOBODY)


@pytest.mark.parametrize(("data", "words"), [(b"\xff\xfe", "is not text"), (b"[receiver", "is not TOML")])
def test_a_configuration_that_is_no_text_or_no_toml(tmp_path, data, words):
    path = tmp_path / "runbooks.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        read_config(path)
    assert words in complaint("runbook", "check", "--config", path)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ('do = "capture"\nlength = "long"', "'long' is not a duration"),
        ('do = "capture"\nlength = "1h"', "length must be 1s to 10m"),
        ('do = "command"\ncommand = "note"\ntimeout = "soon"', "'soon' is not a duration"),
        ('do = "command"\ncommand = "note"\ntimeout = "1h"', "timeout must be 1s to 5m"),
        ('do = "webhook"\nurl = "ftp://h"', "'ftp://h' is not an http(s) URL"),
    ],
)
def test_an_act_that_cannot_be_done_as_it_is_written(tmp_path, act, words):
    with pytest.raises(ConfigError) as refused:
        write_config(tmp_path, "http://h:1", acts=ACT.replace('do = "lower_budget"', act))
    assert words in str(refused.value)


def test_a_journal_that_is_not_there_or_asks_nothing(tmp_path):
    write_config(tmp_path, "http://h:1")
    config = ("--config", tmp_path / "runbooks.toml")
    for words in (("history",), ("approve", 1), ("report", 1)):
        assert "runbooks.db: there is no journal" in complaint("runbook", *words, *config)
    with pytest.raises(JournalError, match="there is no journal"):
        Journal(tmp_path / "runbooks.db", create=False)
    here = make_scene(tmp_path, "http://h:1", [slow(), better()])
    (number,) = here.receive(alert())
    assert f"incident {number} does not wait for an answer" in complaint("runbook", "approve", number, *config)
    assert "there is no incident 99" in complaint("runbook", "report", 99, *config)


def test_an_incident_whose_runbook_was_taken_away_waits(tmp_path):
    with FakeAdmin() as admin:
        here = make_scene(tmp_path, admin.url, [slow(), better()])
        (number,) = here.receive(alert())
        write_config(tmp_path, admin.url)
        path = tmp_path / "runbooks.toml"
        path.write_text(path.read_text().replace('name = "slow"', 'name = "other"'))
        with pytest.raises(Refused, match="runbook slow is not in the configuration any more; put it back"):
            replace(here, config=read_config(path)).conductor().advance(number)
    assert admin.posts == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}}), "holds nothing of"),
        ("<html>", "its answer is not Prometheus'"),
        (json.dumps({"status": "error"}), "its answer is not Prometheus'"),
    ],
)
def test_a_window_that_prometheus_does_not_have(tmp_path, answer, words):
    with answering(answer) as url:
        config = write_config(tmp_path, NOBODY, target="selector = 'job=\"x\"'", prometheus=url)
        with pytest.raises(DiagnoseError, match=words):
            PrometheusWindow(url).before(config.targets[0], 20.0, 1_800_000_000.0)
