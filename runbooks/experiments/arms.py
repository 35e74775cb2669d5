"""The two sides of a comparison: one engine with a knob, two servers, or two launch commands."""

import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from diagnose.errors import DiagnoseError
from diagnose.sources.http import Endpoint
from runbooks.admin import VERBS, AdminClient
from runbooks.errors import AdminError, ExperimentError
from runbooks.experiments.processes import find, is_running, owner_of

NAMES = ("A", "B")


class ArmCrashed(ExperimentError):
    """The server of an arm ended during the comparison: an outcome, not a mistake in how it was asked for."""

    def __init__(self, arm: str, text: str) -> None:
        super().__init__(f"arm {arm} crashed: {text}")
        self.arm = arm


class Arms(ABC):
    """`with arms:` puts back on the way out what was changed."""

    labels: Mapping[str, str]
    """A and B -> what each is."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def enter(self, arm: str) -> str:
        """Makes the arm current and gives its URL. Raises ExperimentError."""

    @abstractmethod
    def check(self, arm: str) -> None:
        """Raises ArmCrashed when its server is gone."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    @abstractmethod
    def close(self, error: BaseException | None) -> None:
        """Puts back what was changed; `error` is what ended the comparison, if anything did."""


class KnobArms(Arms):
    """One stallscope engine whose admin surface changes one setting between blocks; the old value is put back at the end."""

    def __init__(self, url: str, knob: str, values: tuple[str, str], token: str) -> None:
        """Raises ExperimentError when the knob or a value is not one that the engine takes."""
        if knob not in VERBS:
            raise ExperimentError(f"--knob {knob}: not one of {', '.join(VERBS)}")
        self._url, self._knob, self._admin = url, knob, AdminClient(url, token)
        self._values = {name: _knob_value(knob, text) for name, text in zip(NAMES, values, strict=True)}
        self._before: object = None
        self.labels = {name: f"{knob}={text}" for name, text in zip(NAMES, values, strict=True)}

    def __enter__(self) -> Self:
        with _as_experiment_error():
            self._before = self._admin.get(self._knob)
        return self

    def enter(self, arm: str) -> str:
        with _as_experiment_error():
            self._admin.set(self._knob, self._values[arm])
            self._admin.reset_prefix_cache()
        return self._url

    def check(self, arm: str) -> None:
        try:
            Endpoint(self._url).get("/health")
        except DiagnoseError as error:
            raise ArmCrashed(arm, str(error)) from None

    def close(self, error: BaseException | None) -> None:
        try:
            self._admin.set(self._knob, self._before)
        except AdminError as failure:
            note = f"{self._knob} could not be put back to {self._before}: {failure}"
            if error is None:
                raise ExperimentError(note) from None
            error.add_note(note)


@contextmanager
def _as_experiment_error() -> Iterator[None]:
    try:
        yield
    except AdminError as error:
        raise ExperimentError(str(error)) from None


def _knob_value(knob: str, text: str) -> object:
    if knob == "prefix_cache":
        if text not in ("true", "false"):
            raise ExperimentError(f"--knob {knob}: {text!r} is neither true nor false")
        return text == "true"
    if not text.isdecimal():
        raise ExperimentError(f"--knob {knob}: {text!r} is not a number")
    return int(text)


class UrlArms(Arms):
    """Two servers that are running already. Nothing of them is changed."""

    def __init__(self, first: str, second: str) -> None:
        self._urls = dict(zip(NAMES, (first, second), strict=True))
        self.labels = self._urls

    def enter(self, arm: str) -> str:
        return self._urls[arm]

    def check(self, arm: str) -> None:
        try:
            Endpoint(self._urls[arm]).get("/v1/models")
        except DiagnoseError as error:
            raise ArmCrashed(arm, str(error)) from None

    def close(self, error: BaseException | None) -> None:
        pass


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _refuse_foreign(arm: str, launched: int, port: int) -> None:
    """Raises ExperimentError when who answers was there before the launch, as a server that took the port meanwhile is.

    What the launched process started itself may be in a session of its own, or a container's: those are younger.
    """
    owner, leader = owner_of(port), find(launched)
    if owner is not None and leader is not None and owner.session != launched and owner.started < leader.started:
        raise ExperimentError(
            f"arm {arm}: port {port} is answered by process {owner.pid} ({owner.name}), which this launch did not start"
        )


class LaunchArms(Arms):
    """Two commands with `{port}` in them. Each arm's server is started for its block and stopped after it, or kept running.

    Kept running, both need the machine's memory at once; a restart for every block costs its start-up time.
    """

    def __init__(self, first: str, second: str, *, keep_running: bool, ready_seconds: float = 600.0) -> None:
        for name, command in zip(NAMES, (first, second), strict=True):
            if "{port}" not in command:
                raise ExperimentError(f"--launch-{name.lower()}: write {{port}} where the command takes its port")
        self._commands = dict(zip(NAMES, (first, second), strict=True))
        self._keep, self._ready_seconds = keep_running, ready_seconds
        self._running: dict[str, tuple[subprocess.Popen[bytes], str]] = {}
        self._logs = tempfile.TemporaryDirectory(prefix="stallscope-arms-")
        self.labels = self._commands

    def enter(self, arm: str) -> str:
        if not self._keep:
            for other in [name for name in self._running if name != arm]:
                self._stop(other)
        if arm not in self._running:
            self._start(arm)
        return self._running[arm][1]

    def check(self, arm: str) -> None:
        process, _ = self._running[arm]
        if (code := process.poll()) is not None:
            raise ArmCrashed(arm, f"exit code {code}; {self._log_tail(arm)}")

    def _start(self, arm: str) -> None:
        port = _free_port()
        command = [word.replace("{port}", str(port)) for word in shlex.split(self._commands[arm])]
        with self._log(arm).open("wb") as log:
            try:
                # A group of its own: a server's workers are stopped with it.
                process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # noqa: S603
            except OSError as error:
                raise ExperimentError(f"--launch-{arm.lower()}: {command[0]}: {error.strerror or error}") from None
        url = f"http://127.0.0.1:{port}"
        self._running[arm] = process, url
        deadline = time.monotonic() + self._ready_seconds
        while True:
            self.check(arm)
            try:
                Endpoint(url).get("/v1/models")
            except DiagnoseError:
                if time.monotonic() > deadline:
                    raise ExperimentError(
                        f"arm {arm} did not get ready within {self._ready_seconds:g} s; {self._log_tail(arm)}"
                    ) from None
                time.sleep(0.5)
            else:
                _refuse_foreign(arm, process.pid, port)
                return

    def _log(self, arm: str) -> Path:
        return Path(self._logs.name) / f"{arm}.log"

    def _log_tail(self, arm: str) -> str:
        lines = self._log(arm).read_text(errors="replace").strip().splitlines()
        return "its last words: " + (" | ".join(lines[-3:]) or "none")

    def _stop(self, arm: str) -> None:
        """All of its group: what was launched may be a shell that ends before its server does."""
        process, _ = self._running.pop(arm)
        for sign, patience in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            deadline = time.monotonic() + patience
            while (process.poll() is None or is_running(process.pid)) and time.monotonic() < deadline:
                time.sleep(0.05)
            if process.returncode is not None and not is_running(process.pid):
                return

    def close(self, error: BaseException | None) -> None:
        for arm in list(self._running):
            self._stop(arm)
        self._logs.cleanup()
