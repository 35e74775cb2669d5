"""KV by NIXL: the prefill side writes into registered memory of the decode side; over RDMA, shared memory or TCP, as UCX finds.

    decode side    registers memory for the whole prompt, tells where it is
    prefill side   WRITE of a chunk to its place there; once it is done, the chunk's message in the connection

A write cannot be called back. Memory of a transfer that ended early is kept until the sender has surely given up.
"""

import ctypes
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from engine.disagg.channel import ChunkReceiver, ChunkSender
from engine.disagg.wire import Chunk, Connection, TransferFailed

_POLL_SECONDS = 0.0002
_PARK_SECONDS = 10.0
"""Beyond the transfer's own deadline."""


class _Landing(msgspec.Struct, frozen=True):
    metadata: bytes
    address: int


class _Region(NamedTuple):
    buffer: bytearray
    address: int
    registered: Any


class _Parked(NamedTuple):
    until: float
    region: _Region


def _load() -> Any:
    try:
        import nixl_cu12 as nixl
    except ModuleNotFoundError:
        import nixl
    # It would write to standard output, which is the ready line's; its words go where ours go.
    library_log = logging.getLogger("nixl")
    library_log.handlers.clear()
    library_log.propagate = True
    return nixl


class NixlChannel:
    """One agent per process. The library is not asked by two threads at once."""

    name = "nixl"

    def __init__(self) -> None:
        nixl = _load()
        self._agent = nixl.nixl_agent(f"stallscope-{secrets.token_hex(8)}", nixl.nixl_agent_config(backends=["UCX"]))
        self._lock = Lock()
        self._parked: list[_Parked] = []

    def receiver(self, connection: Connection, first_block: int, num_blocks: int, block_bytes: int) -> ChunkReceiver:
        return _NixlReceiver(self, connection, first_block, num_blocks, block_bytes)

    def sender(self, connection: Connection, landing: bytes, first_block: int) -> ChunkSender:
        try:
            where = msgspec.msgpack.decode(landing, type=_Landing)
        except msgspec.DecodeError as error:
            raise TransferFailed("protocol", f"not a place to write to: {error}") from error
        return _NixlSender(self, connection, where, first_block)

    def open_region(self, num_bytes: int) -> tuple[_Region, bytes]:
        """Registered memory, and what another agent must know to write to it."""
        buffer = bytearray(num_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        with self._lock:
            self._free_parked()
            registered = self._agent.register_memory([(address, num_bytes, 0, "")], "DRAM")
            metadata: bytes = self._agent.get_agent_metadata()
        return _Region(buffer, address, registered), metadata

    def close_region(self, region: _Region, *, until: float) -> None:
        """`until`: when nobody writes to it any more, on time.monotonic."""
        with self._lock:
            self._parked.append(_Parked(until, region))
            self._free_parked()

    def _free_parked(self) -> None:
        now = time.monotonic()
        for parked in self._parked:
            if parked.until <= now:
                self._agent.deregister_memory(parked.region.registered)
        self._parked = [parked for parked in self._parked if parked.until > now]

    def connect(self, metadata: bytes) -> str:
        with self._lock:
            name = self._agent.add_remote_agent(metadata)
        return name.decode() if isinstance(name, bytes) else str(name)

    def write(self, payload: memoryview, remote: str, address: int, deadline: float) -> None:
        """Returns when the payload is in the other process's memory."""
        local_address = ctypes.addressof(ctypes.c_char.from_buffer(payload))
        with self._registered(local_address, payload.nbytes):
            with self._lock:
                agent = self._agent
                source = agent.get_xfer_descs([(local_address, payload.nbytes, 0)], "DRAM")
                target = agent.get_xfer_descs([(address, payload.nbytes, 0)], "DRAM")
                handle = agent.initialize_xfer("WRITE", source, target, remote)
                state = agent.transfer(handle)
            try:
                while state == "PROC":
                    if time.monotonic() > deadline:
                        raise TransferFailed("timeout", "a write did not end in time")
                    time.sleep(_POLL_SECONDS)
                    with self._lock:
                        state = agent.check_xfer_state(handle)
                if state != "DONE":
                    raise TransferFailed("lost", f"a write of {payload.nbytes} bytes ended as {state}")
            finally:
                with self._lock:
                    agent.release_xfer_handle(handle)

    @contextmanager
    def _registered(self, address: int, num_bytes: int) -> Iterator[None]:
        with self._lock:
            registered = self._agent.register_memory([(address, num_bytes, 0, "")], "DRAM")
        try:
            yield
        finally:
            with self._lock:
                self._agent.deregister_memory(registered)


class _NixlReceiver:
    def __init__(
        self, channel: NixlChannel, connection: Connection, first_block: int, num_blocks: int, block_bytes: int
    ) -> None:
        self._channel = channel
        self._connection = connection
        self._first_block = first_block
        self._block_bytes = block_bytes
        self._bytes_left = num_blocks * block_bytes
        self._region, metadata = channel.open_region(num_blocks * block_bytes)
        self.landing = msgspec.msgpack.encode(_Landing(metadata, self._region.address))

    def receive(self, chunk: Chunk) -> memoryview:
        start = (chunk.first_block - self._first_block) * self._block_bytes
        self._bytes_left -= chunk.num_bytes
        return memoryview(self._region.buffer)[start : start + chunk.num_bytes]

    def close(self) -> None:
        is_whole = self._bytes_left == 0
        self._channel.close_region(self._region, until=0.0 if is_whole else self._connection.deadline + _PARK_SECONDS)


class _NixlSender:
    def __init__(self, channel: NixlChannel, connection: Connection, landing: _Landing, first_block: int) -> None:
        self._channel = channel
        self._connection = connection
        self._address = landing.address
        self._first_block = first_block
        self._remote = channel.connect(landing.metadata)

    def send(self, chunk: Chunk, payload: memoryview) -> None:
        offset = (chunk.first_block - self._first_block) * (chunk.num_bytes // chunk.num_blocks)
        self._channel.write(payload, self._remote, self._address + offset, self._connection.deadline)
        self._connection.send(chunk)

    def close(self) -> None:
        pass  # the other agent stays known: it will ask again
