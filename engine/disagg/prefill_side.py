"""The prefill instance: computes prompts for decode instances and streams their KV, a thread per prompt.

connection thread:  Ask -> engine.submit ------------------ mailbox -> channel -> the other process
engine thread:                step, read blocks, Outbound.send --^  ^
event loop:                                     first token, sink --|
"""

import logging
import queue
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from time import perf_counter_ns

from engine.core import TokenOutput
from engine.disagg.channel import Channel, ChunkSender
from engine.disagg.wire import Ask, Chunk, Connection, Done, Refused, Token, TransferFailed, Welcome
from engine.errors import EngineUnavailable, RequestRejected
from engine.loop import EngineThread
from engine.prefix_cache import CacheScope, explain_miss
from engine.request import Request
from engine.shipping import Outbound, Shipment, Shipping
from probes.recorder import RingRecorder

log = logging.getLogger("stallscope.disagg")

_POLL_SECONDS = 0.05
"""How soon it is noticed that nobody waits for a prompt any more."""
_BACKLOG = 128

_Mail = TokenOutput | tuple[Shipment, memoryview] | str
"""A first token or an end, blocks, or why there are none."""


class PrefillSide:
    """Listens where the server does, on a port of its own."""

    def __init__(
        self,
        engine: EngineThread,
        recorder: RingRecorder,
        scope: CacheScope,
        *,
        block_size: int,
        block_bytes: int,
        vocab_size: int,
        channels: dict[str, Channel],
        overlap: bool = True,
        delay_seconds: float = 0.0,
        timeout_seconds: float = 60.0,
    ) -> None:
        """`overlap`: a chunk leaves when it is computed, else all leave when the prompt is. `delay_seconds`: a drill's."""
        self._engine = engine
        self._recorder = recorder
        self._scope = scope
        self._block_size = block_size
        self._block_bytes = block_bytes
        self._vocab_size = vocab_size
        self._channels = channels
        self._overlap = overlap
        self._delay = delay_seconds
        self._timeout = timeout_seconds
        self._listener: socket.socket | None = None

    def start(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        threading.Thread(target=self._accept, args=(self._listener,), name="disagg-accept", daemon=True).start()

    def stop(self) -> None:
        """Takes no more prompts; open connections end with the engine's requests."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._listener.close()

    def describe(self) -> dict[str, object]:
        """What a decode instance must know before it connects."""
        assert self._listener is not None
        scope = {name: getattr(self._scope, name) for name in CacheScope.__slots__}
        return {
            "port": self._listener.getsockname()[1],
            "scope": scope,
            "block_bytes": self._block_bytes,
            "channels": sorted(self._channels),
        }

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return  # closed by stop
            threading.Thread(target=self._serve, args=(sock,), name="disagg-send", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        connection = Connection(sock, time.monotonic() + self._timeout)
        try:
            connection.send(Welcome(self._scope, self._block_bytes))
            ask = connection.receive()
            if not isinstance(ask, Ask):
                raise TransferFailed("protocol", f"expected a prompt, got {type(ask).__name__}")
            self._check(ask)
            connection.deadline = min(connection.deadline, time.monotonic() + ask.timeout_seconds)
            _Sending(self, connection, ask).run()
        except TransferFailed as error:
            self._refuse(connection, error)
        except Exception as error:
            log.exception("a transfer failed")
            self._refuse(connection, TransferFailed("internal", f"{type(error).__name__}: {error}"))
        finally:
            connection.close()

    def _refuse(self, connection: Connection, error: TransferFailed) -> None:
        log.warning("a prompt is not sent (%s): %s", error.kind, error)
        with suppress(TransferFailed):  # nobody may be there to hear it
            connection.send(Refused(error.kind, str(error)))

    def _check(self, ask: Ask) -> None:
        check_identity(self._scope, ask.scope, self._block_bytes, ask.block_bytes)
        if ask.channel not in self._channels:
            raise TransferFailed("refused", f"no channel {ask.channel!r} here, only {', '.join(self._channels)}")
        if wrong := next((token for token in ask.tokens if not 0 <= token < self._vocab_size), None):
            raise TransferFailed("refused", f"token id {wrong} is not one of {self._vocab_size}")


def check_identity(ours: CacheScope, theirs: CacheScope, our_bytes: int, their_bytes: int) -> None:
    """Raises TransferFailed `mismatch` unless KV of one may serve the other: it names what differs, with both values."""
    differing = [
        f"{name}: {getattr(ours, name)} here, {getattr(theirs, name)} there" for name in explain_miss(ours, theirs)
    ]
    if our_bytes != their_bytes:
        differing.append(f"bytes of a block: {our_bytes} here, {their_bytes} there")
    if differing:
        raise TransferFailed("mismatch", "KV of this instance cannot serve that one; " + "; ".join(differing))


class _Sending:
    """One prompt, from the request to its last byte."""

    def __init__(self, side: PrefillSide, connection: Connection, ask: Ask) -> None:
        self._engine = side._engine
        self._recorder = side._recorder
        self._connection = connection
        self._overlap = side._overlap
        self._delay = side._delay
        self._block_bytes = side._block_bytes
        self._sender: ChunkSender = side._channels[ask.channel].sender(connection, ask.landing, ask.first_block)
        self._mailbox: queue.SimpleQueue[_Mail] = queue.SimpleQueue()
        self._asked_ns = perf_counter_ns()
        self._held: list[tuple[Shipment, memoryview]] = []
        self._num_bytes = self._num_chunks = self._wire_ns = 0
        try:
            shipping = Shipping(len(ask.tokens), side._block_size, ask.first_block)
        except ValueError as error:
            raise TransferFailed("refused", str(error)) from error
        self._request = Request(
            request_id=ask.request_id,
            prompt_token_ids=ask.tokens,
            params=replace(ask.params, max_tokens=1, stop=()),
            arrival_ns=self._asked_ns,
            cache_salt=ask.salt,
            origin=ask.origin,
            outbound=Outbound(shipping, lambda shipment, data: self._mailbox.put((shipment, data)), self._mailbox.put),
        )

    def run(self) -> None:
        failure: str | None = None
        try:
            try:
                self._engine.submit(self._request, self._mailbox.put)
            except (RequestRejected, EngineUnavailable) as error:
                raise TransferFailed("refused", str(error)) from error
            self._pump()
        except TransferFailed as error:
            failure = error.kind
            raise
        finally:
            self._engine.abort(self._request.request_id)
            self._sender.close()
            self._recorder.on_kv_sent(self._num_bytes, self._num_chunks, self._wire_ns, failure)

    def _pump(self) -> None:
        """Until the last chunk and the first token have left."""
        has_token = has_blocks = False
        while not (has_token and has_blocks):
            try:
                mail = self._mailbox.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if self._connection.is_closed_by_peer():
                    log.info("%s: nobody waits for it any more", self._request.request_id)
                    return
                continue
            if isinstance(mail, str):
                raise TransferFailed("internal", mail)
            if isinstance(mail, TokenOutput):
                if mail.token_id is None:
                    raise TransferFailed("refused", f"the request ended with {mail.finish_reason}")
                self._connection.send(Token(mail.token_id, mail.logprobs))
                has_token = True
            else:
                has_blocks = mail[0].is_last
                self._take(*mail)
        assert self._request.first_token_ns is not None
        self._connection.send(Done(self._request.first_token_ns - self._asked_ns, self._wire_ns))

    def _take(self, shipment: Shipment, payload: memoryview) -> None:
        self._held.append((shipment, payload))
        if self._overlap or shipment.is_last:
            for held, data in self._held:
                self._send(held, data)
            self._held = []

    def _send(self, shipment: Shipment, payload: memoryview) -> None:
        start_ns = perf_counter_ns()
        if self._delay:
            time.sleep(self._delay)
        self._sender.send(Chunk(shipment.first_block, shipment.num_blocks, payload.nbytes), payload)
        self._wire_ns += perf_counter_ns() - start_ns
        self._num_bytes += payload.nbytes
        self._num_chunks += 1
