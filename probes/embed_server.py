"""The two endpoints that stallscope reads, for an engine without a web server of its own. Needs prometheus-client."""

import logging
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from probes.embed import EngineProbes
from probes.extras import not_installed
from probes.gpu_monitor import GpuMonitor

try:
    from probes.prometheus import EngineCollector, negotiated
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        not_installed(f"{error.name}, which the metrics page needs,", "embed"), name=error.name
    ) from None

log = logging.getLogger("stallscope.probes")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that went away before its answer is no traceback in an engine's log."""
        if not isinstance(sys.exception(), OSError):
            log.exception("a request of %s failed", client_address)


class ProbeServer:
    """`/metrics` and `/debug/steps` of `probes`, from a daemon thread until `close`. Port 0: a free one, see `url`."""

    def __init__(
        self, probes: EngineProbes, host: str = "127.0.0.1", port: int = 0, gpu: GpuMonitor | None = None
    ) -> None:
        """`gpu`: started by the caller. Raises OSError, which names the address, when it cannot be listened on."""
        collector = EngineCollector(probes.recorder, probes.lock, probes.snapshot, gpu)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                if url.path == "/metrics":
                    body, kind = negotiated(collector, self.headers.get("Accept", ""))
                    self._answer(HTTPStatus.OK, kind, body)
                elif url.path == "/debug/steps":
                    self._steps(parse_qs(url.query))
                else:
                    self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"here are /metrics and /debug/steps\n")

            def _steps(self, query: dict[str, list[str]]) -> None:
                try:
                    since, limit = (max(0, int(query.get(name, ["0"])[0])) for name in ("since", "limit"))
                except ValueError as error:
                    self._answer(HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n".encode())
                else:
                    self._answer(
                        HTTPStatus.OK, "application/jsonl", "".join(probes.steps(since, limit or None)).encode()
                    )

            def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """A line per scrape is noise in an engine's log."""

        try:
            self._server = _Server((host, port), Handler)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="probe-server", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
