"""Our policy against the peers' own code on the same traces, in one interleaved run:

    python -m tests.benchmarks.policy_vs_peers --env vllm=.venv-peers/vllm --env sglang=.venv-peers/sglang ...

Every subject is a process of its own, under its own interpreter. Rounds go round: ours, the first peer, the second, ...,
ours again, all on one core; so that a machine that is now fast and now slow is so for all alike. What is claimed are ratios,
each taken within one round; the first round warms up and is dropped. Thread CPU time, no garbage collection while the clock
runs.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.peers.cases import CASES, FLAT, GOALS, SIZES, Measured, Row

ROOT = Path(__file__).resolve().parents[2]
OURS = "ours"


@dataclass(frozen=True)
class Kind:
    name: str
    environment: str
    module: str
    options: tuple[str, ...] = ()


PEERS = (
    Kind("vllm", "vllm", "vllm"),
    Kind("nano", "nano", "nano"),
    Kind("sglang", "sglang", "sglang", ("radix",)),
    Kind("sglang-python", "sglang", "sglang", ("python",)),
    Kind("sglang-rust", "sglang", "sglang", ("rust",)),
)
WITHOUT_A_PACKAGE = {"mini-sglang": "no package of it on PyPI"}


@dataclass
class Subject:
    """A running process that measures on request; `version` is None, and `why` says why, when it is not there."""

    name: str
    process: subprocess.Popen[str] | None = None
    version: str | None = None
    why: str = ""
    cases: list[str] = field(default_factory=list)

    def greet(self) -> None:
        hello = self._answer()
        self.version, self.why = hello.get("version"), hello.get("error", "")
        self.cases = hello.get("cases", [])

    def ask(self, case: str, size: int) -> dict[str, Any]:
        assert self.process is not None and self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"case": case, "size": size}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"error": "its process has ended"}
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process has ended"}
        return answer

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate(timeout=60)


def start(name: str, python: Path, module: str, options: tuple[str, ...]) -> Subject:
    """Starts a subject without waiting for it: a peer's imports take their time."""
    if not python.exists():
        return Subject(name, why=f"no {python}")
    process = subprocess.Popen(
        [str(python), "-m", f"tests.benchmarks.peers.{module}", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return Subject(name, process)


def interpreter(path: str) -> Path:
    given = Path(path).absolute()
    return given / "bin" / "python" if given.is_dir() else given


def start_all(environments: dict[str, str]) -> list[Subject]:
    subjects = [start(OURS, Path(sys.executable), "ours", ())]
    for kind in PEERS:
        if kind.environment in environments:
            subjects.append(start(kind.name, interpreter(environments[kind.environment]), kind.module, kind.options))
        else:
            subjects.append(Subject(kind.name, why=f"no --env {kind.environment}=PATH"))
    for subject in subjects:
        if subject.process is not None:
            subject.greet()
    return subjects + [Subject(name, why=why) for name, why in WITHOUT_A_PACKAGE.items()]


@dataclass
class Line:
    """One row at one pool size: microseconds per unit, one figure per round and subject."""

    row: Row
    size: int
    rounds: dict[str, list[float]]
    failed: dict[str, str]

    def ratios(self, peer: str) -> list[float]:
        """The peer's time by ours, round by round."""
        return [theirs / ours for theirs, ours in zip(self.rounds[peer], self.rounds[OURS], strict=True)]


def measure(subjects: list[Subject], measured: Measured, size: int, rounds: int) -> Iterator[Line]:
    asked = [subject for subject in subjects if measured.case in subject.cases]
    lines = [Line(row, size, {}, {}) for row in measured.rows]
    for number in range(rounds + 1):
        for subject in asked:
            answer = subject.ask(measured.case, size)
            for line in lines:
                if "error" in answer:
                    line.failed[subject.name] = answer["error"]
                elif number > 0:
                    times = answer["rows"][line.row.name]
                    line.rounds.setdefault(subject.name, []).append(median(times) / 1000)
    for line in lines:
        line.rounds = {name: times for name, times in line.rounds.items() if len(times) == rounds}
    yield from lines


def spelled(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def size_name(size: int) -> str:
    return {0: "", 10_000: "10k", 100_000: "100k", 1_000_000: "1M"}.get(size, str(size))


def tables(lines: list[Line], subjects: list[Subject]) -> Iterator[str]:
    peers = [s.name for s in subjects if s.name != OURS and any(s.name in line.rounds for line in lines)]
    yield "Ours in microseconds, median of the rounds; each peer as its time / ours: median (least-most) of the rounds."
    yield ""
    yield f"{'operation':<52} {'blocks':>6} {'unit':<12} {OURS:>9}  " + "  ".join(f"{peer:>20}" for peer in peers)
    for line in lines:
        if OURS not in line.rounds:
            continue
        cells = [spelled(line.ratios(peer)) if peer in line.rounds else "-" for peer in peers]
        head = f"{line.row.title:<52} {size_name(line.size):>6} {line.row.unit:<12} {median(line.rounds[OURS]):>9.3f}  "
        yield head + "  ".join(f"{cell:>20}" for cell in cells)
    yield ""
    for line in lines:
        for name, why in line.failed.items():
            yield f"failed: {name}, {line.row.title}, {size_name(line.size)}: {why}"


def goal_lines(lines: list[Line]) -> Iterator[dict[str, Any]]:
    for goal in GOALS:
        for line in lines:
            if line.row.name == goal.row and goal.peer in line.rounds and OURS in line.rounds:
                reached = median(line.ratios(goal.peer))
                yield {
                    "goal": f"{line.row.title}: {goal.peer} / ours >= {goal.at_least:g}",
                    "blocks": line.size,
                    "reached": round(reached, 3),
                    "met": reached >= goal.at_least,
                }


def growth_lines(lines: list[Line]) -> Iterator[dict[str, Any]]:
    """How much more a row costs at the largest pool than at the smallest, for each subject."""
    for name in FLAT:
        sized = [line for line in lines if line.row.name == name]
        if len(sized) < 2:
            continue
        first, last = sized[0], sized[-1]
        both = [subject for subject in first.rounds if subject in last.rounds]
        growth = {s: round(median(last.rounds[s]) / median(first.rounds[s]), 2) for s in both}
        yield {"row": sized[0].row.title, "from": first.size, "to": last.size, "growth": growth}


def report(lines: list[Line], subjects: list[Subject]) -> Iterator[str]:
    for subject in subjects:
        yield f"{subject.name:<14} {subject.version or f'not present: {subject.why}'}"
    yield ""
    yield from tables(lines, subjects)
    yield ""
    for goal in goal_lines(lines):
        met = "met " if goal["met"] else "MISS"
        yield f"{met} {goal['goal']:<78} {size_name(goal['blocks']):>5}: {goal['reached']:.2f}"
    yield ""
    yield "Cost at the largest pool / cost at the smallest:"
    for growth in growth_lines(lines):
        spelled_out = ", ".join(f"{name} {value:.2f}" for name, value in growth["growth"].items())
        yield f"{growth['row']:<52} {size_name(growth['from'])} -> {size_name(growth['to'])}: {spelled_out}"


def as_json(lines: list[Line], subjects: list[Subject], rounds: int) -> dict[str, Any]:
    return {
        "schema": 1,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "rounds": rounds,
        "subjects": {s.name: {"version": s.version, "not_present": s.why or None} for s in subjects},
        "rows": [
            {
                "row": line.row.name,
                "title": line.row.title,
                "unit": line.row.unit,
                "blocks": line.size or None,
                "microseconds": {name: [round(t, 4) for t in times] for name, times in line.rounds.items()},
                "ratio": {
                    peer: {
                        "median": round(median(ratios), 3),
                        "least": round(min(ratios), 3),
                        "most": round(max(ratios), 3),
                    }
                    for peer in line.rounds
                    if peer != OURS and OURS in line.rounds
                    for ratios in [line.ratios(peer)]
                },
                "failed": line.failed,
            }
            for line in lines
        ],
        "goals": list(goal_lines(lines)),
        "growth": list(growth_lines(lines)),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--env", action="append", default=[], metavar="NAME=PATH", help="a peer's environment")
    parser.add_argument("--rounds", type=int, default=9, help="rounds counted, beside the one that warms up; at most 9")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="the largest pool, in blocks")
    parser.add_argument("--only", default="", help="the cases whose name starts so")
    parser.add_argument("--json", type=Path, help="a file for the figures of every round")
    options = parser.parse_args()
    if not 1 <= options.rounds <= 9:
        parser.error("--rounds: the smallest pool has room for 1 to 9")
    if any("=" not in one for one in options.env):
        parser.error("--env takes NAME=PATH")
    return options


def main() -> None:
    options = parse()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    subjects = start_all(dict(one.split("=", 1) for one in options.env))
    chosen = [one for one in CASES if one.case.startswith(options.only)]
    lines: list[Line] = []
    # All cases of one size before the next size: a full pool is made once for all that read it.
    for size in (0, *(size for size in SIZES if size <= options.largest)):
        for measured in chosen:
            if size in measured.sizes:
                print(f"{measured.case} {size_name(size)}", file=sys.stderr, flush=True)
                lines += measure(subjects, measured, size, options.rounds)
    for subject in subjects:
        subject.close()
    order = [row.name for measured in CASES for row in measured.rows]
    lines.sort(key=lambda line: (order.index(line.row.name), line.size))
    print("\n".join(report(lines, subjects)))
    if options.json:
        options.json.write_text(json.dumps(as_json(lines, subjects, options.rounds), indent=1) + "\n")


if __name__ == "__main__":
    main()
