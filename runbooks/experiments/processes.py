"""What /proc tells of launched servers: who listens on a port, and whether a process group has ended.

A server that was there before a launch must not answer for it, and a launcher that ends early must not leave its server behind.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_LISTENS = "0A"
"""TCP_LISTEN in /proc/net/tcp."""
_PROC = Path("/proc")


class Process(NamedTuple):
    pid: int
    name: str
    is_zombie: bool
    group: int
    session: int
    started: int
    """Clock ticks since boot."""


def owner_of(port: int, proc: Path = _PROC) -> Process | None:
    """None where nobody listens, or /proc does not say: another system, another user's process."""
    sockets = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listeners(proc / "net" / table, port)}
    if not sockets:
        return None
    for process in _processes(proc):
        with suppress(OSError):  # it ended meanwhile, or is somebody else's
            if any(str(link.readlink()) in sockets for link in (proc / str(process.pid) / "fd").iterdir()):
                return process
    return None


def find(pid: int, proc: Path = _PROC) -> Process | None:
    """None when it is gone or /proc does not say."""
    with suppress(OSError):
        return _read(proc / str(pid))
    return None


def is_running(group: int, proc: Path = _PROC) -> bool:
    """Whether a process of the group has not ended; one that nobody reaps has."""
    return any(process.group == group and not process.is_zombie for process in _processes(proc))


def _processes(proc: Path) -> Iterator[Process]:
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):
            yield _read(folder)


def _listeners(table: Path, port: int) -> list[str]:
    """Inodes of the sockets that listen on it."""
    with suppress(OSError):
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
        return [row[9] for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port]
    return []


def _read(folder: Path) -> Process:
    # The name stands in brackets and may hold anything; fields are counted from after it (proc(5): state is the third).
    head, _, tail = (folder / "stat").read_text().rpartition(")")
    fields = tail.split()
    return Process(
        int(folder.name), head.partition("(")[2], fields[0] == "Z", int(fields[2]), int(fields[3]), int(fields[19])
    )
