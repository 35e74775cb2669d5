"""What commands print with `--json` besides a diagnosis, held against the published schema, field by field."""

import json
from dataclasses import replace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from diagnose.cli import stallscope
from diagnose.commands.answers import SCHEMA
from diagnose.dialects.answers import UNMETERED
from diagnose.dialects.registry import DIALECTS
from diagnose.hypotheses.registry import HYPOTHESES
from diagnose.thresholds import thresholds
from runbooks.drills.catalog import DRILLS
from runbooks.drills.run import DrillRun, Outcome
from runbooks.drills.service_levels import Levels
from tests.commands import tree
from tests.diagnose.test_schema import objects, problems
from tests.docs_reference import ANSWERS
from tests.runbooks.response.fake_admin import FakeAdmin
from tests.runbooks.response.scenes import ACT, alert, better, make_scene, slow
from tests.runbooks.test_drill import replayed

DOCUMENT: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))
REPORTS = {"diagnose", "demo", "experiment"}
"""What they print is a diagnosis or a comparison."""


def ask(definition: str, *words: str, code: int = 0) -> Any:
    """The answer of a command, which is as the schema says; stdout holds nothing else."""
    done = CliRunner().invoke(stallscope, [*words, "--json"])
    assert done.exit_code == code, done.output
    answer = json.loads(done.stdout)
    assert not misfits(definition, answer)
    return answer


def misfits(definition: str, answer: Any) -> list[str]:
    found = Draft202012Validator({**DOCUMENT, "$ref": f"#/$defs/{definition}"}).iter_errors(answer)
    return [f"{error.json_path}: {error.message[:200]}" for error in found]


def test_every_answer_with_a_schema_is_one_that_a_command_gives():
    Draft202012Validator.check_schema(DOCUMENT)
    takes_json = {
        "-".join(path)
        for path, command in tree()
        if any(isinstance(one, click.Option) and "--json" in one.opts for one in command.params)
    }
    assert takes_json - REPORTS == set(DOCUMENT["$defs"]) - {"thresholds", "drills"}, "those two are lists of a command"


def test_no_field_is_undocumented_or_optional():
    assert len(objects(DOCUMENT)) > 15
    for schema in objects(DOCUMENT):
        assert schema["additionalProperties"] is False
        assert set(schema["required"]) == set(schema["properties"])
        assert all(field.get("description") for field in schema["properties"].values()), list(schema["properties"])
    for definition in DOCUMENT["$defs"].values():
        assert definition["properties"]["schema"]["const"] == SCHEMA
        assert misfits("explain", {"schema": SCHEMA, "hypotheses": [], "more": 1})


def test_sources_of_all_engines_and_of_one():
    everything = ask("sources", "sources")
    assert [engine["name"] for engine in everything["engines"]] == [*(d.name for d in DIALECTS), *UNMETERED]
    (vllm,) = ask("sources", "sources", "vllm")["engines"]
    assert vllm in everything["engines"]
    assert vllm["answers"].keys() == everything["topics"].keys()
    assert "vllm_num_preemptions" in str(vllm["answers"]["preemptions"]["sources"]).replace(":", "_")
    (bare,) = ask("sources", "sources", "transformers serve")["engines"]
    assert bare["note"] and {one["level"] for one in bare["answers"].values()} == {"no"}


def test_explanations_and_thresholds():
    names = [hypothesis["name"] for hypothesis in ask("explain", "explain")["hypotheses"]]
    assert names == [hypothesis.name for hypothesis in HYPOTHESES]
    (one,) = ask("explain", "explain", "expected_reservation")["hypotheses"]
    assert one["benign"] and one["text"].startswith("Symptom: ")
    rows = {row["name"]: row for row in ask("thresholds", "explain", "--thresholds")["thresholds"]}
    assert rows.keys() == {threshold.name for threshold in thresholds()}
    assert (rows["slow_gap_factor"]["default"], rows["slow_gap_factor"]["low"]) == (2, 1)
    assert all(row["reason"] and "\n" not in row["reason"] for row in rows.values()), "a line each, in tables too"


def test_what_is_missing_of_disaggregation():
    answer = ask("disaggregation", "disaggregation", "--prompt-tokens", "4096", "--output-tokens", "200", code=3)
    assert answer["missing"] == ["placement", "overlap", "cost saved"]
    assert [found["known"] is None for found in answer["inputs"]] == [False, True, True, True]
    assert all(one["measured"] is None and one["measure"] for one in answer["shared"])


def test_the_checks_of_the_doctor():
    answer = ask("doctor", "doctor", "http://127.0.0.1:1", code=1)
    assert answer["broken"] == ["http://127.0.0.1:1"]


def test_the_drills_and_what_one_came_to(monkeypatch: pytest.MonkeyPatch):
    assert [drill["name"] for drill in ask("drills", "drill", "--list")["drills"]] == list(DRILLS)
    outcome = replayed("hard_failure")

    def run(self: DrillRun) -> Outcome:
        self.on_ready("incident", outcome.incident.url, 1)
        return outcome

    monkeypatch.setattr(DrillRun, "run", run)
    answer = ask("drill", "drill", "hard_failure")
    assert (answer["named"], answer["right"], answer["moved"]) == ("hard_failure", outcome.is_right, outcome.moved)
    assert problems(answer["diagnosis"]) == []
    assert answer["clients"]["quiet"]["itl_mean_seconds"] == pytest.approx(0.02)
    outcome = replace(outcome, quiet=replace(outcome.quiet, levels=Levels()))
    quiet = ask("drill", "drill", "hard_failure", code=0 if outcome.moved else 3)["clients"]["quiet"]
    assert (quiet["gaps"], quiet["itl_p95_seconds"], quiet["ttft_p95_seconds"]) == (0, None, None), "unknown, not zero"


def test_a_blind_drill_has_no_json():
    done = CliRunner().invoke(stallscope, ["drill", "--blind", "--json"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--blind asks a person" in done.stderr


def test_incidents_and_pages(tmp_path):
    assert {"kv_exhaustion", "InterTokenLatencySlow"} <= {
        page["name"] for page in ask("runbook-list", "runbook", "list")["pages"]
    }
    with FakeAdmin() as admin:
        here = make_scene(tmp_path, admin.url, [slow(400), better(80)], acts=ACT.replace('"auto"', '"approve"'))
        config = ["--config", str(tmp_path / "runbooks.toml")]
        assert ask("runbook-history", "runbook", "history", *config) == {"schema": 1, "incidents": []}
        here.receive(alert())
        here.carry(1)
        (under_way,) = ask("runbook-history", "runbook", "history", *config)["incidents"]
        assert (under_way["id"], under_way["outcome"], under_way["closed_unix"]) == (1, None, None)
        assert ask("runbook-report", "runbook", "report", "1", *config)["incident"]["answer"] is None
        CliRunner().invoke(stallscope, ["runbook", "approve", "1", *config])
        here.carry_to_end(1)
    whole = ask("runbook-report", "runbook", "report", "1", *config)["incident"]
    assert whole["answer"]["approved"] and "helped" in whole["outcome"]
    assert {"look", "decide", "ask", "act", "verify", "undo"} <= {step["kind"] for step in whole["steps"]}
    page = tmp_path / "incident.json"
    done = CliRunner().invoke(stallscope, ["runbook", "report", "1", *config, "-o", str(page)])
    assert (done.exit_code, done.stdout) == (0, "")
    assert json.loads(page.read_text())["incident"] == whole, "the file's name says the form"
