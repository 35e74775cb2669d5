"""The engine thread: intake from other threads, drain, death."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from time import monotonic, sleep

import pytest

from engine.errors import ConfigError, EngineUnavailable, RequestRejected
from engine.loop import EngineThread
from engine.request import FinishReason
from engine.step import BatchPlan
from tests.engine.fakes import CollectingSink, FakeRunner, Harness, make_request, make_thread


@contextmanager
def running(harness: Harness) -> Iterator[EngineThread]:
    engine = make_thread(harness)
    engine.start()
    try:
        yield engine
    finally:
        assert engine.stop(5.0)


def wait_until(condition, seconds: float = 5.0) -> None:
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, "the condition did not come true in time"
        sleep(0.002)


def test_requests_from_another_thread_are_served():
    with running(Harness()) as engine:
        sinks = [CollectingSink() for _ in range(5)]
        for index, sink in enumerate(sinks):
            engine.submit(make_request(f"r{index}", [index, index + 1]), sink)
        for index, sink in enumerate(sinks):
            assert sink.finished.wait(5)
            assert sink.token_ids == [index + 2, index + 3, index + 4, index + 5]
        wait_until(lambda: engine.snapshot().num_running == 0)


def test_one_batch_of_outputs_per_step_is_posted():
    harness = Harness()
    engine = make_thread(harness)
    batches = []
    sinks = [CollectingSink() for _ in range(3)]
    for index, sink in enumerate(sinks):
        engine.submit(make_request(f"r{index}"), sink)

    def post(deliver, outputs):
        batches.append(len(outputs))
        deliver(outputs)

    engine.start(post)
    assert all(sink.finished.wait(5) for sink in sinks)
    engine.stop()
    assert batches == [3, 3, 3, 3]


def test_a_rejected_request_leaves_nothing_behind():
    with running(Harness()) as engine:
        sink = CollectingSink()
        with pytest.raises(RequestRejected) as caught:
            engine.submit(make_request(prompt=range(250), max_tokens=100), sink)
        assert caught.value.param == "max_tokens"
        engine.drain()
        assert engine.is_drained


def test_abort_is_silent_and_frees_the_blocks():
    harness = Harness(FakeRunner(seconds=0.002))
    with running(harness) as engine:
        sink = CollectingSink()
        engine.submit(make_request(prompt=range(40), max_tokens=200), sink)
        wait_until(lambda: len(sink.outputs) > 2)
        engine.abort("r")
        engine.abort("r")
        step = harness.recorder.next_id
        seen = len(sink.outputs)
        wait_until(lambda: engine.snapshot().census.active == 0)
        assert harness.recorder.next_id - step <= 2
        assert len(sink.outputs) <= seen + 1
        assert not sink.finished.is_set()


def test_drain_refuses_new_requests_and_finishes_old_ones():
    with running(Harness(FakeRunner(seconds=0.005))) as engine:
        sink = CollectingSink()
        engine.submit(make_request(max_tokens=10), sink)
        engine.drain()
        assert engine.status() in ("draining", "drained")
        with pytest.raises(EngineUnavailable) as caught:
            engine.submit(make_request("late"), CollectingSink())
        assert caught.value.code == "draining"
        assert sink.finished.wait(5)
        wait_until(lambda: engine.status() == "drained")
        engine.resume()
        again = CollectingSink()
        engine.submit(make_request("again"), again)
        assert again.finished.wait(5)


def test_limits_are_checked_and_kept_on_error():
    with running(Harness()) as engine:
        engine.set_limits(max_batched_tokens=32)
        engine.set_limits(max_sequences=2)
        with pytest.raises(ConfigError, match="0"):
            engine.set_limits(max_batched_tokens=16, max_sequences=0)
        state = engine.state()
        assert (state.max_batched_tokens, state.max_sequences) == (32, 2)


def test_prefix_cache_verbs():
    with running(Harness()) as engine:
        sink = CollectingSink()
        engine.submit(make_request(prompt=range(40)), sink)
        assert sink.finished.wait(5)
        wait_until(lambda: engine.snapshot().census.reclaimable == 10)
        engine.set_prefix_cache(False)
        assert not engine.state().prefix_cache_enabled
        assert engine.reset_prefix_cache() == 10
        assert engine.reset_prefix_cache() == 0
        assert engine.snapshot().census.free == 64


def fail(_: BatchPlan) -> None:
    raise RuntimeError("boom")


def test_three_failures_in_a_row_are_the_end(caplog: pytest.LogCaptureFixture):
    harness = Harness(FakeRunner(fail), max_sequences=1)
    with running(harness) as engine:
        sinks = [CollectingSink() for _ in range(5)]
        for index, sink in enumerate(sinks):
            try:
                engine.submit(make_request(f"r{index}"), sink)
            except EngineUnavailable:
                sink.finished.set()
        assert all(sink.finished.wait(5) for sink in sinks)
        wait_until(lambda: engine.status() == "dead")
        assert "3 forward passes" in (engine.dead_reason or "")
        assert harness.recorder.counters.failures["forward_error"] == 3
        assert harness.recorder.counters.failures["engine_dead"] == 1
        with pytest.raises(EngineUnavailable) as caught:
            engine.submit(make_request("late"), CollectingSink())
        assert caught.value.code == "engine_dead"
    assert "engine dead" in caplog.text


def test_a_success_in_between_resets_the_count(caplog: pytest.LogCaptureFixture):
    calls = []

    def fail_twice_in_three(_: BatchPlan) -> None:
        calls.append(1)
        if len(calls) % 3:
            raise RuntimeError("boom")

    with running(Harness(FakeRunner(fail_twice_in_three), max_sequences=1)) as engine:
        sinks = [CollectingSink() for _ in range(9)]
        for index, sink in enumerate(sinks):
            engine.submit(make_request(f"r{index}", max_tokens=1), sink)
        assert all(sink.finished.wait(5) for sink in sinks)
        assert engine.status() == "ok"


def test_broken_books_kill_the_engine_loudly(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    harness = Harness()

    def broken() -> None:
        raise AssertionError("census 63 != 64")

    monkeypatch.setattr(harness.scheduler, "check_invariants", broken)
    with running(harness) as engine:
        sink = CollectingSink()
        engine.submit(make_request(), sink)
        assert sink.finished.wait(5)
        wait_until(lambda: engine.status() == "dead")
        assert "census 63 != 64" in (engine.dead_reason or "")
        assert "census 63 != 64" in caplog.text


def test_fail_all_answers_every_open_request():
    gate = Event()
    with running(Harness(FakeRunner(lambda _: gate.wait(5)))) as engine:
        sink = CollectingSink()
        engine.submit(make_request(), sink)
        engine.fail_all()
        assert sink.finished.is_set()
        assert sink.outputs[-1].finish_reason is FinishReason.ERROR
        gate.set()
        wait_until(lambda: engine.snapshot().num_running == 0)


def test_verbs_and_aborts_in_the_middle_of_everything_leave_the_books_in_order():
    """A small pool under random requests, aborts, limits and cache resets from another thread; checked when idle."""
    rng = random.Random(7)
    harness = Harness(kv_blocks=24, max_model_len=64, max_sequences=6)
    with running(harness) as engine:
        sinks: dict[str, CollectingSink] = {}
        for index in range(300):
            name = f"r{index}"
            prompt = [rng.randrange(3)] * rng.randrange(1, 40)
            sinks[name] = CollectingSink()
            engine.submit(make_request(name, prompt, max_tokens=rng.randrange(1, 20)), sinks[name])
            if rng.random() < 0.3:
                victim = f"r{rng.randrange(index + 1)}"
                engine.abort(victim)
                sinks.pop(victim, None)
            if rng.random() < 0.2:
                engine.set_limits(rng.choice([3, 16, 64]), rng.choice([1, 3, 6]))
            if rng.random() < 0.1:
                engine.reset_prefix_cache()
                engine.set_prefix_cache(rng.random() < 0.7)
            if rng.random() < 0.1:
                engine.snapshot()
                sleep(0.002)
        assert all(sink.finished.wait(20) for sink in sinks.values())
        wait_until(lambda: not harness.core.has_work)
        assert engine.dead_reason is None
        assert engine.snapshot().census.active == 0
        finished = harness.recorder.counters.finished
        wait_until(lambda: finished["length"] + finished["abort"] == 300)
    harness.scheduler.check_invariants()
    assert harness.recorder.counters.preemptions > 0
    assert harness.recorder.counters.probe_errors == 0
