"""The host probe: what the threads of a local server do, without instruments in it.

Two sources for one window. Linux counts for every thread the time on a core and the time it waited for one. py-spy, where it is
installed (`stallscope[host]`), samples the Python stacks: half of the window all threads, the other half those that hold
the interpreter lock. It reads the process without stopping it, so that now and then a stack is torn and left out.
"""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread
from time import monotonic

from probes.extras import not_installed
from probes.folded import FoldedStack, parse_folded
from probes.host_profile import HostProfile, ThreadUse
from probes.proc_threads import ThreadCounters, process_exists, thread_counters
from probes.stack_patterns import Activity, Role, activity_of, role_of

SAMPLES_PER_SECOND = 50
_STOP_SECONDS = 10.0
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class HostProbeError(Exception):
    """The process cannot be looked at; the text says why."""


class HostProbe:
    """Looks at process `pid` and its children for `seconds`: `start`, then `finish` when the window is over."""

    def __init__(self, pid: int, seconds: float) -> None:
        """Raises HostProbeError when there is no such process here."""
        if not process_exists(pid):
            where = "on this machine" if sys.platform == "linux" else "to be seen: the host probe reads Linux's /proc"
            raise HostProbeError(f"no process {pid} {where}")
        self._pid = pid
        self._seconds = seconds
        self._stop = Event()
        self._limits: list[str] = []
        self._stacks: list[FoldedStack] = []
        self._gil: list[FoldedStack] = []
        self._gil_scale = 1.0
        """Length of the second half against the first one's."""
        self._thread = Thread(target=self._sample, name="host-probe", daemon=True)
        self._before: dict[int, ThreadCounters] = {}
        self._began = 0.0

    def start(self) -> None:
        self._before = thread_counters(self._pid)
        self._began = monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Ends sampling, early if need be, and waits until py-spy has let go of the process."""
        self._stop.set()
        self._thread.join()

    def finish(self) -> HostProfile:
        """Stops, and says what was seen."""
        after = thread_counters(self._pid)
        length = monotonic() - self._began
        self.stop()
        if not process_exists(self._pid):
            self._limits.append(f"process {self._pid} ended in the window")
        threads = _uses(self._pid, length, self._before, after, self._stacks, self._gil, self._gil_scale)
        return HostProfile(pid=self._pid, seconds=length, threads=threads, limits=tuple(self._limits))

    def _sample(self) -> None:
        py_spy = find_py_spy()
        if py_spy is None:
            self._limits.append(f"stacks were not sampled: {not_installed('py-spy', 'host')}")
            return
        half = self._seconds / 2
        began = monotonic()
        self._stacks = self._record(py_spy, half, "--idle")
        first = monotonic() - began
        if self._stacks and not self._stop.is_set():
            began = monotonic()
            self._gil = self._record(py_spy, half, "--gil")
            self._gil_scale = (monotonic() - began) / first

    def _record(self, py_spy: str, seconds: float, which: str) -> list[FoldedStack]:
        """One run of py-spy, ended after `seconds` by the signal that makes it write what it has."""
        with tempfile.TemporaryDirectory(prefix="stallscope-") as folder:
            output = Path(folder) / "stacks"
            command = [py_spy, "record", "--format", "raw", "--threads", "--subprocesses", "--nonblocking", which]
            command += ["--rate", str(SAMPLES_PER_SECOND), "--pid", str(self._pid), "--output", str(output)]
            # A session of its own: an interrupt at the keyboard is for us, who then end it in order.
            process = subprocess.Popen(  # noqa: S603 - a fixed command and a number
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            complaint = self._end_after(process, seconds)
            text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        if not text and complaint:
            self._limits.append(f"stacks were not sampled: {explain(complaint, self._pid)}")
        return parse_folded(text)

    def _end_after(self, process: "subprocess.Popen[str]", seconds: float) -> str:
        """What it said on stderr."""
        deadline = monotonic() + seconds
        while process.poll() is None and monotonic() < deadline and not self._stop.wait(0.02):
            pass
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=_STOP_SECONDS)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[1] or f"py-spy did not end within {_STOP_SECONDS:g} s"


def find_py_spy() -> str | None:
    """On the path, or beside the interpreter that runs this."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))


def explain(complaint: str, pid: int) -> str:
    """py-spy's complaint in one sentence with what to do."""
    text = _ANSI.sub("", complaint)
    if re.search(r"permission denied|operation not permitted|EPERM|EACCES", text, re.IGNORECASE):
        return (
            f"py-spy may not look into process {pid}: run stallscope as root or as the parent of the server; where "
            "kernel.yama.ptrace_scope is 1 set it to 0, and give a container the capability SYS_PTRACE"
        )
    if "No such file or directory" in text or "No such process" in text:
        return f"process {pid} is gone"
    if "python version" in text or "Failed to find" in text:
        return f"process {pid} runs no Python that py-spy can read"
    lines = [line.removeprefix("Error: ").strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith("py-spy>")), "py-spy gave no sample")


def _uses(
    pid: int,
    seconds: float,
    before: dict[int, ThreadCounters],
    after: dict[int, ThreadCounters],
    stacks: Sequence[FoldedStack],
    gil: Sequence[FoldedStack],
    gil_scale: float,
) -> tuple[ThreadUse, ...]:
    """One for every thread that was there at the end, or was sampled."""
    samples: Counter[int] = Counter()
    for stack in stacks:
        samples[stack.tid] += stack.samples
    # The thread that was there all along was seen in every sample.
    rounds = max(samples.values(), default=0) * gil_scale
    uses = []
    for tid in sorted(after.keys() | samples.keys()):
        mine = [stack for stack in stacks if stack.tid == tid]
        now = after.get(tid)
        named = next((stack.thread for stack in mine if stack.thread), now.name if now is not None else "")
        held = sum(stack.samples for stack in gil if stack.tid == tid)
        run, delay, preempted = _growth(before.get(tid), now, seconds)
        uses.append(
            ThreadUse(
                pid=now.pid if now is not None else mine[0].pid or pid,
                tid=tid,
                name=named,
                role=_role(mine),
                run_share=run,
                delay_share=delay,
                gil_share=min(1.0, held / rounds) if rounds and gil else None,
                preempted_per_second=preempted,
                activities=_activities(mine, samples[tid]),
            )
        )
    return tuple(uses)


def _growth(
    before: ThreadCounters | None, now: ThreadCounters | None, seconds: float
) -> tuple[float, float, float] | tuple[None, None, None]:
    """Share on a core, share waiting for one, preemptions per second. A thread that began in the window began at zero."""
    if now is None or seconds <= 0:
        return None, None, None
    run, delay, preempted = (before.run_ns, before.delay_ns, before.preempted) if before else (0, 0, 0)
    window = seconds * 1e9
    return (now.run_ns - run) / window, (now.delay_ns - delay) / window, (now.preempted - preempted) / seconds


def _role(stacks: Sequence[FoldedStack]) -> Role:
    """The role that most of the samples show."""
    seen: Counter[Role] = Counter()
    for stack in stacks:
        role = role_of(stack.frames)
        if role is not Role.OTHER:
            seen[role] += stack.samples
    return seen.most_common(1)[0][0] if seen else Role.OTHER


def _activities(stacks: Sequence[FoldedStack], total: int) -> dict[Activity, float]:
    sums: Counter[Activity] = Counter()
    for stack in stacks:
        sums[activity_of(stack.frames)] += stack.samples
    return {activity: count / total for activity, count in sums.most_common()}
