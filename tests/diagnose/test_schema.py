"""The published schema describes every diagnosis, field by field."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from diagnose.account import PARTS
from diagnose.account_estimate import PARTS as ESTIMATED_PARTS
from diagnose.decision import DecisionKind
from diagnose.report.json_report import SCHEMA, to_json
from diagnose.verdict import Stance, Verdict
from tests.diagnose.situations import SITUATIONS, each_situation

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENT: dict[str, Any] = json.loads((ROOT / "docs/diagnosis.schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(DOCUMENT)


def problems(value: Any) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in VALIDATOR.iter_errors(value)]


def test_the_schema_is_one_of_its_kind():
    Draft202012Validator.check_schema(DOCUMENT)
    assert DOCUMENT["properties"]["schema"]["const"] == SCHEMA


@each_situation
def test_every_diagnosis_is_what_the_schema_says(diagnosis):
    assert problems(json.loads(json.dumps(to_json(diagnosis), allow_nan=False))) == []


def objects(schema: Any) -> list[dict[str, Any]]:
    """Every subschema with properties."""
    if isinstance(schema, list):
        return [found for item in schema for found in objects(item)]
    if not isinstance(schema, dict):
        return []
    inner = [found for item in schema.values() for found in objects(item)]
    return [schema, *inner] if "properties" in schema and "required" in schema else inner


def test_no_field_is_undocumented_or_optional():
    """A field that is not in the schema fails the test above; one without words fails here."""
    assert len(objects(DOCUMENT)) > 15
    for schema in objects(DOCUMENT):
        assert schema["additionalProperties"] is False
        assert set(schema["required"]) == set(schema["properties"])
        assert all(field.get("description") for field in schema["properties"].values()), list(schema["properties"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("extra",), 1),
        (("symptom", "extra"), 1),
        (("windows", "incident", "extra"), 1),
        (("decision", "kind"), "panic"),
        (("schema",), 2),
        (("warnings",), [3]),
    ],
)
def test_what_differs_is_refused(path, value):
    document = to_json(SITUATIONS["interference"]())
    at = document
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    assert problems(document)


def test_the_schema_lists_the_words_of_the_code():
    defs = DOCUMENT["$defs"]
    assert set(defs["account"]["properties"]["parts"]["propertyNames"]["enum"]) == {*PARTS, *ESTIMATED_PARTS}
    assert set(defs["verdict"]["properties"]["verdict"]["enum"]) == {verdict.value for verdict in Verdict}
    stances = defs["verdict"]["properties"]["evidence"]["items"]["properties"]["speaks"]["enum"]
    assert set(stances) == {stance.value for stance in Stance}
    assert set(DOCUMENT["properties"]["decision"]["properties"]["kind"]["enum"]) == {k.value for k in DecisionKind}
