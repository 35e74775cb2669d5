"""The side port of an engine: our metrics and debug endpoints on loopback, from a thread of the EngineCore process."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from probes.prometheus import EngineCollector, negotiated
from probes.recorder import RingRecorder
from probes.snapshot import EngineSnapshot
from probes.wire import StepsHeader, encode_steps

_IDLE_CONNECTION_SECONDS = 30.0


class Served(NamedTuple):
    """What a side port shows."""

    engine_id: str
    block_size: int
    recorder: RingRecorder
    collector: EngineCollector
    snapshot: Callable[[], EngineSnapshot]
    off_reason: Callable[[], str | None]
    """Why the probe is off: then every endpoint answers 503 with it."""


class SidePort:
    """Listens as soon as it is made; OSError when the port is taken. Port 0 takes a free one."""

    def __init__(self, served: Served, port: int) -> None:
        handler = type("Handler", (_Handler,), {"served": served})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="stallscope-side-port", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _BadQuery(ValueError):
    pass


class _Handler(BaseHTTPRequestHandler):
    served: Served
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_CONNECTION_SECONDS

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        answers: dict[str, Callable[[dict[str, list[str]]], tuple[str, bytes]]] = {
            "/metrics": self._metrics,
            "/debug/steps": self._steps,
            "/debug/census": self._census,
        }
        answer = answers.get(address.path)
        reason = self.served.off_reason()
        if reason is not None:
            self._send(503, "text/plain", f"the probe is off: {reason}\n".encode())
        elif answer is None:
            self._send(404, "text/plain", f"here are {', '.join(answers)}\n".encode())
        else:
            try:
                self._send(200, *answer(parse_qs(address.query)))
            except _BadQuery as error:
                self._send(400, "text/plain", f"{error}\n".encode())

    def _metrics(self, _: dict[str, list[str]]) -> tuple[str, bytes]:
        page, content_type = negotiated(self.served.collector, self.headers.get("Accept", ""))
        return content_type, page

    def _census(self, _: dict[str, list[str]]) -> tuple[str, bytes]:
        census = self.served.snapshot().census
        facts = {"free_includes_reclaimable": False, "block_size": self.served.block_size, "reuse": None}
        return "application/json", json.dumps(census._asdict() | {"total": census.total} | facts).encode()

    def _steps(self, query: dict[str, list[str]]) -> tuple[str, bytes]:
        since, limit = _number(query, "since", 0), _number(query, "limit", 1)
        found = self.served.recorder.steps_since(since or 0, limit)
        header = StepsHeader(self.served.engine_id, found.next_id, found.lost, time.perf_counter_ns(), time.time_ns())
        return "application/jsonl", "".join(encode_steps(header, found.records)).encode()

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        pass  # a line per scrape would drown the server's own log


def _number(query: dict[str, list[str]], name: str, least: int) -> int | None:
    values = query.get(name)
    if values is None:
        return None
    if not values[0].isascii() or not values[0].isdigit() or len(values[0]) > 20 or int(values[0]) < least:
        raise _BadQuery(f"{name}={values[0]!r} should be a number from {least} on")
    return int(values[0])
