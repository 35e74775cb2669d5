"""What the tutorial shows is what its commands print."""

import re

import pytest

from tests.commands import commands_in
from tests.test_docs_site import ROOT

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
ON_RECORDINGS = [words for words in commands_in(TUTORIAL) if words[0] == "diagnose" and "tests/data/quiet.rec" in words]
SECOND_STEP = TUTORIAL.partition("## 2.")[2].partition("## 3.")[0]


@pytest.mark.parametrize("words", ON_RECORDINGS, ids=" ".join)
def test_its_commands_run_from_the_checkout(words, stallscope, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    code, out, _ = stallscope(*(str(tmp_path / word) if word.endswith(".html") else word for word in words))
    assert code == 1
    assert out or (tmp_path / "incident.html").exists()


def test_the_report_that_it_quotes_is_the_one_printed(stallscope, monkeypatch):
    monkeypatch.chdir(ROOT)
    _, out, _ = stallscope(*ON_RECORDINGS[0])
    printed = {" ".join(line.split()) for line in out.splitlines()}
    quoted = [" ".join(line.split()) for line in re.findall(r"^ {4}(?!stallscope)(.+)$", SECOND_STEP, re.MULTILINE)]
    assert len(quoted) > 7
    assert [line for line in quoted if line not in printed] == []
