"""Both sides in one process, over a real connection: what they say, refuse and survive."""

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from engine.core import EngineCore
from engine.disagg.channel import Channel, ChunkReceiver, TcpChannel
from engine.disagg.decode_side import INFO_PATH, DecodeSide
from engine.disagg.identity import transfer_scope
from engine.disagg.prefill_side import PrefillSide
from engine.disagg.wire import Chunk, Connection
from engine.errors import ConfigError
from engine.loop import EngineFacts, EngineThread
from engine.prefix_cache import CacheScope
from engine.request import FinishReason, Request, SamplingParams
from engine.runner.base import StepResult
from engine.runner.cpu import CpuRunner
from engine.scheduler import Scheduler
from engine.step import BatchPlan
from probes.locks import TimedLock
from probes.recorder import RequestTrace, RingRecorder
from tests.engine.fakes import CollectingSink, make_config
from tests.engine.model_helpers import make_prompt, tiny
from tests.requirements import covers

BLOCK_SIZE = 16
MODEL = tiny("float32")
SCOPE = transfer_scope(MODEL, BLOCK_SIZE)
BLOCK_BYTES = 2 * 2 * 32 * 4 * BLOCK_SIZE
PROMPT = make_prompt(100)


class Instance:
    """An engine on its own thread."""

    def __init__(self, budget: int = 512, runner: type[CpuRunner] = CpuRunner) -> None:
        device = runner(MODEL, threads=1, kernels="torch")
        device.allocate_kv(64, BLOCK_SIZE)
        config = make_config(max_batched_tokens=budget, block_size=BLOCK_SIZE, max_model_len=1024)
        self.scheduler, self.recorder, lock = Scheduler(config, SCOPE), RingRecorder(), TimedLock()
        core = EngineCore(self.scheduler, device, self.recorder, lock, frozenset())
        self.engine = EngineThread(core, lock, self.recorder, EngineFacts("e", {}, None, 0.0, {}))

    def ask(self, prompt: list[int] = PROMPT, name: str = "r", **params: Any) -> tuple[Request, CollectingSink]:
        request = Request(name, prompt, SamplingParams(**({"max_tokens": 6} | params)), time.perf_counter_ns())
        sink = CollectingSink()
        self.engine.submit(request, sink)
        return request, sink

    def answer(self, prompt: list[int] = PROMPT, name: str = "r", **params: int) -> list[int]:
        _, sink = self.ask(prompt, name, **params)
        assert sink.finished.wait(60)
        assert sink.outputs[-1].finish_reason is FinishReason.LENGTH
        return sink.token_ids

    def trace(self) -> RequestTrace:
        """Of the request that ended last."""
        return self.recorder.traces_since(0).traces[-1]

    def assert_idle_and_whole(self) -> None:
        _wait(lambda: not self.engine._core.has_work and not self.scheduler.requests)
        self.scheduler.check_invariants()
        assert self.scheduler.census().active == 0


@contextmanager
def described(answer: object, status: int = 200) -> Iterator[str]:
    """An HTTP server that says where the listener is."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status if self.path == INFO_PATH else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def make_prefill_side(instance: Instance, scope: CacheScope = SCOPE, **options: object) -> PrefillSide:
    return PrefillSide(
        instance.engine,
        instance.recorder,
        scope,
        block_size=BLOCK_SIZE,
        block_bytes=BLOCK_BYTES,
        vocab_size=MODEL.config.vocab_size,
        channels={"tcp": TcpChannel()},
        **options,  # type: ignore[arg-type]
    )


def make_decode_side(instance: Instance, url: str, timeout: float = 30.0, channel: Channel | None = None) -> DecodeSide:
    side = DecodeSide(
        url,
        SCOPE,
        block_size=BLOCK_SIZE,
        block_bytes=BLOCK_BYTES,
        channel=channel or TcpChannel(),
        arrive=instance.engine.arrive,
        min_tokens=1,
        timeout_seconds=timeout,
    )
    instance.engine.prefill_peer = side
    return side


@contextmanager
def two(
    first: Instance | None = None, *, timeout: float = 30.0, channel: Channel | None = None, **prefill: Any
) -> Iterator[tuple[Instance, Instance, DecodeSide]]:
    """Prefill and decode instance; chunks of 32 tokens."""
    first, second = first or Instance(budget=32), Instance()
    prefill_side = make_prefill_side(first, **prefill)
    prefill_side.start("127.0.0.1")
    with described(prefill_side.describe()) as url:
        side = make_decode_side(second, url, timeout, channel)
        side.start()
        first.engine.start()
        second.engine.start()
        try:
            yield first, second, side
        finally:
            side.stop()
            prefill_side.stop()
            first.engine.stop()
            second.engine.stop()


@pytest.fixture(scope="module")
def expected() -> list[int]:
    alone = Instance()
    alone.engine.start()
    try:
        return alone.answer()
    finally:
        alone.engine.stop()


@covers("S6.8", "S6.9")
@pytest.mark.parametrize("overlap", [True, False])
def test_the_tokens_are_those_of_one_engine_with_and_without_overlap(expected: list[int], overlap: bool):
    with two(overlap=overlap) as (first, second, _):
        assert second.answer() == expected
        steps = second.recorder.steps_since(0).records
        assert {step.kind for step in steps} == {"decode"}
        assert sum(step.received_tokens or 0 for step in steps) == len(PROMPT)
        transfer = second.trace().transfer
        assert transfer is not None
        assert (transfer.num_chunks, transfer.num_bytes, transfer.failure) == (4, 7 * BLOCK_BYTES, None)
        assert transfer.wire_ns is not None and transfer.exposed_ns is not None
        assert transfer.exposed_ns <= transfer.wait_ns
        first.assert_idle_and_whole()
        second.assert_idle_and_whole()


class WatchedChannel(TcpChannel):
    """Calls `on_chunk` for each chunk that comes."""

    def __init__(self, on_chunk: Callable[[], None]) -> None:
        self._on_chunk = on_chunk

    def receiver(self, connection: Connection, first_block: int, num_blocks: int, block_bytes: int) -> ChunkReceiver:
        on_chunk, inner = self._on_chunk, super().receiver(connection, first_block, num_blocks, block_bytes)

        class Receiver:
            landing = inner.landing
            close = inner.close

            def receive(self, chunk: Chunk) -> memoryview:
                on_chunk()
                return inner.receive(chunk)

        return Receiver()


class SlowRunner(CpuRunner):
    def execute(self, plan: BatchPlan) -> StepResult:
        time.sleep(0.3)
        return super().execute(plan)


def test_overlap_sends_before_the_prompt_is_computed(expected: list[int]):
    """Seen from outside: three of four chunks have come while the prefill instance still has the prompt."""
    is_computed: list[bool] = []
    first = Instance(budget=32, runner=SlowRunner)
    channel = WatchedChannel(lambda: is_computed.append(bool(first.recorder.traces_since(0).traces)))
    with two(first, channel=channel) as (_, second, _):
        assert second.answer() == expected
    assert is_computed[:3] == [False, False, False]


def test_a_client_that_leaves_stops_the_prefill_instance_too():
    with two(Instance(budget=32, runner=SlowRunner), delay_seconds=0.3) as (first, second, _):
        second.ask()
        _wait(lambda: first.scheduler.requests)
        second.engine.abort("r")
        first.assert_idle_and_whole()
        second.assert_idle_and_whole()
        assert not second.recorder.counters.transfer_failures


def test_an_answer_of_one_token_needs_no_kv(expected: list[int]):
    with two() as (_, second, _):
        assert second.answer(max_tokens=1) == expected[:1]
        second.assert_idle_and_whole()


def test_a_prompt_that_the_other_side_cannot_take_is_computed_here():
    """Its context is shorter, say: it refuses, and stays in use for others."""
    with two() as (first, second, side):
        first.engine.drain()
        assert len(second.answer()) == 6
        assert second.recorder.counters.transfer_failures == {"refused": 1}
        assert side.is_available


def test_a_slow_transfer_is_given_up_in_time_and_the_peer_left_alone_for_a_while(expected: list[int]):
    with two(delay_seconds=5.0, timeout=0.4) as (_, second, side):
        assert second.answer() == expected
        assert second.recorder.counters.transfer_failures == {"timeout": 1}
        assert not side.is_available
        assert second.answer(name="next", prompt=make_prompt(50, seed=9))
        assert second.recorder.counters.transfer_failures == {"timeout": 1}, "it was not asked"
        second.assert_idle_and_whole()


@pytest.mark.parametrize(
    ("name", "value"),
    [("weights", "other"), ("positional", "other"), ("kv_format", "other"), ("engine", "other"), ("adapter", "x")],
)
def test_no_block_of_another_identity_is_accepted(expected: list[int], name: str, value: str):
    """The description fitted, the instance behind the port does not: it was restarted with something else."""
    with two(scope=replace(SCOPE, **{name: value})) as (_, second, side):
        with pytest.raises(ConfigError, match=f"{name}: .* here, {value} there"):
            side.check()
        assert second.answer() == expected
        assert second.recorder.counters.transfer_failures == {"mismatch": 1}
        assert second.recorder.counters.transfer_bytes["received"] == 0


@pytest.mark.parametrize(
    ("answer", "status"), [({"hello": 1}, 200), ("no", 200), ({}, 404)], ids=["other", "text", "404"]
)
def test_what_is_no_prefill_instance_is_refused_at_start(answer: object, status: int):
    with described(answer, status) as url, pytest.raises(ConfigError, match="is no prefill instance"):
        make_decode_side(Instance(), url).check()


def test_random_lives_of_a_pair_leave_nothing_behind():
    """Clients come and leave, transfers are late: in the end nobody holds anything, and everybody was answered."""
    with two(delay_seconds=0.002, timeout=5.0) as (first, second, _):
        asked = []
        for i in range(24):
            prompt = make_prompt(20 + 13 * (i % 7), seed=i % 5)
            asked.append(second.ask(prompt, name=f"r{i}", max_tokens=1 + i % 4))
            if i % 3 == 1:
                second.engine.abort(f"r{i - 1}")
            if i % 8 == 5:
                time.sleep(0.02)
        left = {f"r{i - 1}" for i in range(24) if i % 3 == 1}
        for request, sink in asked:
            if request.request_id not in left:
                assert sink.finished.wait(60), f"{request.request_id} got no answer"
        first.assert_idle_and_whole()
        second.assert_idle_and_whole()


def _wait(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
