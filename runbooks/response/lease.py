"""Who acts: one process per journal. The lock goes with the process that holds it, whatever ends it."""

import fcntl
import os
from pathlib import Path


class Lease:
    """A lock of the operating system and not a row with a time in it: no clock can take it from a process that still acts."""

    def __init__(self, journal: Path) -> None:
        self._path = journal.with_name(journal.name + ".lock")
        self._file: int | None = None

    def take(self) -> bool:
        """Whether this process holds it now. Raises OSError when the file cannot be made."""
        if self._file is not None:
            return True
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        return True

    def give_back(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
