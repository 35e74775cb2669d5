"""A recording served as if it were its target: `/metrics` and `/debug/steps` as they were at the replayed moment."""

from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from probes.recording import Entry
from probes.records import StepRecord
from probes.wire import StepsHeader, WireError, decode_steps, encode_steps

MAX_STEPS = 65_536
"""Held for `/debug/steps`; older ones are told as lost, as by a live engine's ring."""


class ReplayedTarget:
    """What the target would answer now. `take` comes from the replaying thread, the answers go to others."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._page: str | None = None
        self._trouble: Entry | None = None
        self._header: StepsHeader | None = None
        self._steps: deque[StepRecord] = deque(maxlen=MAX_STEPS)

    def take(self, entry: Entry) -> None:
        with self._lock:
            if entry.kind == "exposition":
                self._page, self._trouble = entry.body, None
            elif entry.kind == "event" and entry.event != "no_step_records":
                self._trouble = entry
            elif entry.kind == "steps":
                self._take_steps(entry.body)

    def _take_steps(self, body: str) -> None:
        try:
            header, records = decode_steps(body)
        except WireError:
            return  # of another version: what it measured cannot be served
        if self._header is not None and self._header.engine_id != header.engine_id:
            self._steps.clear()
        newest = self._steps[-1].step_id if self._steps else -1
        self._steps.extend(record for record in records if record.step_id > newest)
        self._header = header

    def metrics(self) -> tuple[int, str] | None:
        """Status and body; None where it did not answer at all."""
        with self._lock:
            trouble = self._trouble
            if trouble is None and self._page is not None:
                return 200, self._page
            if trouble is not None and trouble.event == "error_answer":
                return 503, trouble.body
            if trouble is not None and trouble.event == "bad_answer":
                return 200, f"?{trouble.body}"
            return None

    def steps(self, since: int) -> str | None:
        """None when the recording holds no step records until now."""
        with self._lock:
            header, held = self._header, list(self._steps)
        if header is None:
            return None
        records = [record for record in held if record.step_id >= since]
        oldest = held[0].step_id if held else header.next_id
        lost = max(0, oldest - since) if since else 0
        next_id = held[-1].step_id + 1 if held else header.next_id
        answer = StepsHeader(header.engine_id, max(next_id, 0), lost, header.monotonic_ns, header.unix_ns)
        return "".join(encode_steps(answer, records))


class ReplayServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, target: ReplayedTarget) -> None:
        """Raises OSError when the port is taken."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.target = target

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: ReplayServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/metrics":
            found = self.server.target.metrics()
            if found is None:
                self.close_connection = True  # as the target was then: no answer
                return
            self._answer(*found, "text/plain; version=0.0.4; charset=utf-8")
            return
        steps = self.server.target.steps(_since(parts.query)) if parts.path == "/debug/steps" else None
        if steps is None:
            self._answer(404, "the recording holds nothing of this\n", "text/plain")
        else:
            self._answer(200, steps, "application/jsonl")

    def _answer(self, status: int, body: str, kind: str) -> None:
        data = body.encode("utf-8", errors="replace")
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing: the command says what it does."""


def _since(query: str) -> int:
    text = parse_qs(query).get("since", ["0"])[0]
    return int(text) if text.isdecimal() else 0
