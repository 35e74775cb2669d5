"""Answers as JSON, of the commands whose answer is no diagnosis; docs/answers.schema.json describes each."""

import json

import click

SCHEMA = 1
"""Within it fields are added, and none is removed or changes its meaning."""

json_option = click.option("--json", "as_json", is_flag=True, help=f"The answer as JSON (schema {SCHEMA}).")


def to_json(**fields: object) -> str:
    return json.dumps({"schema": SCHEMA, **fields}, indent=2, allow_nan=False)
