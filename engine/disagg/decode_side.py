"""The decode instance: asks a prefill instance for the KV of prompts and gathers it in host memory, a thread per transfer.

    submit -> fetch -> [queue] -> worker: connect, Ask, chunks .. -> EngineThread.arrive: first token; all KV, or why not

Whatever goes wrong on the way, the engine hears of it once and computes the prompt itself. A prefill instance that cannot
be reached is left alone for a while, so that not every request pays for finding out.
"""

import http.client
import json
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from engine.disagg.channel import Channel, ChunkReceiver
from engine.disagg.prefill_side import check_identity
from engine.disagg.wire import Ask, Chunk, Connection, Done, Refused, Token, TransferFailed, Welcome
from engine.errors import ConfigError
from engine.prefix_cache import CacheScope
from engine.request import ReceivedKv, Request
from engine.transfers import TransferEvent
from probes.recorder import TransferTrace

log = logging.getLogger("stallscope.disagg")

INFO_PATH = "/disaggregation"
MAX_TRANSFERS = 16
"""At the same time; further prompts wait for one of them to end."""
COOL_OFF_SECONDS = 2.0
"""How long a prefill instance is left alone that is not there, does not answer in time, or is not the one it should be."""
_CONNECT_SECONDS = 2.0
_DOWN = ("unreachable", "timeout", "mismatch", "protocol")


class PeerAddress(msgspec.Struct, frozen=True):
    """The answer of INFO_PATH."""

    port: int
    scope: CacheScope
    block_bytes: int
    channels: list[str]


@dataclass(slots=True, eq=False)
class _Fetch:
    request: Request
    first_block: int
    asked_ns: int
    deadline: float
    connection: Connection | None = None
    is_cancelled: bool = False
    num_bytes: int = 0
    num_chunks: int = 0


class _Kv(NamedTuple):
    received: ReceivedKv
    done: Done


class DecodeSide:
    """Implements `engine.loop.PrefillPeer`."""

    def __init__(
        self,
        url: str,
        scope: CacheScope,
        *,
        block_size: int,
        block_bytes: int,
        channel: Channel,
        arrive: Callable[[TransferEvent], None],
        min_tokens: int,
        timeout_seconds: float,
    ) -> None:
        self.url = url
        self.min_tokens = min_tokens
        self._scope = scope
        self._block_size = block_size
        self._block_bytes = block_bytes
        self._channel = channel
        self._arrive = arrive
        self._timeout = timeout_seconds
        self._address: PeerAddress | None = None
        self._down_until = 0.0
        self._queue: queue.SimpleQueue[_Fetch | None] = queue.SimpleQueue()
        self._fetches: dict[str, _Fetch] = {}
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, name="disagg-receive", daemon=True) for _ in range(MAX_TRANSFERS)
        ]

    def check(self) -> None:
        """At start: raises ConfigError for a prefill instance whose KV cannot be used. One that is not there yet may come."""
        try:
            self._address = self._look_up()
        except TransferFailed as error:
            if error.kind != "unreachable":
                raise ConfigError(f"--prefill {self.url}: {error}") from error
            log.warning("the prefill instance is not there yet, prompts are computed here until it is: %s", error)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Cancels what is under way; the threads end with it."""
        with self._lock:
            request_ids = list(self._fetches)
        for request_id in request_ids:
            self.cancel(request_id)
        for _ in self._threads:
            self._queue.put(None)

    @property
    def is_available(self) -> bool:
        return time.monotonic() >= self._down_until

    def fetch(self, request: Request, first_block: int) -> None:
        fetch = _Fetch(request, first_block, perf_counter_ns(), time.monotonic() + self._timeout)
        with self._lock:
            self._fetches[request.request_id] = fetch
        self._queue.put(fetch)

    def cancel(self, request_id: str) -> None:
        with self._lock:
            fetch = self._fetches.pop(request_id, None)
            if fetch is not None:
                fetch.is_cancelled = True
                if fetch.connection is not None:
                    fetch.connection.interrupt()

    # The threads.

    def _work(self) -> None:
        while (fetch := self._queue.get()) is not None:
            try:
                kv = self._transfer(fetch)
            except TransferFailed as error:
                self._give_up(fetch, error)
            except Exception as error:  # the engine must hear of it, whatever it was
                log.exception("a transfer failed")
                self._give_up(fetch, TransferFailed("internal", f"{type(error).__name__}: {error}"))
            else:
                self._end(fetch, self._trace(fetch, kv.done, None), kv.received)

    def _give_up(self, fetch: _Fetch, error: TransferFailed) -> None:
        if fetch.is_cancelled:
            return
        log.warning("%s: computed here, no KV from %s (%s): %s", fetch.request.request_id, self.url, error.kind, error)
        if error.kind in _DOWN:
            self._down_until = time.monotonic() + COOL_OFF_SECONDS
        if error.kind != "refused":
            self._address = None  # it may come back on another port, as something else
        self._end(fetch, self._trace(fetch, None, error.kind), None)

    def _end(self, fetch: _Fetch, trace: TransferTrace, received: ReceivedKv | None) -> None:
        with self._lock:
            if self._fetches.pop(fetch.request.request_id, None) is None:
                return  # cancelled
        self._arrive(TransferEvent(fetch.request.request_id, fetch.asked_ns, ended=trace, received=received))

    @staticmethod
    def _trace(fetch: _Fetch, done: Done | None, failure: str | None) -> TransferTrace:
        wait_ns = perf_counter_ns() - fetch.asked_ns
        exposed_ns = None if done is None else max(0, wait_ns - done.work_ns)
        wire_ns = None if done is None else done.wire_ns
        return TransferTrace(wait_ns, exposed_ns, wire_ns, fetch.num_bytes, fetch.num_chunks, failure)

    def _transfer(self, fetch: _Fetch) -> _Kv:
        connection = self._connect(fetch)
        receiver: ChunkReceiver | None = None
        try:
            request = fetch.request
            num_blocks = -(-len(request.prompt_token_ids) // self._block_size) - fetch.first_block
            receiver = self._channel.receiver(connection, fetch.first_block, num_blocks, self._block_bytes)
            connection.send(
                Ask(
                    request_id=request.request_id,
                    scope=self._scope,
                    block_bytes=self._block_bytes,
                    channel=self._channel.name,
                    tokens=request.prompt_token_ids,
                    first_block=fetch.first_block,
                    params=request.params,
                    salt=request.cache_salt,
                    origin=request.origin,
                    timeout_seconds=max(0.0, fetch.deadline - time.monotonic()),
                    landing=receiver.landing,
                )
            )
            welcome = connection.receive()
            if not isinstance(welcome, Welcome):
                raise TransferFailed("protocol", f"expected an identity, got {type(welcome).__name__}")
            check_identity(self._scope, welcome.scope, self._block_bytes, welcome.block_bytes)
            return self._gather(fetch, connection, receiver, num_blocks)
        finally:
            if receiver is not None:
                receiver.close()
            connection.close()

    def _gather(self, fetch: _Fetch, connection: Connection, receiver: ChunkReceiver, num_blocks: int) -> _Kv:
        blocks: list[memoryview] = []
        size = self._block_bytes
        while not isinstance(message := connection.receive(), Done):
            if isinstance(message, Refused):
                raise TransferFailed(message.kind, f"the prefill instance says: {message.reason}")
            if isinstance(message, Token):
                event = TransferEvent(fetch.request.request_id, fetch.asked_ns, message.token_id, message.logprobs)
                self._arrive(event)
            elif isinstance(message, Chunk):
                left = num_blocks - len(blocks)
                in_turn = message.first_block == fetch.first_block + len(blocks) and 0 < message.num_blocks <= left
                if not in_turn or message.num_bytes != message.num_blocks * size:
                    raise TransferFailed("protocol", f"{message} does not follow {len(blocks)} of {num_blocks} blocks")
                data = receiver.receive(message)
                blocks += [data[start : start + size] for start in range(0, message.num_bytes, size)]
                fetch.num_bytes += message.num_bytes
                fetch.num_chunks += 1
            else:
                raise TransferFailed("protocol", f"{type(message).__name__} is not what a prefill instance says")
        if len(blocks) != num_blocks:
            raise TransferFailed(
                "protocol", f"{len(blocks)} of {num_blocks} blocks had come when it said that it was done"
            )
        return _Kv(ReceivedKv(fetch.first_block, len(fetch.request.prompt_token_ids), blocks), message)

    def _connect(self, fetch: _Fetch) -> Connection:
        if fetch.is_cancelled:
            raise TransferFailed("lost", "cancelled")
        address = self._address or self._look_up()
        self._address = address
        host = urlsplit(self.url).hostname
        try:
            sock = socket.create_connection((host, address.port), _CONNECT_SECONDS)
        except OSError as error:
            raise TransferFailed("unreachable", f"{host}:{address.port}: {error.strerror or error}") from error
        connection = Connection(sock, fetch.deadline)
        with self._lock:
            fetch.connection = connection
            if fetch.is_cancelled:
                connection.interrupt()
        return connection

    def _look_up(self) -> PeerAddress:
        """Raises TransferFailed: unreachable, protocol (no prefill instance), or mismatch."""
        address = _ask_address(self.url)
        check_identity(self._scope, address.scope, self._block_bytes, address.block_bytes)
        if self._channel.name not in address.channels:
            raise TransferFailed(
                "refused", f"it has no channel {self._channel.name!r}, only {', '.join(address.channels)}"
            )
        return address


def _ask_address(url: str) -> PeerAddress:
    parts = urlsplit(url)
    client = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_CONNECT_SECONDS)
    try:
        client.request("GET", INFO_PATH)
        response = client.getresponse()
        status, body = response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise TransferFailed("unreachable", f"{url}: {error}") from error
    finally:
        client.close()
    if status != http.client.OK:
        raise TransferFailed("protocol", f"{url} is no prefill instance: {INFO_PATH} answers {status}")
    try:
        answer: Any = json.loads(body)
        return msgspec.convert(answer, PeerAddress)
    except (ValueError, msgspec.ValidationError) as error:
        raise TransferFailed("protocol", f"{url} is no prefill instance: {error}") from error
