"""A real HTTP server for tests: uvicorn on a free port in a thread, over a runner that the test controls."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import urllib3
import uvicorn
from starlette.types import ASGIApp

from engine.outputs import Detokenizer
from engine.server.app import build_app
from engine.server.context import ServerContext
from engine.tokenizer import byte_level_tokenizer
from probes.gpu_monitor import GpuMonitor
from probes.prometheus import EngineCollector
from tests.engine.fakes import VOCAB_SIZE, AnyRunner, Harness, make_thread

ADMIN_TOKEN = "s3cret"


class ByteCodec:
    """One token per byte; a chat is its contents, one after the other."""

    vocab_size = VOCAB_SIZE

    def __init__(self) -> None:
        self._tokenizer = byte_level_tokenizer()

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self.encode("".join(message["content"] for message in messages))

    def detokenizer(self) -> Detokenizer:
        return self._tokenizer.detokenizer()

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokenizer.spelled_out(token_id)


class Client:
    """JSON over HTTP, and events."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.url = f"http://{host}:{port}"
        self._pool = urllib3.PoolManager(retries=False, timeout=20)

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        return self._answer(self._pool.request("GET", self.url + path, headers=headers))

    def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._answer(self._pool.request("POST", self.url + path, body=raw, headers=headers))

    def admin(self, path: str, body: Any = None, token: str = ADMIN_TOKEN) -> tuple[int, Any]:
        return self.post(path, body, Authorization=f"Bearer {token}")

    def events(self, path: str, body: Any) -> list[Any]:
        """All events of a stream; [DONE] as a string."""
        response = self._pool.request("POST", self.url + path, body=json.dumps(body | {"stream": True}).encode())
        assert response.status == 200, response.data
        assert response.headers["content-type"].startswith("text/event-stream")
        blocks = response.data.decode().split("\n\n")
        assert blocks.pop() == ""
        return [block[6:] if block == "data: [DONE]" else json.loads(block.removeprefix("data: ")) for block in blocks]

    def open_raw(self, path: str, body: Any) -> socket.socket:
        """A connection with the request sent and nothing read."""
        raw = json.dumps(body).encode()
        connection = socket.create_connection((self.host, self.port), timeout=10)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
        connection.sendall(head.encode() + raw)
        return connection

    def close(self) -> None:
        self._pool.clear()

    @staticmethod
    def _answer(response: Any) -> tuple[int, Any]:
        is_json = response.headers.get("content-type") == "application/json"
        return response.status, json.loads(response.data) if is_json else response.data.decode()


@contextmanager
def http_server(
    runner: AnyRunner | None = None,
    admin: bool = True,
    gpu: GpuMonitor | None = None,
    wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    **limits: int,
) -> Iterator[tuple[Client, Harness]]:
    values: dict[str, Any] = {"kv_blocks": 256, "block_size": 16, "max_model_len": 2048, "max_batched_tokens": 512}
    harness = Harness(runner, **(values | limits))
    engine = make_thread(harness)
    context = ServerContext(
        engine=engine,
        codec=ByteCodec(),
        recorder=harness.recorder,
        collector=EngineCollector(harness.recorder, harness.lock, engine.snapshot, gpu),
        gpu=gpu,
        model_name="fake",
        model_aliases=frozenset({"fake", "alias"}),
        max_model_len=harness.scheduler.config.max_model_len,
        block_size=harness.scheduler.config.block_size,
        version="1",
        admin_token=ADMIN_TOKEN.encode() if admin else None,
    )
    config = uvicorn.Config(
        wrap(build_app(context)), lifespan="on", log_config=None, access_log=False, timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        deadline = time.monotonic() + 10
        while not server.started:
            assert time.monotonic() < deadline and thread.is_alive()
            time.sleep(0.01)
        client = Client(*listener.getsockname())
        try:
            yield client, harness
        finally:
            client.close()
            server.should_exit = True
            thread.join(15)
            assert not thread.is_alive()


def wait_until(condition: Any, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.005)
