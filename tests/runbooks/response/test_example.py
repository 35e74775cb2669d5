"""The configuration that a newcomer starts from is right as it is printed, and is the one in the docs."""

import shutil
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


def test_the_docs_show_the_example():
    example = (ROOT / "runbooks" / "example.toml").read_text(encoding="utf-8")
    assert f"```toml\n{example}```\n" in (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
