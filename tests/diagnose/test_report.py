"""The page that people read, and the JSON that programs read: the same object."""

import json
import math
import re
from typing import Any

import pytest
from click.testing import CliRunner

from diagnose.commands.output import deliver
from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.hypotheses.base import Hypothesis
from diagnose.hypotheses.registry import HYPOTHESES
from diagnose.observation import Event
from diagnose.report.json_report import to_json
from diagnose.report.outline import bounds_text, headline
from diagnose.report.page import Page
from diagnose.report.terminal import render
from diagnose.stats import Bounds
from tests.builders import Engine, make_signals
from tests.diagnose import cases
from tests.diagnose.cases import look
from tests.diagnose.situations import SITUATIONS, each_situation

Json = dict[str, Any]


def plain(diagnosis: Diagnosis, width: int = 80, *, verbose: bool = False) -> str:
    return render(diagnosis, Page(width=width, styled=False), verbose=verbose)


@each_situation
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_wider_than_the_terminal(diagnosis, verbose):
    """Except for commands, which stay copyable, and a word that would break if it were wrapped, alone on its line."""
    for line in plain(diagnosis, verbose=verbose).splitlines():
        assert len(line) <= 80 or len(line.split()) <= 2 or line.lstrip().startswith("$ "), line


@each_situation
def test_every_hypothesis_is_printed_once(diagnosis):
    lines = plain(diagnosis).splitlines()
    for hypothesis in HYPOTHESES:
        assert lines.count(f"  {hypothesis.name}") == 1


@each_situation
def test_what_was_not_checked_is_printed(diagnosis):
    """What nothing measured spoke for or against, with what it lacks and how to get it; never among what was checked."""
    page = plain(diagnosis)
    checked, _, section = page.partition("\nNot checked\n")
    nothing = [
        f for f in diagnosis.findings
        if f.verdict == "undetermined" and all(item.stance == "context" for item in f.judgement.evidence)
    ]  # fmt: skip
    for f in nothing:
        assert f"  {f.name}\n" in section
        assert f"  {f.name}\n" not in checked
        assert f.judgement.missing
    assert ("every hypothesis was checked" in section) is (not nothing)


@each_situation
def test_the_headline_is_one_line_and_leads_the_page(diagnosis):
    assert "\n" not in headline(diagnosis)
    assert headline(diagnosis) in " ".join(plain(diagnosis).split())


class Broken(Hypothesis):
    """Raises."""

    name = "kv_exhaustion"

    def judge(self, case, argument):
        raise KeyError("blocks")


def test_a_failed_rule_is_not_checked_and_not_undetermined():
    rules = [Broken(), *(h for h in HYPOTHESES if h.name != "kv_exhaustion")]
    page = plain(diagnose("t", make_signals(), hypotheses=rules))
    assert "kv_exhaustion: the rule failed: KeyError: 'blocks'" in page[page.index("Not checked") :]
    assert page.count("kv_exhaustion") == 1


def test_the_waterfall_adds_up_and_other_is_shown():
    diagnosis = SITUATIONS["interference"]()
    page = plain(diagnosis)
    assert re.search(r"^ +co-scheduled prefill +47 ms +#+ +85 %$", page, re.MULTILINE)
    assert re.search(r"^ +other +0 ms +0 %$", page, re.MULTILINE), "nothing is shown as nothing, and shown"
    account = diagnosis.account_p99
    assert account is not None
    assert sum(account.parts.values()) == pytest.approx(account.total_seconds)


def test_a_share_is_named_for_what_it_is_a_share_of():
    assert headline(SITUATIONS["interference"]()).endswith("% of the excess of the slow gaps")
    assert headline(SITUATIONS["histograms"]()).endswith("% of the time of the steps")


def test_evidence_of_refuted_rules_is_short_unless_asked_for():
    diagnosis = SITUATIONS["interference"]()
    assert len(plain(diagnosis, verbose=True)) > len(plain(diagnosis))
    assert "[/debug/steps, n=" in " ".join(plain(diagnosis, width=110, verbose=True).split())


def test_styles_are_left_out_when_piped_or_unwanted(monkeypatch):
    diagnosis = SITUATIONS["interference"]()
    assert "\x1b[" in render(diagnosis, Page(width=80, styled=True))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in render(diagnosis, Page(width=80))


def test_a_target_cannot_steer_the_readers_terminal():
    """Labels and error bodies come from outside: control characters in them are not passed on."""
    engine = Engine(state={"info": {"version": "1\x1b]0;owned\x07", "model": "m\x1b[2J"}})
    diagnosis = look(cases.quiet(engine=engine), events=(Event(0, "unreachable", "answered \x1b[31m"),))
    assert "\x1b" not in plain(diagnosis)
    assert "\x07" not in plain(diagnosis)


def test_bounds_read_as_the_bucket_they_are():
    assert bounds_text(Bounds(0.041, 0.041)) == "41 ms"
    assert bounds_text(Bounds(0.1, 0.15)) == "(100 ms, 150 ms]"
    assert bounds_text(Bounds(60.0, math.inf)) == "(60.0 s, inf]"


# ---- JSON


@each_situation
def test_json_is_strict_and_has_the_shape_of_schema_1(diagnosis):
    value = json.loads(json.dumps(to_json(diagnosis), allow_nan=False))
    assert list(value) == [
        "schema", "target", "exit_code", "idle", "headline", "windows", "policy", "symptom", "primary", "verdicts", "account",
        "protocol", "decision", "warnings",
    ]  # fmt: skip
    assert value["schema"] == 1
    assert value["target"] == diagnosis.case.target
    assert value["exit_code"] == diagnosis.exit_code
    check_windows(value["windows"])
    assert value["primary"] in (None, *value["verdicts"])
    assert set(value["verdicts"]) == {hypothesis.name for hypothesis in HYPOTHESES}
    for finding in value["verdicts"].values():
        check_verdict(finding)
    check_account(value["account"])
    check_protocol_and_decision(value)
    assert all(isinstance(warning, str) for warning in value["warnings"])


def check_windows(windows: Json) -> None:
    assert list(windows) == ["incident", "baseline"]
    for window in filter(None, windows.values()):
        assert set(window) == {
            "dialect", "sources", "length_seconds", "scrapes", "steps", "steps_lost", "restarted", "latency", "signals",
            "num_replicas", "replicas",
        }  # fmt: skip
        assert set(window["latency"]) == {"inter_token_latency", "time_to_first_token", "queue_time"}
        for latency in filter(None, window["latency"].values()):
            assert set(latency) == {"samples", "p50", "p95", "p99"}
            low, high = latency["p99"]
            assert high is None or low <= high
        assert all(signal["source"] for signal in window["signals"].values())


def check_verdict(finding: Json) -> None:
    assert set(finding) == {"verdict", "share_of_excess", "evidence", "missing", "error"}
    assert finding["verdict"] in ("refuted", "supported", "confirmed", "undetermined", "not_applicable")
    assert finding["share_of_excess"] is None or 0 <= finding["share_of_excess"] <= 1 + 1e-9
    for item in finding["evidence"]:
        assert set(item) == {
            "text",
            "speaks",
            "value",
            "unit",
            "compared_with",
            "source",
            "window",
            "samples",
            "coverage",
        }
        assert item["speaks"] in ("for", "against", "context")
        assert item["window"] == "incident"
    for item in finding["missing"]:
        assert set(item) == {"measurement", "decides", "command"}
        assert all(item.values())


def check_account(account: Json | None) -> None:
    if account is None:
        return
    assert list(account) == ["p50", "p99"]
    for group in account.values():
        assert set(group) == {
            "total_seconds", "parts", "basis", "quantile_seconds", "gaps", "bounds", "total_bounds", "inseparable",
        }  # fmt: skip
        assert group["basis"] in ("measured", "fitted", "estimated")
        assert sum(group["parts"].values()) == pytest.approx(group["total_seconds"])
        assert min(group["parts"].values()) >= -1e-9
        assert group["gaps"] > 0


def check_protocol_and_decision(value: Json) -> None:
    assert [item["name"] for item in value["protocol"]] == [
        "block buckets", "step durations by kind", "host scheduling and lock", "controlled comparison",
    ]  # fmt: skip
    assert all(set(item) == {"name", "done", "found", "command"} for item in value["protocol"])
    decision = value["decision"]
    assert set(decision) == {"kind", "summary", "steps", "trade"}
    assert decision["kind"] in ("none", "measure", "experiment", "contain", "change")
    assert decision["summary"]


def test_a_page_of_nonsense_numbers_is_still_strict_json():
    """NaN and infinities in every series of the last page."""
    good = cases.interference(show_records=False)
    series = good.scrapes[-1].page.samples
    for index, family in enumerate(series.values()):
        for key in family:
            family[key] = (math.nan, math.inf, -math.inf)[index % 3]
    diagnosis = look(good, cases.quiet())
    json.dumps(to_json(diagnosis), allow_nan=False)
    assert all(finding.error is None for finding in diagnosis.findings)
    plain(diagnosis)


@pytest.mark.parametrize(
    ("form", "quiet", "first"),
    [
        ("json", False, "{"),
        ("text", True, "prefill_interference is supported"),
        ("markdown", True, "# `prefill"),
        ("html", True, "<!doctype html>"),
    ],
)
def test_a_report_is_delivered_in_the_form_that_was_asked_for(form, quiet, first):
    with CliRunner().isolation() as (out, *_):
        deliver(SITUATIONS["interference"](), form, quiet=quiet, verbose=False)
    text = out.getvalue().decode()
    assert text.startswith(first.replace("`", ""))
    assert (text.count("\n") == 1) == (form == "text")


def test_a_long_comment_is_wrapped_below_its_command_and_said_once():
    page = Page(width=80, styled=False)
    why = "start the server with an option that it has had for some time, and give its log as well"
    for url in ("http://h:1", "http://h:2"):
        page.command(f"stallscope diagnose {url} --log FILE   # {why}   # at an idle moment", indent=6)
    page.command("curl -s http://h:1   # short", indent=6)
    assert str(page).split("\n") == [
        "      $ stallscope diagnose http://h:1 --log FILE",
        "        # start the server with an option that it has had for some time, and",
        "        # give its log as well; at an idle moment",
        "      $ stallscope diagnose http://h:2 --log FILE",
        "      $ curl -s http://h:1   # short",
    ]
