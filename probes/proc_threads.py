"""Threads of a local process and its children as Linux counts them: time on a core, time waiting for one, context switches."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class ThreadCounters(NamedTuple):
    """Cumulative since the thread began."""

    pid: int
    tid: int
    name: str
    run_ns: int
    delay_ns: int
    """Ready to run, and waiting for a core."""
    preempted: int
    """Involuntary context switches."""


def process_exists(pid: int) -> bool:
    return (_PROC / str(pid) / "task").is_dir()


def thread_counters(pid: int) -> dict[int, ThreadCounters]:
    """By thread id, of the process and all its descendants; without those that end while they are read."""
    return {thread.tid: thread for member in process_tree(pid) for thread in _threads(member)}


def process_tree(pid: int) -> list[int]:
    """The process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (parent := _parent(entry)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


def _parent(entry: Path) -> int | None:
    try:
        # pid (command) state ppid: a command may hold parentheses and spaces.
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _threads(pid: int) -> Iterator[ThreadCounters]:
    try:
        tasks = list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return
    for task in tasks:
        try:
            run_ns, delay_ns, _ = map(int, (task / "schedstat").read_text().split())
            status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines() if ":" in line)
        except (OSError, ValueError):
            continue
        preempted = int(status.get("nonvoluntary_ctxt_switches", "0"))
        yield ThreadCounters(pid, int(task.name), status.get("Name", "").strip(), run_ns, delay_ns, preempted)
