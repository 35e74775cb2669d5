"""`stallscope sources`."""

import click

from diagnose.commands.answers import json_option, to_json
from diagnose.commands.completion import complete_names
from diagnose.dialects.answers import UNMETERED, Level, answer, reads_log
from diagnose.dialects.base import TOPICS, Dialect
from diagnose.dialects.registry import DIALECTS
from diagnose.errors import SourceError
from diagnose.nearest import nearest
from diagnose.sources.readers import READERS


@click.command(
    "sources",
    epilog="""\b
Examples:
  stallscope sources
  stallscope sources vllm
  stallscope sources --json""",
)
@click.argument("engine", required=False, shell_complete=complete_names(lambda: [d.name for d in DIALECTS]))
@json_option
def sources_command(engine: str | None, as_json: bool) -> None:
    """List what each engine can and cannot answer; for ENGINE, from which metrics, and how to turn the missing parts on.

    Exit codes: 0, 2 usage or no such engine.
    """
    known = {dialect.name: dialect for dialect in DIALECTS}
    if engine is not None and engine not in (*known, *UNMETERED):
        raise SourceError(f"no engine {engine!r}{nearest(engine, known)}; there are {', '.join([*known, *UNMETERED])}")
    if as_json:
        asked = (*known, *UNMETERED) if engine is None else (engine,)
        engines = [_fields(known[name]) if name in known else _unmetered_fields(name) for name in asked]
        click.echo(to_json(topics=TOPICS, engines=engines))
    elif engine is None:
        _list_all()
    elif engine in UNMETERED:
        click.echo(f"{engine}: {UNMETERED[engine]}")
    else:
        _describe(known[engine])


def _fields(dialect: Dialect) -> dict[str, object]:
    found = {topic: answer(dialect, topic) for topic in TOPICS}
    return {
        "name": dialect.name,
        "pool_usage_counts": None if dialect.usage is None else dialect.usage.value,
        "paths": [*dialect.state_paths, *dialect.load_paths],
        "reads_log": reads_log(dialect),
        "answers": {
            topic: {"level": it.level.value, "sources": it.sources, "coverage": it.coverage, "how": it.how}
            for topic, it in found.items()
        },
        "note": "",
    }


def _unmetered_fields(name: str) -> dict[str, object]:
    nothing = {"level": Level.NO.value, "sources": (), "coverage": (), "how": ""}
    return {
        "name": name,
        "pool_usage_counts": None,
        "paths": (),
        "reads_log": False,
        "answers": dict.fromkeys(TOPICS, nothing),
        "note": UNMETERED[name],
    }


def _list_all() -> None:
    from diagnose.report.page import Page

    page = Page()
    page.line("What is answered by an engine's own metrics, as they are or by default:", style="bold")
    width = max(len(dialect.name) for dialect in DIALECTS) + 2
    page.raw(f"{'':<{width}}" + "".join(f"{topic:<12}" for topic in TOPICS) + "log")
    for dialect in DIALECTS:
        levels = "".join(f"{answer(dialect, topic).level.value:<12}" for topic in TOPICS)
        page.raw(f"{dialect.name:<{width}}{levels}{'read' if reads_log(dialect) else '-'}")
    for name in UNMETERED:
        page.raw(f"{name:<{width}}" + f"{Level.NO.value:<12}" * len(TOPICS) + "-")
    page.line()
    for topic, meaning in TOPICS.items():
        page.line(f"{topic}: {meaning}", indent=2, hanging=2)
    page.line()
    page.line(
        "part: some of it, or late, or a bound only. `stallscope sources ENGINE` says from which metrics, and how to get more."
    )
    page.line(
        "Evidence that is recognised by content: " + ", ".join(reader.kind for reader in READERS) + ".", hanging=2
    )
    click.echo(str(page))


def _describe(dialect: Dialect) -> None:
    from diagnose.report.page import Page

    page = Page()
    page.line(dialect.name, style="bold")
    if dialect.usage is not None:
        page.line(f"its pool usage counts {dialect.usage.value}", indent=2, hanging=2)
    for path in (*dialect.state_paths, *dialect.load_paths):
        page.line(f"{path} is read beside its metrics, where it is served", indent=2, hanging=2)
    for topic, meaning in TOPICS.items():
        found = answer(dialect, topic)
        page.section(f"{topic}: {found.level.value}")
        page.line(meaning, indent=2, style="dim")
        if found.sources:
            page.line(f"from {', '.join(found.sources)}", indent=2, hanging=2)
        for text in found.coverage:
            page.line(f"note: {text}", indent=2, hanging=2)
        if found.how:
            page.line(f"more: {found.how}", indent=2, hanging=2)
    click.echo(str(page))
