"""The commands that documents, pages and helps print, read as a shell would and judged by the command's own parser."""

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches

import click

from diagnose.cli import COMMANDS, stallscope

_OPERATORS = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<", "2>"})
_FENCE = re.compile(r"^ *```")
_BLOCK_LINE = re.compile(r"^ {4,}|^\t")
_INLINE = re.compile(r"`(stallscope [^`]+)`")
_STARTS = re.compile(r"(?:^(?:\$ )?(?:[A-Z_]+=\S+ )*|(?<= \| ))stallscope (?=([a-z-]+)(?:\s|$))")


def commands_in(markdown: str) -> list[list[str]]:
    """Words behind `stallscope`, of each command in a code block or in a code span; comments and what follows a pipe are off."""
    found = [words for line in _code_lines(markdown) if (words := _words(line)) is not None]
    spans = (" ".join(span.split()) for span in _INLINE.findall(_prose(markdown)))
    return [*found, *(words for span in spans if (words := _words(span)) is not None)]


def parse(words: list[str]) -> None:
    """As the command would, up to running it. Raises ClickException."""
    command: click.Command = stallscope
    context = click.Context(command, info_name="stallscope", **stallscope.context_settings)
    words = list(words)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None:
            raise click.UsageError(f"no command {words[0]!r}")
        command, words = found, words[1:]
        if isinstance(command, click.Group):
            context = click.Context(command, parent=context)
    only_named = not words  # `stallscope diagnose` in a sentence is a name, not something to run
    with suppress(click.exceptions.Exit):  # --help and --version end at once
        command.make_context(str(command.name), words, parent=context, resilient_parsing=only_named)


def tree(
    command: click.Command = stallscope, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of ours with the words that name it, the root first with none."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, name
            yield from tree(found, (*path, name))


def _words(line: str) -> list[str] | None:
    """None when the line is no command of ours: output begins with our name too, but not with what resembles a command's."""
    start = _STARTS.search(line)
    if start is None or not (start[1].startswith("-") or get_close_matches(start[1], COMMANDS, cutoff=0.7)):
        return None
    words = shlex.split(line[start.end() :], comments=True)
    end = next((place for place, word in enumerate(words) if word in _OPERATORS), len(words))
    return words[:end]


def _code_lines(markdown: str) -> Iterator[str]:
    """Lines of code blocks, those that a backslash continues put together."""
    pending, fenced = "", False
    for line in markdown.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        elif fenced or _BLOCK_LINE.match(line):
            pending += line.strip()
            if pending.endswith("\\"):
                pending = pending[:-1]
                continue
            yield pending
            pending = ""


def _prose(markdown: str) -> str:
    """Without indented blocks: what stands in them is read as lines."""
    return "\n".join(line for line in markdown.splitlines() if not _BLOCK_LINE.match(line))
