"""The real program in a real terminal, against a real server that dies and comes back."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runbooks.drills.engine_process import EngineProcess
from runbooks.drills.load import Load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (apt-get install tmux)"),
]
ROOT = Path(__file__).resolve().parents[2]
_ENDED = "ended with "


class Tmux:
    def __init__(self, name: str, command: list[str]) -> None:
        self._name = name
        setting = "unset COLUMNS LINES && PYTHONPATH=. TERM=xterm-256color"
        # A shell waits for the program and tells of its end: tmux 3.3 now and then leaves an ended pane's process a zombie.
        told = f"echo {_ENDED}$?; exec sleep 600"
        environment = f"cd {shlex.quote(str(ROOT))} && {setting} {shlex.join(command)}; {told}"
        self("new-session", "-d", "-x", "100", "-y", "30", environment)

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._name, *arguments], capture_output=True, text=True, check=False, timeout=20
        )
        return done.stdout

    def screen(self) -> str:
        return self("capture-pane", "-p")

    def exit_status(self, seconds: float = 30.0) -> str:
        """Of the program, once it has ended."""
        return self.until(_ENDED, seconds=seconds).partition(_ENDED)[2].split()[0]

    def until(self, *words: str, seconds: float = 60.0) -> str:
        deadline = time.monotonic() + seconds
        while not all(word in (screen := self.screen()) for word in words):
            assert time.monotonic() < deadline, f"{words} did not appear in:\n{screen}"
            time.sleep(0.1)
        return screen


@contextmanager
def terminal(*arguments: str) -> Iterator[Tmux]:
    tmux = Tmux(f"stallscope-{os.getpid()}", [sys.executable, "-m", "diagnose.cli", "dashboard", *arguments])
    try:
        yield tmux
    finally:
        tmux("kill-server")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_server_that_dies_and_comes_back():
    """Live, then lost with the time since, then live again with the restart named; keys work all the while."""
    port = free_port()
    options = ["--model", "tiny", "--port", str(port)]
    with terminal(f"http://127.0.0.1:{port}", "--interval", "500ms") as tmux:
        tmux.until("cannot be reached", "connection refused")
        with EngineProcess(options) as engine, Load(engine.url, streams=2, stream_tokens=1500):
            tmux.until("● live", "tiny", "budget")
            tmux.until("-> ")  # a decision: it has been diagnosed
            tmux("send-keys", "2")
            tmux.until("step duration")
            tmux("send-keys", "5")
            tmux.until("requests in flight", "where its time went", "decode")
            tmux("send-keys", "1")
            os.kill(engine.pid, signal.SIGKILL)
            tmux.until("lost for", "last answer")
            tmux.until("hard_failure")
        with EngineProcess(options):
            screen = tmux.until("restarted 1x")
            assert "lost" not in screen
            tmux.until("idle")
        tmux("send-keys", "q")
        assert tmux.exit_status() == "0"
