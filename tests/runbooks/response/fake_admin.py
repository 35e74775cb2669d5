"""The admin surface of an engine that is not there: a state, and a count of what was asked of it."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class FakeAdmin(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, **state: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.state = {"status": "ok", "max_batched_tokens": 512, "max_sequences": 64, **state}
        self.posts: list[tuple[str, dict[str, Any]]] = []
        self.lies = False
        """Says yes and changes nothing."""

    def __enter__(self) -> "FakeAdmin":
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take(self, path: str, body: dict[str, Any]) -> None:
        self.posts.append((path, body))
        if self.lies:
            return
        if path == "/admin/limits":
            self.state |= body
        elif path == "/admin/drain":
            self.state["status"] = "drained"
        elif path == "/admin/resume":
            self.state["status"] = "ok"


class _Handler(BaseHTTPRequestHandler):
    server: FakeAdmin

    def do_GET(self) -> None:
        self._state()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.take(self.path, body)
        self._state()

    def _state(self) -> None:
        assert self.headers["authorization"] == "Bearer secret"
        data = json.dumps(self.server.state).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""
