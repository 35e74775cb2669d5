"""Every hypothesis and every alert has a page, and its commands are ones that our command takes."""

import click
import pytest

from diagnose.hypotheses.registry import HYPOTHESES
from runbooks.alerts.rules import alert_names
from runbooks.errors import Refused
from runbooks.pages import HEADINGS, MAX_LINES, page_names, read_page
from tests.commands import parse

NO_ALERT = "DeviceMemoryHigh"


def test_pages_are_those_of_hypotheses_and_alerts():
    wanted = {hypothesis.name for hypothesis in HYPOTHESES} | set(alert_names()) | {NO_ALERT}
    assert set(page_names()) == wanted


@pytest.mark.parametrize("name", page_names())
def test_a_page_is_short_and_has_the_four_headings(name):
    lines = read_page(name).text.splitlines()
    assert len(lines) < MAX_LINES
    assert lines[0] == f"# {name}"
    assert [line.removeprefix("## ") for line in lines if line.startswith("## ")] == list(HEADINGS)


@pytest.mark.parametrize("name", page_names())
def test_the_commands_of_a_page_are_ones_we_take(name):
    commands = read_page(name).commands()
    assert commands, "a page without a command helps nobody at night"
    for words in commands:
        parse(words)
        if words[:2] == ["runbook", "show"]:
            assert words[2] in page_names()
        if words[0] == "explain":
            assert words[1] in [hypothesis.name for hypothesis in HYPOTHESES]


def test_a_wrong_command_would_be_found():
    with pytest.raises(click.ClickException):
        parse(["diagnose", "http://h:1", "--no-such-option"])


def test_a_page_that_is_not_there_names_the_nearest():
    with pytest.raises(Refused, match=r"did you mean kv_exhaustion\?"):
        read_page("kv_exhaust")
