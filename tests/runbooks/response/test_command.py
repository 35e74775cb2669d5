"""`stallscope runbook`: what people type, and what they are told."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import urllib3

from diagnose.cli import main
from runbooks.response.journal import Journal
from tests.runbooks.response.fake_admin import FakeAdmin
from tests.runbooks.response.scenes import ACT, alert, better, make_scene, slow, write_config
from tests.runbooks.response.test_receiver import PAYLOAD


@pytest.fixture
def runbook(monkeypatch, capsys, tmp_path):
    """Runs the command in this process: exit code, stdout, stderr."""

    def run(*words: object):
        monkeypatch.setattr(sys, "argv", ["stallscope", "runbook", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return stopped.value.code, captured.out, captured.err

    return run


@pytest.fixture
def config(tmp_path):
    return "--config", tmp_path / "runbooks.toml"


def test_pages_are_listed_and_shown(runbook):
    code, out, _ = runbook("list")
    assert code == 0
    assert re.search(r"^InterTokenLatencySlow +More gaps between tokens .*\.$", out, re.MULTILINE)
    assert runbook("show", "DeviceMemoryHigh")[1].startswith(
        "# DeviceMemoryHigh\n\n## Meaning\n\nThere is no such alert here"
    )
    assert runbook("show", "KvExhaustion")[0] == 2


def test_rules_with_other_objectives(runbook):
    code, out, _ = runbook("alerts", "vllm", "--itl", "100ms", "--share", "0.999")
    assert code == 0
    assert "took longer than 100 ms" in out
    assert "> 0.0144 and" in out
    code, _, err = runbook("alerts", "vllm", "--itl", "110ms")
    assert (code, err.count("\n")) == (2, 1)


def test_check_says_what_is_allowed(runbook, config, tmp_path):
    write_config(tmp_path, "http://h:1")
    code, out, _ = runbook("check", *config)
    assert code == 0
    assert "lower_budget for prefill_interference: auto, undone after 15m, rests 1h" in out
    (tmp_path / "admin-token").unlink()
    code, out, err = runbook("check", *config)
    assert code == 2
    assert err.startswith("stallscope runbook: ") and "admin-token" in err


@pytest.mark.parametrize("words", [["history"], ["approve", "1"], ["report", "1"], ["serve"], ["check"]])
def test_without_a_configuration_there_is_one_line(runbook, tmp_path, words):
    code, out, err = runbook(*words, "--config", tmp_path / "none.toml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "none.toml: cannot be read" in err


def test_an_incident_is_approved_reported_and_remembered(runbook, config, tmp_path):
    with FakeAdmin() as admin:
        here = make_scene(tmp_path, admin.url, [slow(400), better(80)], acts=ACT.replace('"auto"', '"approve"'))
        here.receive(alert())
        here.carry(1)
        code, out, _ = runbook("history", *config)
        assert (code, "slow on chat: under way" in out) == (0, True)
        assert runbook("approve", 1, *config)[:2] == (0, "incident 1: approved\n")
        code, _, err = runbook("approve", 1, *config)
        assert (code, err) == (2, "stallscope runbook: incident 1 has been answered already\n")
        assert "there is no incident 9" in runbook("approve", 9, *config)[2]
        here.carry_to_end(1)
    _, report, _ = runbook("report", 1, *config)
    for words in (
        "# Incident 1: slow on chat",
        "max_batched_tokens 512 -> 256 helped",
        "Asked: approval wanted: max_batched_tokens 512 -> 256",
        "Acted: max_batched_tokens 512 -> 256: done: max_batched_tokens is 256",
        "Undone because its time to live is over: max_batched_tokens is 512 again",
        "the cause is not confirmed",
    ):
        assert words in report, report
    page = tmp_path / "incident.html"
    assert runbook("report", 1, *config, "-o", page)[0] == 0
    html = page.read_text()
    assert html.startswith("<!doctype html>")
    assert "<script" not in html and "512 -&gt; 256" in html
    assert "slow on chat: max_batched_tokens 512 -> 256 helped" in runbook("history", *config)[1]


def test_a_label_cannot_become_markup_or_steer_the_terminal(runbook, config, tmp_path):
    here = make_scene(tmp_path, "http://h:1", [better()])
    here.receive(alert(note="<script>x</script>\x1b[2J"))
    here.carry_to_end(1)
    assert "\x1b" not in runbook("report", 1, *config)[1]
    html = runbook("report", 1, "--format", "html", *config)[1]
    assert "<script" not in html and "\x1b" not in html


def serve(folder: Path, *options: str) -> tuple["subprocess.Popen[str]", str]:
    command = [sys.executable, "-m", "diagnose.cli", "runbook", "serve", "--config", str(folder / "runbooks.toml")]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    ready = re.match(r"ready on (http://\S+)", process.stderr.readline())
    assert ready is not None
    return process, ready[1]


@pytest.mark.slow
def test_of_two_receivers_one_acts_and_the_other_takes_over(tmp_path):
    """The second takes alerts meanwhile: they are in the same journal."""
    write_config(tmp_path, "http://127.0.0.1:1")
    first, _ = serve(tmp_path)
    second, url = serve(tmp_path)
    try:
        assert second.stderr is not None
        assert "another receiver acts on this journal" in second.stderr.readline()
        answer = urllib3.request(
            "POST", f"{url}/alerts", json=PAYLOAD, headers={"Authorization": "Bearer hook"}, timeout=30
        )
        assert answer.json()["opened"] == [1]
        first.kill()
        first.communicate(timeout=30)
        lines = [second.stderr.readline(), second.stderr.readline()]
        assert any("this one acts now" in line for line in lines), lines
    finally:
        for process in (first, second):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    assert second.returncode == 0
    assert [incident.incident_id for incident in Journal(tmp_path / "runbooks.db").incidents(10)] == [1]


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_line(tmp_path):
    write_config(tmp_path, "http://127.0.0.1:1")
    first, url = serve(tmp_path)
    path = tmp_path / "runbooks.toml"
    path.write_text(path.read_text().replace("port = 0", f"port = {url.rpartition(':')[2]}"))
    try:
        command = [sys.executable, "-m", "diagnose.cli", "runbook", "serve", "--config", str(path)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 2
        assert re.fullmatch(
            r"stallscope runbook: cannot listen on 127\.0\.0\.1:\d+: Address already in use\n", second.stderr
        )
    finally:
        first.terminate()
        first.communicate(timeout=60)
