"""An exporter's thread: a last delivery at the end, failures counted and told once, nobody waits for one that hangs."""

import logging
import threading
from collections.abc import Callable

import pytest

from probes.exports import ExportCounters, ExportThread, close_all


class Scripted:
    """Calls a function at each export."""

    def __init__(self, act: Callable[[int], None]) -> None:
        self.counters = ExportCounters("scripted")
        self.calls = 0
        self.closed = False
        self._act = act

    def export(self) -> None:
        self.calls += 1
        self._act(self.calls)
        self.counters.items += 1

    def close(self) -> None:
        self.closed = True


def test_there_is_a_last_export_at_the_end():
    exporter = Scripted(lambda call: None)
    thread = ExportThread(exporter, 3600)
    thread.start()
    close_all([thread], 10)
    assert (exporter.calls, exporter.closed) == (1, True)


def test_failures_are_counted_and_told_once_per_change(caplog: pytest.LogCaptureFixture):
    enough = threading.Event()

    def fail_twice(call: int) -> None:
        if call >= 4:
            enough.set()
        if call in (1, 2):
            raise OSError(28, "No space left on device")

    exporter = Scripted(fail_twice)
    thread = ExportThread(exporter, 0.001)
    with caplog.at_level(logging.INFO, logger="stallscope.exports"):
        thread.start()
        assert enough.wait(10)
        close_all([thread], 10)
    assert exporter.counters.failures == 2
    assert exporter.counters.items == exporter.calls - 2
    assert [record.getMessage() for record in caplog.records] == [
        "scripted: fails, the engine goes on without it: [Errno 28] No space left on device",
        "scripted: works again",
    ]


def test_one_that_hangs_is_left_behind_and_holds_nobody_up():
    let_go, began = threading.Event(), threading.Event()

    def hang(call: int) -> None:
        began.set()
        let_go.wait(30)

    hanging, quick = Scripted(hang), Scripted(lambda call: None)
    threads = [ExportThread(hanging, 0.001), ExportThread(quick, 3600)]
    for thread in threads:
        thread.start()
    assert began.wait(10)
    close_all(threads, 0.1)
    assert threads[1].join(10), "its last export came, whatever the other one does"
    assert quick.closed and not hanging.closed
    let_go.set()
    assert threads[0].join(10)


def test_one_that_cannot_be_closed_is_told(caplog: pytest.LogCaptureFixture):
    exporter = Scripted(lambda call: None)

    def fail() -> None:
        raise OSError(5, "Input/output error")

    exporter.close = fail  # type: ignore[method-assign]
    thread = ExportThread(exporter, 3600)
    thread.start()
    close_all([thread], 10)
    assert (exporter.counters.items, exporter.counters.failures) == (1, 1)
    assert "scripted: was not closed in order: [Errno 5] Input/output error" in caplog.text


def test_one_that_never_started_needs_no_waiting():
    close_all([ExportThread(Scripted(lambda call: None), 1.0)], 0.0)
