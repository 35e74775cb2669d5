"""Hooks never come between a server and its own code: not when they raise, not when they are taken off."""

import logging

import pytest

from probes.vllm.hooks import Hooks


class Server:
    def __init__(self) -> None:
        self.calls: list[object] = []

    def work(self, first: int, second: int = 2) -> int:
        self.calls.append((first, second))
        return first + second

    def fail(self) -> None:
        raise RuntimeError("the server's own")


def broken(*_: object) -> None:
    raise ValueError("the probe's")


def test_before_sees_the_arguments_and_after_the_result():
    server, hooks, seen = Server(), Hooks(), []
    hooks.add(server, "work", before=lambda *args: seen.append(args), after=lambda *args: seen.append(args))
    assert server.work(1, second=5) == 6
    assert seen == [(1,), (6, 1)]
    assert server.calls == [(1, 5)], "called once, as it was asked to be"


def test_an_instance_is_hooked_alone():
    hooked, other, hooks, seen = Server(), Server(), Hooks(), []
    hooks.add(hooked, "work", before=lambda *_: seen.append(1))
    other.work(1)
    assert seen == []


def test_the_servers_exceptions_pass_through_and_are_not_the_probes():
    server, hooks, seen = Server(), Hooks(), []
    hooks.add(server, "fail", after=lambda *_: seen.append(1))
    with pytest.raises(RuntimeError, match="the server's own"):
        server.fail()
    assert seen == []
    assert hooks.errors == 0


def test_a_hook_that_raises_is_counted_and_taken_off_after_some(caplog: pytest.LogCaptureFixture):
    server, told = Server(), []
    hooks = Hooks(max_errors=3)
    hooks.on_error = lambda: told.append(1)
    hooks.add(server, "work", before=broken)
    with caplog.at_level(logging.WARNING, "vllm.stallscope"):
        assert [server.work(n) for n in range(5)] == [2, 3, 4, 5, 6]
    assert hooks.errors == 3
    assert hooks.off_reason is not None and "ValueError: the probe's" in hooks.off_reason
    assert told == [1, 1, 1]
    assert "work" not in vars(server), "the server runs its own code again"
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[1].startswith("stallscope: the probe is off until the next start: 3 of its hooks failed")


def test_a_vital_hook_may_not_fail_once():
    server, hooks = Server(), Hooks(max_errors=100)
    hooks.add(server, "work", after=broken, vital=True)
    hooks.add(server, "fail", before=lambda: None)
    assert server.work(1) == 3
    assert hooks.off_reason is not None
    assert vars(server).keys() == {"calls"}, "all hooks come off, not just that one"


def test_hooks_of_a_class_come_off_with_the_original_in_place():
    original, hooks, seen = Server.work, Hooks(), []
    hooks.add(Server, "work", before=lambda server, *_: seen.append(server))
    hooks.add(Server, "work", before=lambda server, *_: seen.append(server))
    server = Server()
    server.work(1)
    assert seen == [server, server]
    hooks.remove()
    assert Server.work is original
