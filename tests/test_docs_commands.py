"""Every command of the README, of docs/ and of CONTRIBUTING is one that we take."""

import re
from pathlib import Path

import click
import pytest

from tests.commands import commands_in, parse

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PLACEHOLDERS = {"PID": "4242", "VALUE": "200ms", "ENGINE": "vllm", "ID": "17"}
"""What a reader puts in where the parser wants no word of its own."""
_PLACEHOLDER = re.compile(rf"\b({'|'.join(PLACEHOLDERS)})\b")
_TARGET = re.compile(r"^ {4}make ([\w -]+?)(?: +#.*)?$", re.MULTILINE)


def filled(words: list[str]) -> list[str]:
    return [_PLACEHOLDER.sub(lambda found: PLACEHOLDERS[found[1]], word) for word in words]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_commands_of_a_document_are_ones_we_take(document):
    for words in commands_in(document.read_text(encoding="utf-8")):
        try:
            parse(filled(words))
        except click.ClickException as error:
            pytest.fail(f"stallscope {' '.join(words)}: {error.format_message()}")


def test_the_readme_has_commands_to_try():
    assert len(commands_in((ROOT / "README.md").read_text(encoding="utf-8"))) > 10


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_make_targets_of_a_document_exist(document):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {target for line in _TARGET.findall(document.read_text(encoding="utf-8")) for target in line.split()}
    assert named <= known, named - known


def test_commands_are_found_where_a_reader_would_copy_them():
    text = """
Prose with `stallscope explain NAME` in it.

    $ stallscope diagnose a.rec \\
        --baseline b.rec   # a comment
    kubectl logs x | stallscope diagnose -
    stallscope diagnose a.rec --json | jq .headline > out
    stallscope diagnos a.rec

    stallscope runbook: an error, printed
    stallscope  0.1.0  a heading, printed
"""
    assert commands_in(text) == [
        ["diagnose", "a.rec", "--baseline", "b.rec"],
        ["diagnose", "-"],
        ["diagnose", "a.rec", "--json"],
        ["diagnos", "a.rec"],
        ["explain", "NAME"],
    ]


def test_a_command_that_is_not_ours_is_refused():
    with pytest.raises(click.UsageError, match="no command 'diagnos'"):
        parse(["diagnos", "a.rec"])
