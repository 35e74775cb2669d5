"""Runs one incident in a process of its own that is killed at a chosen point, and carries it on in another.

The point is the n-th write of the journal, before or after it (`writes`), or the n-th system call of a kind on the journal's
files, by strace (`calls`), which may also let calls fail (`failures`). Run as a script it forks for each attempt, so that
hundreds of deaths cost one start of Python. It prints one JSON line per attempt: how it died, and what was left in the end. The
target is a file: acts on it are lines appended to it.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from runbooks.errors import JournalError
from runbooks.response import conductor as conductor_module
from runbooks.response.journal import Journal
from tests.runbooks.response.scenes import alert, better, make_scene, slow


class FileAdmin:
    """A target whose state and history are a file each; a change is one line, written and synced at once."""

    def __init__(self, folder: Path) -> None:
        self._history = folder / "history"

    def get(self, setting: str) -> object:
        lines = self.lines()
        return int(lines[-1]) if lines else 512

    def set(self, setting: str, value: object) -> dict[str, Any]:
        with self._history.open("a") as file:
            file.write(f"{value}\n")
            file.flush()
            os.fsync(file.fileno())
        return {}

    def lines(self) -> list[str]:
        return self._history.read_text().split() if self._history.exists() else []


class DyingJournal(Journal):
    """Dies before or after its n-th write."""

    deaths = 0
    when = "before"

    @contextlib.contextmanager
    def _writing(self):
        DyingJournal.deaths -= 1
        if DyingJournal.deaths == 0 and DyingJournal.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        with super()._writing() as db:
            yield db
        if DyingJournal.deaths == 0 and DyingJournal.when == "after":
            os.kill(os.getpid(), signal.SIGKILL)


def live(folder: Path, kind: type[Journal]) -> None:
    """A whole life of the receiver: takes the alert as often as Alertmanager sends it, and carries its incident to the end."""
    admin = FileAdmin(folder)
    setattr(conductor_module, "AdminClient", lambda *_, **__: admin)  # noqa: B010 - the name there, not what it exports
    scene = make_scene(folder, "http://chat:8000", [slow(400)])
    scene.journal.close()
    scene.journal = kind(folder / "runbooks.db")
    clock_file = folder / "clock"
    if clock_file.exists():
        scene.clock.now = float(clock_file.read_text())
    scene.on_send = lambda *_: None
    scene.receive(alert())
    for number in scene.journal.open_incidents():
        incident = scene.journal.incident(number)
        # The looks of this life go on after those of the last.
        scene.looks = [slow(400), better(80)] if incident.last("act") is None else [better(80)]
        for _ in range(500):
            clock_file.write_text(str(scene.clock.now))
            if scene.carry(number).closed is not None:
                break
            scene.clock.sleep(30)
    scene.journal.close()


def persist(folder: Path) -> None:
    """One life on a disk that fails for a while: tried again, as the conductor does; keeps count of its failures."""
    for failures in range(200):
        (folder / "failures").write_text(str(failures))
        with contextlib.suppress(JournalError):
            live(folder, Journal)
            return
    raise AssertionError("it never got well")


def in_child(life: Callable[[], None], *, stopped: bool = False) -> int:
    """The process of a life; `stopped`: it waits for SIGCONT before it begins."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if stopped:
                os.kill(os.getpid(), signal.SIGSTOP)
            life()
            code = 0
        finally:
            os._exit(code)
    return pid


def ended(pid: int) -> int:
    """How it ended: 0, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def under_strace(folder: Path, life: Callable[[], None], call: str, what: str) -> int:
    """A life to which `what` happens when it enters `call` on one of the journal's files, in strace's words."""
    pid = in_child(life, stopped=True)
    os.waitpid(pid, os.WUNTRACED)
    files = [word for name in ("", "-wal", "-shm", "-journal") for word in ("-P", str(folder / f"runbooks.db{name}"))]
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:{what}"]
    tracer = subprocess.Popen(
        ["strace", "-qq", "-o", "/dev/null", *files, *inject, "-p", str(pid)], stderr=subprocess.PIPE, text=True
    )
    while "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text():
        if tracer.poll() is not None:
            os.kill(pid, signal.SIGKILL)
            raise SystemExit(f"strace: {tracer.communicate()[1]}")
        time.sleep(0.002)
    os.kill(pid, signal.SIGCONT)
    code = ended(pid)
    tracer.communicate(timeout=30)
    return code


def attempt(number: int, where: str, first_life: Callable[[Path, int], int]) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="stallscope-crash-"))
    try:
        first = first_life(folder, number)
        second = ended(in_child(lambda: live(folder, Journal))) if first else 0
        journal = Journal(folder / "runbooks.db")
        incidents = journal.incidents(10)
        kinds = [step.kind for step in journal.incident(1).steps] if incidents else []
        journal.close()
        return {
            "number": number,
            "where": where,
            "first": first,
            "second": second,
            "acts": FileAdmin(folder).lines(),
            "outcomes": [incident.outcome for incident in incidents],
            "kinds": kinds,
            "failures": int((folder / "failures").read_text()) if (folder / "failures").exists() else 0,
        }
    finally:
        shutil.rmtree(folder)


def sweep(where: str, first_life: Callable[[Path, int], int]) -> None:
    """n = 1 until a life ends untouched."""
    for number in count(1):
        result = attempt(number, where, first_life)
        print(json.dumps(result), flush=True)
        if result["first"] == 0:
            return


def at_write(when: str, folder: Path, number: int) -> int:
    DyingJournal.deaths, DyingJournal.when = number, when
    return ended(in_child(lambda: live(folder, DyingJournal)))


def at_call(call: str, folder: Path, number: int) -> int:
    return under_strace(folder, lambda: live(folder, Journal), call, f"signal=SIGKILL:when={number}")


def while_failing(call: str, error: str, folder: Path, number: int) -> int:
    """Six calls in a row fail, from the `number`-th on."""
    return under_strace(folder, lambda: persist(folder), call, f"error={error}:when={number}..{number + 5}")


def sweep_failures(call: str, error: str) -> None:
    """Windows that overlap, until two lives have met no failure."""
    untouched = 0
    for number in count(1, 4):
        result = attempt(number, call, partial(while_failing, call, error))
        print(json.dumps(result), flush=True)
        untouched = untouched + 1 if result["failures"] == 0 else 0
        if untouched == 2:
            return


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "failures":
        sweep_failures(*words)
    elif what == "calls":
        for name in words:
            sweep(name, partial(at_call, name))
    else:
        for moment in ("before", "after"):
            sweep(moment, partial(at_write, moment))
