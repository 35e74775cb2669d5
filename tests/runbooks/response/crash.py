"""Runs one incident in a process of its own that is killed at a chosen write of the journal, and carries it on in another.

Run as a script it forks for each attempt, so that hundreds of deaths cost one start of Python. It prints one JSON line per
attempt: how often it was killed, and what was left in the end. The target is a file: acts on it are lines appended to it.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
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
            scene.clock.sleep(5)
    scene.journal.close()


def in_child(folder: Path, kind: type[Journal]) -> int:
    """How it ended: 0, or minus the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            live(folder, kind)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def attempt(number: int, when: str) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="stallscope-crash-"))
    try:
        DyingJournal.deaths, DyingJournal.when = number, when
        first = in_child(folder, DyingJournal)
        second = in_child(folder, Journal) if first else 0
        journal = Journal(folder / "runbooks.db")
        incidents = journal.incidents(10)
        kinds = [step.kind for step in journal.incident(1).steps] if incidents else []
        journal.close()
        return {
            "number": number,
            "when": when,
            "first": first,
            "second": second,
            "acts": FileAdmin(folder).lines(),
            "outcomes": [incident.outcome for incident in incidents],
            "kinds": kinds,
        }
    finally:
        shutil.rmtree(folder)


def main() -> None:
    for when in ("before", "after"):
        number, killed = 1, True
        while killed:
            result = attempt(number, when)
            print(json.dumps(result), flush=True)
            killed, number = result["first"] != 0, number + 1


def journal_for_faults(folder: Path) -> None:
    """One life under strace; a failing disk is met by trying again, as the conductor does."""
    for _ in range(200):
        try:
            live(folder, Journal)
        except JournalError as error:
            print(error, flush=True)
        else:
            return
    sys.exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        journal_for_faults(Path(sys.argv[1]))
    else:
        main()
