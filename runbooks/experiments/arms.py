"""The two sides of a comparison: one engine with a knob, two servers, or two launch commands."""

import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import urllib3
from urllib3.exceptions import HTTPError

from diagnose.errors import DiagnoseError
from diagnose.sources.http import Endpoint
from runbooks.errors import ExperimentError

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

    KNOBS: Mapping[str, tuple[str, str]] = {
        "max_batched_tokens": ("limits", "max_batched_tokens"),
        "max_sequences": ("limits", "max_sequences"),
        "prefix_cache": ("prefix_cache", "enabled"),
    }
    """Knob -> admin verb and the field of its body."""

    def __init__(self, url: str, knob: str, values: tuple[str, str], token: str) -> None:
        """Raises ExperimentError when the knob or a value is not one that the engine takes."""
        if knob not in self.KNOBS:
            raise ExperimentError(f"--knob {knob}: not one of {', '.join(self.KNOBS)}")
        self._url, self._knob, self._token = url, knob, token
        self._values = {name: _knob_value(knob, text) for name, text in zip(NAMES, values, strict=True)}
        self._before: object = None
        self.labels = {name: f"{knob}={text}" for name, text in zip(NAMES, values, strict=True)}

    def __enter__(self) -> Self:
        self._before = self._state()[self._knob]
        return self

    def enter(self, arm: str) -> str:
        self._set(self._values[arm])
        self._post("prefix_cache/reset", {})
        return self._url

    def check(self, arm: str) -> None:
        try:
            Endpoint(self._url).get("/health")
        except DiagnoseError as error:
            raise ArmCrashed(arm, str(error)) from None

    def close(self, error: BaseException | None) -> None:
        try:
            self._set(self._before)
        except ExperimentError as failure:
            note = f"{self._knob} could not be put back to {self._before}: {failure}"
            if error is None:
                raise ExperimentError(note) from None
            error.add_note(note)

    def _set(self, value: object) -> None:
        verb, field = self.KNOBS[self._knob]
        found = self._post(verb, {field: value})[self._knob]
        if found != value:
            raise ExperimentError(f"{self._url}: {self._knob} is {found} after it was set to {value}")

    def _state(self) -> dict[str, Any]:
        return self._call("GET", "state", None)

    def _post(self, verb: str, body: dict[str, object]) -> dict[str, Any]:
        return self._call("POST", verb, body)

    def _call(self, method: str, verb: str, body: dict[str, object] | None) -> dict[str, Any]:
        url = f"{self._url}/admin/{verb}"
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            answer = urllib3.request(method, url, json=body, headers=headers, timeout=30.0, retries=False)
        except HTTPError as error:
            raise ExperimentError(f"{url}: does not answer ({type(error).__name__})") from None
        if answer.status != 200:
            hint = "; is the engine served with --admin-token-file?" if answer.status in (401, 404) else ""
            raise ExperimentError(
                f"{url}: answered HTTP {answer.status} {answer.data[:150].decode(errors='replace')}{hint}"
            )
        state: dict[str, Any] = answer.json()
        return state


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
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
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
                return

    def _log(self, arm: str) -> Path:
        return Path(self._logs.name) / f"{arm}.log"

    def _log_tail(self, arm: str) -> str:
        lines = self._log(arm).read_text(errors="replace").strip().splitlines()
        return "its last words: " + (" | ".join(lines[-3:]) or "none")

    def _stop(self, arm: str) -> None:
        process, _ = self._running.pop(arm)
        for sign, patience in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0)):
            if process.poll() is None:
                os.killpg(process.pid, sign)
            try:
                process.wait(timeout=patience)
            except subprocess.TimeoutExpired:
                continue
            return

    def close(self, error: BaseException | None) -> None:
        for arm in list(self._running):
            self._stop(arm)
        self._logs.cleanup()
