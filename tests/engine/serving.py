"""The serve command as a real process, stopped by its own pid."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-c", "from engine.server.command import serve; serve()")
READY = re.compile(
    r"stallscope engine ready on (http://\S+) \(model (\S+), (\d+) blocks x (\d+) tokens, budget (\d+)\)"
)


@dataclass(frozen=True)
class Serving:
    url: str
    ready: re.Match[str]
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def wait(self, seconds: float) -> int:
        return self.process.wait(seconds)


def command_environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "OMP_WAIT_POLICY": "PASSIVE"}


@contextmanager
def serving(*arguments: str, seconds_to_ready: float = 90) -> Iterator[Serving]:
    """Starts `serve --port 0 ...`, waits for its ready line; whatever happens, the process is gone afterwards."""
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", *arguments],
        cwd=ROOT,
        env=command_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: queue.Queue[str] = queue.Queue()
    errors: list[str] = []
    assert process.stdout is not None and process.stderr is not None
    readers = [
        threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True),
        threading.Thread(target=errors.extend, args=(process.stderr,), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        match = READY.match(lines.get(timeout=seconds_to_ready))
        assert match is not None, "".join(errors)
        yield Serving(match.group(1), match, process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in readers:
            reader.join(5)
        process.stdout.close()
        process.stderr.close()


def _pump(stream: Iterable[str], lines: "queue.Queue[str]") -> None:
    for line in stream:
        lines.put(line)
    lines.put("")  # ended: nobody waits for more
