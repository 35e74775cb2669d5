"""`stallscope completion`, and what is completed in arguments that name something of ours."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_STALLSCOPE_COMPLETE"
"""Where click looks for a shell's question; made of the command's name."""

Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem] | list[str]"]


def complete_names(names: Callable[[], Iterable[str]]) -> Completer:
    """Of a closed set that is cheap to ask for."""
    return lambda context, parameter, begin: [name for name in names() if name.startswith(begin)]


def complete_files(_: click.Context, __: click.Parameter, begin: str) -> "list[CompletionItem]":
    """Files, where an argument may be a URL as well."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begin, type="file")]


@click.command(
    "completion",
    epilog="""\b
Examples:
  stallscope completion bash
  stallscope completion zsh
  stallscope completion fish""",
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Print what makes SHELL complete commands, options, names and files of stallscope. Bash needs to be 4.4 or newer.

    \b
    eval "$(stallscope completion bash)"                                      # in ~/.bashrc
    eval "$(stallscope completion zsh)"                                       # in ~/.zshrc
    stallscope completion fish > ~/.config/fish/completions/stallscope.fish

    Exit codes: 0, 2 usage.
    """
    from click.shell_completion import get_completion_class

    from diagnose.cli import stallscope

    found = get_completion_class(shell)
    assert found is not None, shell
    click.echo(found(stallscope, {}, "stallscope", _VARIABLE).source())
