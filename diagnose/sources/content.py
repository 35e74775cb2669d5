"""The bytes behind a name: a file, a gzip file or standard input. The head is read at once, the rest when it is wanted."""

import codecs
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from diagnose.errors import SourceError
from diagnose.observation import Cut

MAX_TEXT_BYTES = 512 << 20
"""Of what must be read as a whole; a log is not."""
MAX_LINE_BYTES = 1 << 20
"""A line beyond this is cut: no engine writes such, and a file without line ends must not fill the memory."""
_HEAD_BYTES = 64 << 10
_Stream = gzip.GzipFile | io.BufferedReader | io.BytesIO | codecs.StreamRecoder
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_CHUNK_BYTES = 1 << 20


class Content:
    """Read once, forwards. Raises SourceError, in one line with the name, for what cannot be read."""

    def __init__(self, name: str, within: Cut | None = None, hint: str = "") -> None:
        self.name = name
        self.within = within
        """Of a log, only lines of this time are wanted."""
        self.on_progress: Callable[[float], None] = lambda _: None
        """Told the share that was read, of what takes long."""
        self.num_bytes = 0
        """As they lie in the file; 0 of standard input, whose length nobody knows."""
        self.modified_unix: float | None = None
        self._raw: io.BufferedReader | io.BytesIO = io.BytesIO()
        try:
            self._stream = self._open()
            self.head = self._read(_HEAD_BYTES)
        except IsADirectoryError as error:
            raise SourceError(
                f"{name}: cannot be read: {error.strerror}; name the files in it: {name.rstrip('/')}/*"
            ) from None
        except OSError as error:
            raise SourceError(f"{name}: cannot be read: {error.strerror or error}{hint}") from None
        except SourceError:
            self.close()
            raise

    def _open(self) -> _Stream:
        if self.name == "-":
            raw = getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())
        else:
            path = Path(self.name)
            raw = path.open("rb")
            self.modified_unix = path.stat().st_mtime
            self.num_bytes = path.stat().st_size
        stream = io.BufferedReader(raw) if not isinstance(raw, io.BufferedReader | io.BytesIO) else raw
        self._raw = stream
        magic = stream.peek(3)[:3] if isinstance(stream, io.BufferedReader) else stream.getvalue()[:3]
        if magic == _UTF8_MARK:
            stream.read(len(_UTF8_MARK))
        if magic[:2] in _UTF16_MARKS:  # what PowerShell makes of a redirected output
            return codecs.EncodedFile(stream, "utf-8", "utf-16", errors="replace")
        return gzip.GzipFile(fileobj=stream) if magic[:2] == b"\x1f\x8b" else stream

    def _read(self, size: int) -> bytes:
        """Until `size` bytes or the end: a pipe gives less than asked for."""
        chunks: list[bytes] = []
        while size > 0:
            try:
                chunk = self._stream.read(size)
            except (EOFError, zlib.error, gzip.BadGzipFile):
                raise SourceError(f"{self.name}: the gzip data is damaged or was cut off") from None
            if not chunk:
                break
            chunks.append(chunk)
            size -= len(chunk)
            if self.num_bytes:
                self.on_progress(min(1.0, self._raw.tell() / self.num_bytes))
        return b"".join(chunks)

    @property
    def head_text(self) -> str:
        return self.head[:_HEAD_BYTES].decode("utf-8", errors="replace")

    def data(self) -> bytes:
        """All of it. Raises SourceError when it is too large to be anything but a log."""
        self.head += self._read(MAX_TEXT_BYTES + 1 - len(self.head))
        if len(self.head) > MAX_TEXT_BYTES:
            raise SourceError(f"{self.name}: larger than {MAX_TEXT_BYTES >> 20} MiB; only a log may be that large")
        return self.head

    def text(self) -> str:
        """All of it, with line ends as text files have them here. Raises SourceError when it is no text."""
        try:
            return self.data().decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError:
            raise SourceError(f"{self.name}: is not text") from None

    def lines(self) -> Iterator[str]:
        """Without line ends; bytes that are no UTF-8 are replaced."""
        rest = self.head
        while True:
            *whole, rest = rest.split(b"\n")
            for line in whole:
                yield line[:MAX_LINE_BYTES].rstrip(b"\r").decode("utf-8", errors="replace")
            rest = rest[:MAX_LINE_BYTES]
            chunk = self._read(_CHUNK_BYTES)
            if not chunk:
                break
            rest += chunk
        if rest:
            yield rest.rstrip(b"\r").decode("utf-8", errors="replace")

    def __enter__(self) -> "Content":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self.name != "-":
            self._stream.close()
            self._raw.close()  # a gzip reader leaves what it reads from open
