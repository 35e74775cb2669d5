"""The configuration that a newcomer starts from is right as it is printed, and is the one in the docs."""

import re
import shutil
import subprocess
import sys

import pytest

from diagnose.cli import main
from tests.test_docs_site import ROOT


def test_the_example_is_right_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "webhook-token").write_text("hush\n")
    (tmp_path / "admin-token").write_text("hush\n")
    shutil.copy(ROOT / "tests/data/quiet.rec", tmp_path / "good.rec")

    def run(*words: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["stallscope", "runbook", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code, capsys.readouterr().out

    code, text = run("example")
    assert code == 0
    (tmp_path / "runbooks.toml").write_text(text)
    code, out = run("check")
    assert code == 0
    assert "targets 1, runbooks 1: right" in out
    assert "lower_budget for prefill_interference: never" in out


@pytest.mark.parametrize("content", ["", "INFO an engine's first line\n"])
def test_a_baseline_that_no_look_could_read_is_found_before_the_night(tmp_path, monkeypatch, capsys, content):
    monkeypatch.chdir(tmp_path)
    for name in ("webhook-token", "admin-token"):
        (tmp_path / name).write_text("hush\n")
    (tmp_path / "good.rec").write_text(content)
    shutil.copy(ROOT / "runbooks" / "example.toml", tmp_path / "runbooks.toml")
    for command in ("check", "serve"):
        monkeypatch.setattr(sys, "argv", ["stallscope", "runbook", command])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        assert "target chat: baseline" in capsys.readouterr().err


def test_the_docs_show_the_example():
    example = (ROOT / "runbooks" / "example.toml").read_text(encoding="utf-8")
    assert f"```toml\n{example}```\n" in (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("amtool") is None or shutil.which("promtool") is None, reason="no Prometheus tools")
def test_the_configurations_of_alertmanager_and_prometheus_in_the_docs_are_ones_they_take(tmp_path):
    page = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    manager, prometheus = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "alertmanager.yml").write_text(manager)
    (tmp_path / "prometheus.yml").write_text(prometheus)
    shutil.copy(ROOT / "runbooks/alerts/vllm.rules.yml", tmp_path)
    for words in (["amtool", "check-config", "alertmanager.yml"], ["promtool", "check", "config", "prometheus.yml"]):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
