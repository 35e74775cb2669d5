"""A server that only streams: as cheap as may be, so that a load client is what a benchmark measures.

`python -m tests.benchmarks.stream_server GAP_SECONDS` prints its URL and serves until its stdin ends. Every completion gets its
`max_tokens` chunks, one per gap, whatever the others do.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from itertools import cycle
from typing import cast

from tests.benchmarks.open_files import allow_many_files

_PHASES = 64
"""Streams are spread over so many moments of a gap."""
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def _event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


_TOKEN = _chunk(
    _event(
        {
            "id": "cmpl-0123456789abcdef",
            "object": "text_completion",
            "created": 1_800_000_000,
            "model": "none",
            "choices": [{"index": 0, "text": " word", "logprobs": None, "finish_reason": None}],
        }
    )
)
_MODELS = json.dumps({"object": "list", "data": [{"id": "none"}]}).encode()
_MODELS_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_MODELS), _MODELS)


class Connection(asyncio.Protocol):
    """One request after the other, each read whole before it is answered."""

    def __init__(self, phases: list[set["Connection"]], turns: Iterator[int]) -> None:
        self._phases, self._turns = phases, turns
        self._buffer = b""
        self._phase: set[Connection] | None = None
        self.left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        self._leave()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, ended, body = self._buffer.partition(b"\r\n\r\n")
        if not ended:
            return
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields.get(b"content-length", 0))
        if len(body) < length:
            return
        self._buffer = body[length:]
        if head.startswith(b"GET"):
            self.transport.write(_MODELS_ANSWER)
            return
        self.left = int(json.loads(body[:length])["max_tokens"])
        self.total = self.left
        self.transport.write(_HEAD)
        self._phase = self._phases[next(self._turns)]
        self._phase.add(self)

    def tick(self) -> None:
        self.left -= 1
        if self.left > 0:
            self.transport.write(_TOKEN)
            return
        usage = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": self.total}}
        self.transport.write(b"".join((_TOKEN, _chunk(_event(usage)), _chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n")))
        self._leave()

    def _leave(self) -> None:
        if self._phase is not None:
            self._phase.discard(self)
            self._phase = None


async def serve(gap: float) -> None:
    loop = asyncio.get_running_loop()
    phases: list[set[Connection]] = [set() for _ in range(_PHASES)]
    turns = cycle(range(_PHASES))
    server = await loop.create_server(lambda: Connection(phases, turns), "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    gone = loop.run_in_executor(None, sys.stdin.read)
    due = loop.time()
    while not gone.done():
        for phase in phases:
            due += gap / _PHASES
            await asyncio.sleep(max(0.0, due - loop.time()))
            for connection in list(phase):
                connection.tick()
    server.close()


if __name__ == "__main__":
    allow_many_files()
    asyncio.run(serve(float(sys.argv[1])))
