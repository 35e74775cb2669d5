"""What the dashboard costs: `python -m tests.benchmarks.dashboard_cost`. Prints a table and asserts nothing.

The real program runs in a pseudo-terminal of 160x50 against a server of its own that plays a prepared engine of 100 steps a
second. First paint is from the start of the process to the first page on the terminal, best of several; CPU time and resident
memory are the process's own, from /proc. With --soak it runs longer and shows how the memory moves.
"""

import argparse
import compileall
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.builders import Engine, make_steps, with_prefill
from tests.diagnose.fake_target import Answer, FakeTarget, kept_alive

COLUMNS, LINES = 160, 50
STEPS_PER_TICK = 50
TICK_SECONDS = 0.5
PAINTS = 5
Row = tuple[str, float, str]


class Tick(NamedTuple):
    page: str
    steps: list[str]
    """Encoded records of this tick."""
    first_id: int


def prepare(ticks: int) -> list[Tick]:
    """An engine's answers, made once: the server must not be what is measured."""
    engine, found, clock = Engine(), [], 1_000_000_000
    for number in range(ticks):
        first = number * STEPS_PER_TICK
        records = make_steps(STEPS_PER_TICK, with_prefill(10, 256), first_id=first, start_ns=clock, seed=number)
        clock = records[-1].end_ns
        engine.run(records)
        engine.requests(2, 0.2, 0.01)
        found.append(Tick(engine.page(), engine.steps(records).splitlines(keepends=True)[1:], first))
    return found


class Player:
    """Answers by the time since it began; every target shows the same engine."""

    def __init__(self, ticks: list[Tick]) -> None:
        self._ticks, self._start = ticks, time.monotonic()

    def _now(self) -> int:
        return min(len(self._ticks) - 1, int((time.monotonic() - self._start) / TICK_SECONDS))

    def metrics(self) -> Answer:
        return kept_alive(self._ticks[self._now()].page)

    def steps(self, since: int) -> Answer:
        now = self._now()
        shown = [tick for tick in self._ticks[: now + 1] if tick.first_id >= since]
        next_id = (now + 1) * STEPS_PER_TICK
        header = {"stallscope_steps": 1, "engine_id": "engine-1", "next_id": next_id, "lost": 0,
                  "monotonic_ns": time.perf_counter_ns(), "unix_ns": time.time_ns()}  # fmt: skip
        return kept_alive(json.dumps(header) + "\n" + "".join(line for tick in shown for line in tick.steps))


def serve(count: int, seconds: float) -> None:
    """Child process: prints the URLs, then serves until it is ended."""
    player = Player(prepare(int(seconds / TICK_SECONDS) + 20))
    targets = [FakeTarget(player.metrics, player.steps).start() for _ in range(count)]
    print(" ".join(target.url for target in targets), flush=True)
    threading.Event().wait()


@contextmanager
def servers(count: int, seconds: float) -> Iterator[list[str]]:
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.dashboard_cost",
        "--serve",
        str(count),
        "--seconds",
        str(seconds),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()
    finally:
        process.kill()
        process.wait()


class Terminal:
    """The program in a pseudo-terminal, read all the time so that it never waits for its reader."""

    def __init__(self, arguments: list[str]) -> None:
        self.started = time.perf_counter()
        self.first_paint: float | None = None
        self.written = 0
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed, where bytecode is compiled
            os.execv(sys.executable, [sys.executable, "-m", "diagnose.cli", "dashboard", *arguments])
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        seen = b""
        while True:
            select.select([self._fd], [], [])
            try:
                data = os.read(self._fd, 65536)
            except OSError:  # the other end closed
                return
            self.written += len(data)
            if self.first_paint is None:
                seen += data
                if b"Overview" in seen and b"help" in seen:
                    self.first_paint = time.perf_counter() - self.started

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def compile_rooms() -> None:
    for room in ("probes", "diagnose", "runbooks", "dashboard"):
        compileall.compile_dir(str(Path(__file__).parents[2] / room), quiet=1)


def first_paint() -> list[Row]:
    walls, cpus = [], []
    compile_rooms()
    with servers(1, 60) as urls:
        for _ in range(PAINTS):
            terminal = Terminal(urls)
            deadline = time.monotonic() + 20
            while terminal.first_paint is None and time.monotonic() < deadline:
                time.sleep(0.005)
            cpus.append(terminal.cpu_seconds())
            walls.append(terminal.first_paint or float("inf"))
            terminal.stop()
    return [
        ("first paint, one target", min(walls) * 1e3, "ms wall"),
        ("first paint, one target", min(cpus) * 1e3, "ms CPU"),
    ]


def steady(count: int, interval: str, seconds: float, warm: float) -> list[Row]:
    """CPU and memory after `warm` seconds, for `seconds`."""
    name = f"{count} target{'s' if count > 1 else ''}, every {interval}"
    with servers(count, warm + seconds + 60) as urls:
        terminal = Terminal([*urls, "--interval", interval])
        time.sleep(warm)
        cpu, rss, written, started = terminal.cpu_seconds(), terminal.rss_mib(), terminal.written, time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - started
        rows: list[Row] = [
            (f"{name}: CPU", (terminal.cpu_seconds() - cpu) / elapsed * 100, "% of a core"),
            (f"{name}: RSS", terminal.rss_mib(), "MiB"),
            (f"{name}: RSS moved in {elapsed:.0f} s", terminal.rss_mib() - rss, "MiB"),
            (f"{name}: to the terminal", (terminal.written - written) / elapsed / 1024, "KiB/s"),
        ]
        terminal.stop()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument(
        "--soak", type=float, default=140.0, help="seconds to watch one target: some diagnoses long [140]"
    )
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.seconds)
        return
    rows = [*first_paint(), *steady(1, "500ms", options.soak, warm=20.0), *steady(100, "5s", 30.0, warm=20.0)]
    for name, value, unit in rows:
        print(f"{name:<50}{value:>10.1f} {unit}")
    if options.json:
        options.json.write_text(json.dumps([{"name": n, "value": v, "unit": u} for n, v, u in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
