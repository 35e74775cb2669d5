"""How a watch shows that it is alive: a bar on a terminal, one line elsewhere. On stderr, so that output can be piped."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def watch_progress(label: str, seconds: float, *, quiet: bool) -> Iterator[Callable[[float], None]]:
    """Gives a function to be called with the seconds watched so far."""
    if quiet:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        click.echo(f"{label} for {seconds:g} s ...", err=True)
        yield lambda _: None
        return
    with click.progressbar(length=1000, label=label, file=sys.stderr, width=24, show_percent=False) as bar:
        yield lambda watched: bar.update(round(1000 * watched / seconds) - bar.pos)


@contextmanager
def reading_progress(label: str, *, quiet: bool) -> Iterator[Callable[[float], None]]:
    """The same for a large file: gives a function to be called with the share that was read. Nothing off a terminal, since a
    file is short beside a watch."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=1000, label=label, file=sys.stderr, width=24) as bar:
        yield lambda share: bar.update(round(1000 * share) - bar.pos)


def announce(label: str, *, quiet: bool = False) -> None:
    """For what takes seconds and has no measure: one line on a terminal, nothing elsewhere."""
    if not quiet and sys.stderr.isatty():
        click.echo(f"{label} ...", err=True)
