"""A growing log file, read as it grows: whole lines only, each of them once, across rotation and truncation."""

import os
from pathlib import Path
from typing import BinaryIO

from diagnose.errors import SourceError

MAX_READ_BYTES = 4 << 20
"""Taken in at once; the rest comes with the next reads. A line that is longer is passed on in pieces."""


class LogFollower:
    """Begins at the file's end: what was there before belongs to no recording. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises SourceError when there is no such file that can be read."""
        self.path = path
        self._file: BinaryIO | None = None
        self._unfinished = b""
        try:
            self._file = path.open("rb")
            self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from None

    def read(self) -> str:
        """Lines that have been finished since the last read; "" when there are none.

        A file that was replaced (rotated) is read to its end and then from the new one's start; a truncated one from its
        start. One that is gone or cannot be read for the moment is waited for.
        """
        lines = self._lines()
        if self._was_replaced():
            lines += self._unfinished + b"\n" if self._unfinished else b""
            self._unfinished = b""
            if self._reopen():
                lines += self._lines()
        return lines.decode("utf-8", errors="replace")

    def rest(self) -> str:
        """At the end: what is finished, and the last line whether it is or not."""
        lines = self.read() + self._unfinished.decode("utf-8", errors="replace")
        self._unfinished = b""
        return lines

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _lines(self) -> bytes:
        if self._file is None:
            return b""
        try:
            if os.fstat(self._file.fileno()).st_size < self._file.tell():
                self._file.seek(0)
                self._unfinished = b""
            data = self._unfinished + self._file.read(MAX_READ_BYTES)
        except OSError:
            return b""  # its disk fails; what is there comes when it can be read again
        end = data.rfind(b"\n") + 1
        if not end and len(data) >= MAX_READ_BYTES:
            end = len(data)
        self._unfinished = data[end:]
        return data[:end]

    def _was_replaced(self) -> bool:
        try:
            now = self.path.stat()
            if self._file is None:
                return True
            known = os.fstat(self._file.fileno())
        except OSError:
            return False
        at_end = self._file.tell() >= known.st_size
        return at_end and (now.st_ino, now.st_dev) != (known.st_ino, known.st_dev)

    def _reopen(self) -> bool:
        self.close()
        try:
            self._file = self.path.open("rb")
        except OSError:
            return False
        return True
