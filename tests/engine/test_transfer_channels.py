"""Chunks between two ends of a connection: by TCP always, by NIXL where it is installed."""

import importlib.util
import random
import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from engine.disagg.channel import Channel, TcpChannel, choose_channel
from engine.disagg.wire import Chunk, Connection, Done, TransferFailed
from engine.errors import ConfigError
from tests.engine.pair import SMALL, complete, metrics, pair, text_of

HAS_NIXL = importlib.util.find_spec("nixl_cu12") is not None
needs_nixl = pytest.mark.skipif(not HAS_NIXL, reason="nixl-cu12 is not installed: the disagg extra")

Ends = tuple[Connection, Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Decode side, prefill side."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    deadline = time.monotonic() + 250
    with closing(Connection(here, deadline)) as first, closing(Connection(there, deadline)) as second:
        yield first, second


def make_channels(name: str) -> tuple[Channel, Channel]:
    if name == "tcp":
        return TcpChannel(), TcpChannel()
    return choose_channel("nixl", "cpu")[0], choose_channel("nixl", "cpu")[0]


@pytest.mark.parametrize("name", ["tcp", pytest.param("nixl", marks=[needs_nixl, pytest.mark.slow])])
def test_chunks_arrive_as_they_were_sent(ends: Ends, name: str):
    here, there = make_channels(name)
    for first_block in (0, 3):
        receiver = here.receiver(ends[0], first_block, num_blocks=6, block_bytes=1000)
        sender = there.sender(ends[1], receiver.landing, first_block)
        for offset, num_blocks in ((0, 1), (1, 3), (4, 2)):
            payload = bytearray(random.Random(offset).randbytes(num_blocks * 1000))
            sender.send(Chunk(first_block + offset, num_blocks, len(payload)), memoryview(payload))
            chunk = ends[0].receive()
            assert isinstance(chunk, Chunk)
            assert receiver.receive(chunk) == payload
        receiver.close()
        sender.close()


@needs_nixl
@pytest.mark.slow
def test_a_pair_gives_the_tokens_of_one_engine_over_nixl():
    nixl = ("--transfer", "nixl")
    prompt = list(range(200))
    with pair(both=SMALL, prefill=nixl, decode=nixl) as running:
        there = complete(running.decode, prompt)
        assert metrics(running.decode)["kv_transfer_seconds_count"] == 1
        assert metrics(running.decode)['tokens_total{phase="prefill"}'] == 0
        assert text_of(there) == text_of(complete(running.prefill, prompt))


def test_the_channel_says_why_it_was_taken():
    channel, reason = choose_channel("auto", "cpu")
    assert (channel.name, reason) == ("tcp", "the KV is in host memory")
    assert choose_channel("tcp", "cuda")[1] == "asked for"


@pytest.mark.skipif(HAS_NIXL, reason="nixl is installed")
def test_nixl_that_is_not_there_is_one_line():
    with pytest.raises(ConfigError, match="needs the disagg extra"):
        choose_channel("nixl", "cpu")


# Connections.


def test_a_peer_that_says_nothing_is_a_timeout(ends: Ends):
    ends[0].deadline = time.monotonic() + 0.05
    with pytest.raises(TransferFailed) as failed:
        ends[0].receive()
    assert failed.value.kind == "timeout"


def test_a_peer_that_leaves_in_the_middle_of_a_message_is_lost(ends: Ends):
    ends[1].send_bytes(b"\0\0\0\x10abc")
    ends[1].close()
    with pytest.raises(TransferFailed) as failed:
        ends[0].receive()
    assert failed.value.kind == "lost"
    assert ends[0].is_closed_by_peer()


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x02\x81\xa1", b"\0\0\0\x01\x05"], ids=repr)
def test_what_is_no_message_is_refused(ends: Ends, sent: bytes):
    ends[1].send_bytes(sent)
    with pytest.raises(TransferFailed) as failed:
        ends[0].receive()
    assert failed.value.kind == "protocol"


def test_messages_keep_their_values(ends: Ends):
    assert not ends[0].is_closed_by_peer()
    ends[1].send(Done(work_ns=5, wire_ns=3))
    assert ends[0].receive() == Done(work_ns=5, wire_ns=3)
