"""A target that answers as a test wants, broken answers included, and a clock that never waits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Event, Thread
from typing import Any

from probes.records import StepRecord
from tests.builders import START_UNIX, Engine

Answer = bytes | str | None
"""Bytes as they go over the wire, the text of a good answer, or None: the connection is closed without a word."""


KEPT_OPEN = b"# kept open\n"
"""End of an answer after which the server does not close the connection."""


def kept_open() -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(KEPT_OPEN), KEPT_OPEN)


def ok(body: str, kind: str = "text/plain; version=0.0.4") -> bytes:
    return raw("200 OK", body, f"Content-Type: {kind}")


def raw(status: str, body: str = "", *headers: str, length: int | None = None) -> bytes:
    data = body.encode()
    size = len(data) if length is None else length
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {size}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


class Server(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int, answer: Callable[[str], Answer]) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.answer = answer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The other side went away: nothing to tell."""


class Handler(StreamRequestHandler):
    """One request, one answer; the connection lives on after an answer that does not close it."""

    def handle(self) -> None:
        while line := self.rfile.readline().decode():
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            assert isinstance(self.server, Server)
            answer = self.server.answer(line.split()[1])
            if answer is None:
                return
            data = answer if isinstance(answer, bytes) else ok(answer)
            self.wfile.write(data)
            if not data.endswith(KEPT_OPEN):
                return


@dataclass(slots=True)
class FakeTarget:
    """Answers `/metrics` and `/debug/steps` by functions that a test may replace at any time. Port 0 is a free one."""

    metrics: Callable[[], Answer]
    steps: Callable[[int], Answer] = lambda since: raw("404 Not Found")
    others: dict[str, str] = field(default_factory=dict)
    """Path -> answer, beside the two."""
    port: int = 0
    asked: list[str] = field(default_factory=list)
    released: Event = field(default_factory=Event)
    """Set when the target stops: what hangs is let go."""
    _server: Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "FakeTarget":
        self._server = Server(self.port, self._answer)
        self.port = self._server.server_address[1]
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def stop(self) -> None:
        """From then on connections are refused."""
        self.released.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def hang(self) -> Answer:
        self.released.wait()
        return None

    def _answer(self, path: str) -> Answer:
        self.asked.append(path)
        if path.startswith("/metrics"):
            return self.metrics()
        if path.startswith("/debug/steps"):
            return self.steps(int(path.partition("since=")[2]))
        return self.others.get(path) or raw("404 Not Found", "no such page")


@contextmanager
def serving(metrics: Callable[[], Answer] | Answer, **fields: Any) -> Iterator[FakeTarget]:
    target = FakeTarget(metrics if callable(metrics) else lambda: metrics, **fields).start()
    try:
        yield target
    finally:
        target.stop()


@dataclass(slots=True)
class FakeEngine:
    """An engine behind a FakeTarget: each scrape finds that it has executed some more steps."""

    records: list[StepRecord]
    per_scrape: int = 20
    engine: Engine = field(default_factory=Engine)
    done: int = 0

    def metrics(self) -> str:
        part = self.records[self.done : self.done + self.per_scrape]
        self.engine.run(part)
        self.done += len(part)
        return self.engine.page()

    def steps(self, since: int) -> str:
        served = [record for record in self.records[: self.done] if record.step_id >= since]
        text = self.engine.steps(served)
        return text if served else text.replace('"next_id":0', f'"next_id":{self.done}')

    @contextmanager
    def serving(self) -> Iterator[FakeTarget]:
        with serving(self.metrics, steps=self.steps) as target:
            yield target


@dataclass(slots=True)
class FakeClock:
    """Time passes only in `sleep` and where a test says so; `at` calls a function once a time is reached."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)
    _alarms: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def unix(self) -> float:
        return START_UNIX + self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        due = [call for time, call in self._alarms if time <= self.now]
        self._alarms = [alarm for alarm in self._alarms if alarm[0] > self.now]
        for call in due:
            call()

    def at(self, seconds: float, call: Callable[[], object]) -> None:
        self._alarms.append((seconds, call))
