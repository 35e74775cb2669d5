"""How a watch shows that it is alive: a bar on a terminal, one line elsewhere. On stderr, so that output can be piped."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watch_progress(label: str, seconds: float, *, quiet: bool) -> Iterator[Callable[[float], None]]:
    if quiet:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        sys.stderr.write(f"{label} for {seconds:g} s ...\n")
        sys.stderr.flush()
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=seconds)
        yield lambda watched: progress.update(task, completed=watched)
