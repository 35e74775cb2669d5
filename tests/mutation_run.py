"""Runs the collected tests against each mutant of a list: a plugin of pytest, used by `tests.mutation`.

A mutant is in the rules alone. What a test does before it judges (steps, pages, signals, the fit: nine tenths of its time) is
made once, kept by test and call, and given to every mutant. A mutant runs in a fork, up to the first test that fails.
"""

import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from diagnose import case
from diagnose.commands import diagnose as diagnose_command
from tests import builders

NAMES, OUTCOMES = "MUTANTS_TO_RUN", "MUTANTS_OUTCOMES"
"""Environment variables: the file with the mutants' names, and the one that their outcomes are written to."""
WORKERS = 2
CPU_SECONDS = 60
SLOW_AND_PURE: tuple[Callable[..., Any], ...] = (
    builders.make_steps,
    builders.watch,
    diagnose_command._signals,
    case.make_window,
)


class Kept:
    """Results of SLOW_AND_PURE, by test and by which call of it."""

    def __init__(self) -> None:
        self.by_test: dict[str, list[Any]] = {}
        self.made: list[Any] = []
        self.replayed: Iterator[Any] | None = None

    def begin(self, test: str) -> None:
        if test in self.by_test:
            self.replayed = iter(self.by_test[test])
        else:
            self.replayed, self.made = None, self.by_test.setdefault(test, [])

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if self.replayed is not None:
                for value in self.replayed:
                    return _fresh(value)
                return function(*arguments, **options)
            value = function(*arguments, **options)
            self.made.append(_fresh(value))
            return value

        return call

    def install(self) -> None:
        """In every module that has one of the functions, under any name."""
        modules = [m for name, m in sys.modules.items() if name.partition(".")[0] in ("diagnose", "tests")]
        for function in SLOW_AND_PURE:
            wrapped = self.wrap(function)
            for module in modules:
                for name, value in list(vars(module).items()):
                    if value is function and module is not sys.modules[__name__]:
                        setattr(module, name, wrapped)


def _fresh(value: Any) -> Any:
    """With lists of its own: tests add to them."""
    if isinstance(value, list):
        return list(value)
    if is_dataclass(value) and any(isinstance(getattr(value, f.name), list) for f in fields(value)):
        value = copy(value)
        for f in fields(value):
            if isinstance(held := getattr(value, f.name), list):
                setattr(value, f.name, list(held))
    return value


class Bench:
    """The tests, in the order in which they are likely to notice something."""

    def __init__(self, items: list[pytest.Item]) -> None:
        self.items, self.kept, self.seconds = items, Kept(), dict[str, float]()

    def passes(self, item: pytest.Item) -> bool:
        self.kept.begin(item.nodeid)
        return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))

    def warm_up(self) -> list[str]:
        """Tests that fail without a mutant."""
        self.kept.install()
        failing = []
        for item in self.items:
            started = time.process_time()
            if not self.passes(item):
                failing.append(item.nodeid)
            self.seconds[item.nodeid] = time.process_time() - started
        return failing

    def in_order(self, rule: str) -> list[pytest.Item]:
        return sorted(self.items, key=lambda item: (rule not in item.nodeid, self.seconds[item.nodeid]))

    def notices(self, mutant: str) -> str:
        """`noticed`, `survived` or `broken`, for a fork that ended otherwise."""
        child = os.fork()
        if child == 0:
            code = 2
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
                os.environ["MUTANT_UNDER_TEST"] = mutant
                rule = mutant.rpartition(".")[0].rpartition(".")[2]
                code = int(not all(map(self.passes, self.in_order(rule))))
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return "noticed"  # it never ends
        return {0: "survived", 1: "noticed"}.get(os.WEXITSTATUS(status), "broken")

    def survives_itself(self) -> bool:
        """Whether a fork passes without a mutant; it says which tests do not."""
        child = os.fork()
        if child == 0:
            failing = [item.nodeid for item in self.items if not self.passes(item)]
            os.write(2, "\n".join(failing).encode())
            os._exit(int(bool(failing)))
        _, status = os.waitpid(child, 0)
        return status == 0

    def work(self, mutants: list[str]) -> int:
        """A process that runs them one after the other: its id."""
        worker = os.fork()
        if worker == 0:
            try:
                with Path(os.environ[OUTCOMES]).open("a", encoding="utf-8", buffering=1) as outcomes:
                    for mutant in mutants:
                        outcomes.write(f"{self.notices(mutant)} {mutant}\n")
            finally:
                os._exit(0)
        return worker


def pytest_runtestloop(session: pytest.Session) -> bool:
    if session.testsfailed:
        raise pytest.UsageError("the tests cannot be collected")
    bench = Bench(session.items)
    if failing := bench.warm_up():
        raise pytest.UsageError(f"fails without a mutant: {', '.join(failing)}")
    gc.freeze()
    if not bench.survives_itself():
        raise pytest.UsageError("a fork fails without a mutant: each of them would be noticed")
    mutants = Path(os.environ[NAMES]).read_text(encoding="utf-8").split()
    workers = [bench.work(mutants[first::WORKERS]) for first in range(WORKERS)]
    for worker in workers:
        os.waitpid(worker, 0)
    return True
