"""Stacks as py-spy writes them folded: one line per distinct stack, with how often it was seen.

process 12:"python server.py";thread (14): MainThread;<module> (server.py:9);serve (server.py:4) 196
"""

import re
from typing import NamedTuple

_LINE = re.compile(r"(?:process (\d+):.*?;)?thread \((\w+)\)(?:: ([^;]*))?;?(.*) (\d+)")


class FoldedStack(NamedTuple):
    pid: int | None
    """None where only one process was looked at."""
    tid: int
    thread: str
    frames: tuple[str, ...]
    """Outermost first."""
    samples: int


def parse_folded(text: str) -> list[FoldedStack]:
    """Lines of another shape are left out: a stack without a thread belongs to nobody."""
    stacks: list[FoldedStack] = []
    for line in text.splitlines():
        found = _LINE.fullmatch(line.rstrip())
        if found is None:
            continue
        pid, tid, thread, frames, samples = found.groups()
        stacks.append(
            FoldedStack(
                None if pid is None else int(pid),
                int(tid, 0),
                thread or "",
                tuple(filter(None, frames.split(";"))),
                int(samples),
            )
        )
    return stacks
