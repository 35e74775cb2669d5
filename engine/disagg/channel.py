"""How the bytes of a chunk get from one process to the other."""

import importlib.util
from typing import Protocol

from engine.disagg.wire import Chunk, Connection
from engine.errors import ConfigError


class ChunkReceiver(Protocol):
    """For one prompt, on the decode side."""

    landing: bytes
    """Goes to the sender with the request."""

    def receive(self, chunk: Chunk) -> memoryview:
        """The chunk's bytes, once its message has come. Raises TransferFailed."""
        ...

    def close(self) -> None: ...


class ChunkSender(Protocol):
    """For one prompt, on the prefill side."""

    def send(self, chunk: Chunk, payload: memoryview) -> None:
        """Returns when the payload is needed no longer. Raises TransferFailed."""
        ...

    def close(self) -> None: ...


class Channel(Protocol):
    name: str

    def receiver(
        self, connection: Connection, first_block: int, num_blocks: int, block_bytes: int
    ) -> ChunkReceiver: ...

    def sender(self, connection: Connection, landing: bytes, first_block: int) -> ChunkSender: ...


class TcpChannel:
    """In the connection itself, behind the chunk's message. Needs nothing that is not there."""

    name = "tcp"

    def receiver(self, connection: Connection, first_block: int, num_blocks: int, block_bytes: int) -> ChunkReceiver:
        return _TcpReceiver(connection)

    def sender(self, connection: Connection, landing: bytes, first_block: int) -> ChunkSender:
        return _TcpSender(connection)


class _TcpReceiver:
    landing = b""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def receive(self, chunk: Chunk) -> memoryview:
        data = memoryview(bytearray(chunk.num_bytes))
        self._connection.receive_into(data)
        return data

    def close(self) -> None:
        pass  # the connection is not ours


class _TcpSender:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, chunk: Chunk, payload: memoryview) -> None:
        self._connection.send(chunk)
        self._connection.send_bytes(payload)

    def close(self) -> None:
        pass


def choose_channel(asked: str, device: str) -> tuple[Channel, str]:
    """The channel, and why it was taken. Raises ConfigError when the one that is asked for is not there."""
    has_nixl = importlib.util.find_spec("nixl_cu12") is not None or importlib.util.find_spec("nixl") is not None
    if asked == "nixl" or (asked == "auto" and device != "cpu" and has_nixl):
        if not has_nixl:
            raise ConfigError("--transfer nixl needs the disagg extra: pip install 'stallscope[disagg]'")
        from engine.disagg.nixl_channel import NixlChannel

        return NixlChannel(), "asked for" if asked == "nixl" else "it is installed"
    if asked == "tcp":
        return TcpChannel(), "asked for"
    if device == "cpu":
        return TcpChannel(), "the KV is in host memory"
    return TcpChannel(), "nixl is not installed"
