"""One target's HTTP endpoints, with every failure mapped to one sentence for the reader."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    DecodeError,
    HTTPError,
    LocationParseError,
    MaxRetryError,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
    ResponseError,
    SSLError,
)

from diagnose.errors import ErrorAnswer, SourceError, TargetError
from diagnose.sources.hints import meant_url
from diagnose.units import printable

MAX_BODY_BYTES = 64 * 1024 * 1024
_CHUNK = 256 * 1024


@dataclass(frozen=True, slots=True)
class Access:
    """How a server is proved, and how the reader proves itself."""

    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: Path | None = None
    """Certificates of the authorities that vouch for the server; None: the system's."""


NO_ACCESS = Access()


class Endpoint:
    """Keeps one connection to `http://host:port[/prefix]`. Not thread-safe."""

    def __init__(self, url: str, timeout_seconds: float = 5.0, access: Access = NO_ACCESS) -> None:
        """Raises SourceError when `url` is not an http(s) URL."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise SourceError(f"{url!r} is not a URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SourceError(f"{url!r} is not a target: write {meant_url(url) or 'http://HOST:PORT'}")
        del port
        path = parts.path.rstrip("/")
        # People paste the scrape URL; what they mean is the server.
        self.url = f"{parts.scheme}://{parts.netloc}{path.removesuffix('/metrics')}"
        self._timeout = timeout_seconds
        self._pool = urllib3.PoolManager(
            num_pools=1,
            maxsize=1,
            retries=urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=3),
            timeout=urllib3.Timeout(connect=timeout_seconds, read=timeout_seconds),
            ca_certs=None if access.ca_file is None else str(access.ca_file),
        )
        self._headers = {"Accept": "text/plain;version=0.0.4, */*;q=0.1", **access.headers}

    def get(self, path: str) -> str:
        """Body of a 200 answer. Raises TargetError for everything else, half an answer included."""
        status, body = self._exchange("GET", path, None)
        if status != HTTPStatus.OK:
            raise ErrorAnswer(f"{self.url}{path}: answered HTTP {status}{_excerpt(body)}")
        return body

    def ask(self, path: str, fields: Mapping[str, str], *, post: bool) -> tuple[int, str]:
        """Status and body of whatever it answers to a form. Raises TargetError when there is no whole answer."""
        return self._exchange("POST" if post else "GET", path, fields)

    def _exchange(self, method: str, path: str, fields: Mapping[str, str] | None) -> tuple[int, str]:
        url = self.url + path
        deadline = time.monotonic() + self._timeout
        try:
            response = self._request(method, url, fields)
            try:
                body = self._read(response, url, deadline)
            except BaseException:
                response.close()  # half read: the connection cannot be used again
                raise
            response.release_conn()
        except (HTTPError, LocationParseError) as error:
            raise TargetError(f"{url}: {self._explain(error)}") from None
        return response.status, body

    def _request(self, method: str, url: str, fields: Mapping[str, str] | None) -> urllib3.BaseHTTPResponse:
        headers = self._headers
        body = None if fields is None else urlencode(fields)
        if body is not None and method == "GET":
            url, body = f"{url}?{body}", None
        elif body is not None:
            headers = {**headers, "Content-Type": "application/x-www-form-urlencoded"}

        def once() -> urllib3.BaseHTTPResponse:
            return self._pool.request(method, url, body=body, headers=headers, preload_content=False)

        try:
            return once()
        except MaxRetryError as error:
            if not isinstance(error.reason, ProtocolError):
                raise
            # The server had closed the idle connection that was kept from the last scrape: that is no failure of it.
            return once()

    def _read(self, response: urllib3.BaseHTTPResponse, url: str, deadline: float) -> str:
        chunks: list[bytes] = []
        size = 0
        while chunk := response.read1(_CHUNK, decode_content=True):
            size += len(chunk)
            # A read timeout alone would let a server that sends a byte a second hold the watch for ever.
            if time.monotonic() > deadline:
                raise TargetError(f"{url}: the answer was not complete within {self._timeout:g} s")
            if size > MAX_BODY_BYTES:
                raise TargetError(f"{url}: the answer is larger than {MAX_BODY_BYTES >> 20} MiB: not a metrics page")
            chunks.append(chunk)
        return b"".join(chunks).decode("utf-8", errors="replace")

    def _explain(self, error: Exception) -> str:
        cause = error
        while isinstance(cause, MaxRetryError) and cause.reason is not None:
            cause = cause.reason
        if isinstance(cause, NameResolutionError):
            return "the host name does not resolve"
        if isinstance(cause, NewConnectionError):  # before its base class, ConnectTimeoutError
            return (
                "connection refused: nothing listens there" if "refused" in str(cause) else f"cannot connect ({cause})"
            )
        if isinstance(cause, ConnectTimeoutError | ReadTimeoutError):
            return f"no answer within {self._timeout:g} s"
        if isinstance(cause, SSLError):
            return f"TLS failed ({cause})"
        if isinstance(cause, ResponseError) and "redirects" in str(cause):
            return "it redirects in circles, or more than 3 times"
        if isinstance(cause, ProtocolError | DecodeError):
            return "the connection broke in the middle of the answer"
        return f"{type(cause).__name__}: {cause}"


def _excerpt(body: str) -> str:
    line = printable(" ".join(body.split())[:80])
    return f" ({line})" if line else ""
