"""Reference pages of `tests.docs`: the help tree, the signals, and the JSON schema as tables."""

import json
import re
from copy import copy
from pathlib import Path
from typing import Any

import click

from diagnose.cli import stallscope
from diagnose.dialects.base import Alias
from diagnose.dialects.registry import DIALECTS
from diagnose.signals import COUNTERS, GAUGES, HISTOGRAMS
from tests.commands import tree

_DOCS = Path(__file__).resolve().parent.parent / "docs"
SCHEMA = _DOCS / "diagnosis.schema.json"
ANSWERS = _DOCS / "answers.schema.json"
_WIDTH = 100
_EXIT_CODES = re.compile(r"Exit codes: (.+?\.)(?: |$)")
_SECTIONS = {
    "Counters": ("over the window", COUNTERS, "counters"),
    "Gauges": ("a value per scrape", GAUGES, "gauges"),
    "Histograms": ("what the buckets gained in the window, in seconds", HISTOGRAMS, "histograms"),
}


def commands_page(made: str) -> str:
    lines = [
        "# Commands",
        "",
        made,
        "",
        "What `--help` prints of each command, and what its exit code tells a script. `stallscope completion bash` (zsh, fish) "
        "prints a script that completes commands, options, names and files.",
        "",
        "| command | exit codes |",
        "|---|---|",
    ]
    found = [(" ".join(("stallscope", *path)), command) for path, command in tree()]
    for title, command in found:
        codes = _EXIT_CODES.search(" ".join((command.help or "").split()))
        if codes is not None:
            lines.append(f"| `{title}` | {codes[1].removesuffix('.')} |")
    lines += ["", "128 + N: ended by signal N; 141: the reader of a pipe went away."]
    for title, command in found:
        lines += ["", f"## {title}", "", "```text", _help(title, command), "```"]
    return "\n".join(lines) + "\n"


def _help(title: str, command: click.Command) -> str:
    """As on a terminal of one width."""
    above, _, name = title.rpartition(" ")
    settings = {**stallscope.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    parent = click.Context(click.Group(above), info_name=above, **settings) if above else None
    context = click.Context(command, parent, info_name=name, **{**settings, **command.context_settings})
    fresh = copy(command)
    fresh._help_option = None  # click keeps that of the context in which it was first asked for
    return "\n".join(line.rstrip() for line in fresh.get_help(context).splitlines())


def signals_page(made: str) -> str:
    lines = [
        "# Signals",
        "",
        made,
        "",
        "What rules read, whatever engine and source it came from. A signal that nothing states is absent, never zero. Listed "
        "are the engines whose own metrics state each; logs, traces, step records and tools on the host state others "
        "([sources](sources.md)).",
    ]
    for title, (meaning, names, table) in _SECTIONS.items():
        lines += [
            "",
            f"## {title}",
            "",
            f"{meaning.capitalize()}.",
            "",
            "| signal | stated by | as, on our engine |",
            "|---|---|---|",
        ]
        for name in names:
            tables: dict[str, dict[str, tuple[Alias, ...]]] = {d.name: getattr(d, table) for d in DIALECTS}
            engines = ", ".join(
                d.name for d in DIALECTS if name in tables[d.name] or (name == "failures" and d.failures)
            )
            own = ", ".join(f"`{alias.name_on(alias.metric)}`" for alias in tables["stallscope"].get(name, ()))
            lines.append(f"| `{name}` | {engines} | {own} |")
    return "\n".join(lines) + "\n"


def json_page(made: str) -> str:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    lines = [
        "# A diagnosis as JSON",
        "",
        made,
        "",
        f"{schema['description']} The schema itself: [diagnosis.schema.json](diagnosis.schema.json).",
        "",
        "    stallscope diagnose incident.rec --json",
        *_table(schema),
    ]
    return "\n".join([*lines, *_definitions(schema)]) + "\n"


def answers_page(made: str) -> str:
    schema = json.loads(ANSWERS.read_text(encoding="utf-8"))
    lines = [
        "# Other answers as JSON",
        "",
        made,
        "",
        f"{schema['description']} Of a diagnosis, see [there](json.md). The schema itself: "
        "[answers.schema.json](answers.schema.json).",
    ]
    return "\n".join([*lines, *_definitions(schema)]) + "\n"


def _definitions(schema: dict[str, Any]) -> list[str]:
    return [
        line
        for name, definition in schema["$defs"].items()
        for line in ("", f"## {name}", "", definition.get("description", ""), *_table(definition))
    ]


def _table(definition: dict[str, Any]) -> list[str]:
    rows = list(_rows("", definition))
    return ["", "| field | type | meaning |", "|---|---|---|", *rows] if rows else []


def _rows(prefix: str, definition: dict[str, Any]) -> list[str]:
    rows = []
    for name, field in definition.get("properties", {}).items():
        path = f"{prefix}{name}"
        rows.append(_row(path, field))
        rows += _inner(path, field)
    more = definition.get("additionalProperties")
    if isinstance(more, dict):
        rows.append(_row(f"{prefix}NAME", more))
        rows += _inner(f"{prefix}NAME", more)
    return rows


def _inner(path: str, field: dict[str, Any]) -> list[str]:
    if field.get("type") == "array":
        return _rows(f"{path}[].", field["items"])
    rows = [row for form in field.get("anyOf", ()) for row in _rows(f"{path}.", form)]
    return [*rows, *_rows(f"{path}.", field)]


def _row(path: str, field: dict[str, Any]) -> str:
    text = field.get("description", "").replace("|", "\\|")
    return f"| `{path}` | {_type(field)} | {text} |"


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    if "anyOf" in field:
        return " or ".join(_type(form) for form in field["anyOf"])
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    kind = field.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
