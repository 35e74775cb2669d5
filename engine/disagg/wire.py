"""What prefill and decode instance say to each other: one connection per prompt, typed messages, bytes of blocks between.

    decode                                    prefill
      |------------- Ask ----------------------->|      which prompt, from which block, of which identity
      |<------------ Welcome --------------------|      its own identity, before anything else
      |<------------ Chunk, bytes ---------------|      again and again, while later chunks are computed
      |<------------ Token ----------------------|      the first token, as soon as it is sampled
      |<------------ Chunk, bytes ---------------|      the last one
      |<------------ Done -----------------------|      or Refused, at any time

A message is its length (4 bytes, big endian) and MessagePack. Closing the connection cancels.
"""

import socket
import struct
import time
from contextlib import suppress

import msgspec
from msgspec import Struct

from engine.prefix_cache import CacheScope
from engine.request import SamplingParams
from engine.runner.base import TokenLogprobs
from probes.recorder import RequestOrigin

MAX_MESSAGE_BYTES = 16 << 20
_LENGTH = struct.Struct(">I")


class Ask(Struct, tag="ask", frozen=True):
    request_id: str
    scope: CacheScope
    block_bytes: int
    channel: str
    tokens: list[int]
    first_block: int
    """The decode side has the blocks before it."""
    params: SamplingParams
    salt: str
    origin: RequestOrigin | None
    timeout_seconds: float
    """After which nobody waits for it any more."""
    landing: bytes
    """Where the channel may write; empty for one that sends in the connection."""


class Welcome(Struct, tag="welcome", frozen=True):
    scope: CacheScope
    block_bytes: int


class Chunk(Struct, tag="chunk", frozen=True):
    first_block: int
    num_blocks: int
    num_bytes: int


class Token(Struct, tag="token", frozen=True):
    token_id: int
    logprobs: TokenLogprobs | None


class Done(Struct, tag="done", frozen=True):
    work_ns: int
    """From the request to its first token, on the prefill side."""
    wire_ns: int
    """Time in which chunks were sent, summed up."""


class Refused(Struct, tag="refused", frozen=True):
    kind: str
    """One of the kinds of TransferFailed."""
    reason: str


Message = Ask | Welcome | Chunk | Token | Done | Refused
_decoder = msgspec.msgpack.Decoder(Message)


FAILURES = ("unreachable", "timeout", "lost", "mismatch", "refused", "protocol", "internal")


class TransferFailed(Exception):
    """A transfer ends early. `kind` is one of FAILURES."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Connection:
    """Blocking, for one thread; `interrupt` may be called from any. Nothing waits beyond `deadline` (time.monotonic)."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self.deadline = deadline

    def send(self, message: Message) -> None:
        body = msgspec.msgpack.encode(message)
        self.send_bytes(_LENGTH.pack(len(body)) + body)

    def send_bytes(self, data: bytes | memoryview) -> None:
        try:
            self._await()
            self._socket.sendall(data)
        except OSError as error:
            raise _failed(error) from error

    def receive(self) -> Message:
        """Raises TransferFailed `protocol` for what is no message."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > MAX_MESSAGE_BYTES:
            raise TransferFailed("protocol", f"a message of {length} bytes: this is no peer of ours")
        try:
            message: Message = _decoder.decode(self._exactly(length))
        except (msgspec.DecodeError, ValueError) as error:
            raise TransferFailed("protocol", f"not a message of ours: {error}") from error
        return message

    def receive_into(self, target: memoryview) -> None:
        try:
            while target:
                self._await()
                count = self._socket.recv_into(target)
                if not count:
                    raise TransferFailed("lost", "the other side closed the connection")
                target = target[count:]
        except OSError as error:
            raise _failed(error) from error

    def is_closed_by_peer(self) -> bool:
        """Without waiting. The peer says nothing more at this time, so that anything to read is the end."""
        try:
            self._socket.settimeout(0)
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def interrupt(self) -> None:
        """Ends the connection and with it the wait of its thread, which closes it."""
        with suppress(OSError):  # not connected any more
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        self.receive_into(memoryview(data))
        return data

    def _await(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)


def _failed(error: OSError) -> TransferFailed:
    if isinstance(error, TimeoutError):
        return TransferFailed("timeout", "the other side did not answer in time")
    return TransferFailed("lost", f"the connection broke: {error.strerror or error}")
