"""The online half of `tests.benchmarks.cpu_engines`: servers under the same open-loop arrivals of streams over HTTP.

`n` streams: n requests of 128 prompt tokens and 48 output tokens, at seeded exponential intervals of 1 s on average, so that
a slow server is asked as often as a fast one. Both servers take at most 512 tokens per step. The other server is stopped
(SIGSTOP) meanwhile. transformers' own server is not measured: it batches no requests unless asked to, and then needs a
GPU's attention kernels for it.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import urllib3
from urllib3.exceptions import HTTPError

PROMPT, TOKENS, INTERVAL_SECONDS = 128, 48, 1.0
_READY_SECONDS = 900
_LIMITS = {"budget": "512", "sequences": "64"}


@dataclass(slots=True)
class Round:
    """Seconds, and tokens per second from the first request to the last token."""

    itl_p50: float
    itl_p99: float
    ttft_p50: float
    ttft_p99: float
    tokens_per_second: float


@dataclass(slots=True)
class OnlineLine:
    streams: int
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Server:
    name: str
    process: "subprocess.Popen[bytes]"
    url: str


@contextmanager
def awake(group: int) -> Iterator[None]:
    """Lets a stopped process group run for a while."""
    os.killpg(group, signal.SIGCONT)
    try:
        yield
    finally:
        os.killpg(group, signal.SIGSTOP)


def commands(args: argparse.Namespace, model: Path, port: int) -> dict[str, list[str]]:
    ours = [sys.executable, "-P", "-m", "diagnose.cli", "serve", "--model", str(model), "--port", str(port)]
    vllm = [str(args.vllm / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    return {
        "ours": [
            *ours,
            *("--threads", str(args.threads), "--kv-blocks", "640", "--served-model-name", "model"),
            *("--max-batched-tokens", _LIMITS["budget"], "--max-sequences", _LIMITS["sequences"]),
        ],
        "vllm": [
            *vllm,
            *("--port", str(port), "--host", "127.0.0.1", "--served-model-name", "model", "--dtype", "float32"),
            *("--max-num-batched-tokens", _LIMITS["budget"], "--max-num-seqs", _LIMITS["sequences"]),
            *("--kv-cache-memory-bytes", str(1 << 30)),
        ],
    }


@contextmanager
def serving(args: argparse.Namespace, model: Path, name: str) -> Iterator[Server]:
    """A server in a process group of its own, stopped (SIGSTOP) once it answers; ended by its own pid."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    threads = str(args.threads)
    environment = os.environ | {
        "OMP_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "PASSIVE",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
    }
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            commands(args, model, port)[name], stdout=log, stderr=log, env=environment, start_new_session=True
        )
        server = Server(name, process, f"http://127.0.0.1:{port}")
        try:
            _await_ready(server)
            os.killpg(process.pid, signal.SIGSTOP)
            yield server
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGCONT)
                process.terminate()
                try:
                    process.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _await_ready(server: Server) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise RuntimeError(f"{server.name} ended with exit code {server.process.returncode}")
        try:
            if urllib3.request("GET", server.url + "/health", retries=False, timeout=5).status == 200:
                return
        except HTTPError:
            pass
        time.sleep(1)
    raise RuntimeError(f"{server.name} did not get ready in {_READY_SECONDS} s")


class Stream(threading.Thread):
    """One request; notes when each of its tokens came."""

    def __init__(self, url: str, prompt: list[int], delay: float) -> None:
        super().__init__(daemon=True)
        self._url, self._prompt, self._delay = url, prompt, delay
        self.sent = 0.0
        self.arrived: list[float] = []
        self.error = ""

    def run(self) -> None:
        time.sleep(self._delay)
        body = {"model": "model", "prompt": self._prompt, "max_tokens": TOKENS, "stream": True, "temperature": 0.0}
        self.sent = time.perf_counter()
        try:
            answer = urllib3.request(
                "POST",
                self._url + "/v1/completions",
                json=body | {"ignore_eos": True},
                preload_content=False,
                retries=False,
                timeout=urllib3.Timeout(connect=10, read=300),
            )
            if answer.status != 200:
                self.error = f"HTTP {answer.status}: {answer.read(200)!r}"
                return
            for line in answer:
                if line.startswith(b"data: {") and json.loads(line[6:]).get("choices"):
                    self.arrived.append(time.perf_counter())
        except HTTPError as error:
            self.error = f"{type(error).__name__}: {error}"


def load(url: str, streams: int, vocab_size: int, seed: int) -> Round:
    """Runs the arrivals of a seed to their end. RuntimeError when a request failed."""
    source = random.Random(seed)
    delays = [0.0]
    for _ in range(streams - 1):
        delays.append(delays[-1] + source.expovariate(1 / INTERVAL_SECONDS))
    running = [Stream(url, [source.randrange(20, vocab_size) for _ in range(PROMPT)], delay) for delay in delays]
    for stream in running:
        stream.start()
    for stream in running:
        stream.join()
    errors = [stream.error for stream in running if stream.error]
    if errors:
        raise RuntimeError(f"{len(errors)} of {streams} requests failed: {errors[0]}")
    return summarise(running)


def summarise(streams: list[Stream]) -> Round:
    gaps = [later - one for s in streams for one, later in zip(s.arrived, s.arrived[1:], strict=False)]
    ttfts = [stream.arrived[0] - stream.sent for stream in streams]
    seconds = max(s.arrived[-1] for s in streams) - min(s.sent for s in streams)
    itl, ttft = quantiles(gaps, n=100, method="inclusive"), quantiles(ttfts, n=100, method="inclusive")
    return Round(itl[49], itl[98], ttft[49], ttft[98], TOKENS * len(streams) / seconds)


def run(args: argparse.Namespace, model: Path, vocab_size: int, streams: list[int]) -> list[OnlineLine]:
    lines = [OnlineLine(count) for count in streams]
    has_vllm = (args.vllm / "bin" / "python").exists()
    with serving(args, model, "ours") as ours:
        if not has_vllm:
            _alternate([ours], lines, vocab_size, args.rounds)
            return lines
        with serving(args, model, "vllm") as vllm:
            _alternate([ours, vllm], lines, vocab_size, args.rounds)
    return lines


def _alternate(servers: list[Server], lines: list[OnlineLine], vocab_size: int, rounds: int) -> None:
    for server in servers:
        with awake(server.process.pid):
            load(server.url, 2, vocab_size, seed=0)
    for line in lines:
        for number in range(1, rounds + 1):
            for server in servers if number % 2 else servers[::-1]:
                with awake(server.process.pid):
                    try:
                        done = load(server.url, line.streams, vocab_size, seed=number)
                        line.rounds.setdefault(server.name, []).append(done)
                    except RuntimeError as error:
                        line.failed[server.name] = str(error)


def table(lines: list[OnlineLine]) -> Iterator[str]:
    figures = ("itl_p50", "itl_p99", "ttft_p50", "ttft_p99", "tokens_per_second")
    if lines:
        yield f"Online, {PROMPT} -> {TOKENS}, a stream every {INTERVAL_SECONDS:g} s: ours, vLLM, and vLLM / ours."
    for line in lines:
        ours, vllm = line.rounds.get("ours", []), line.rounds.get("vllm", [])
        for name in figures:
            own, theirs = ([getattr(one, name) for one in rounds] for rounds in (ours, vllm))
            cells = [f"{median(values):>9.3f}" if values else f"{'-':>9}" for values in (own, theirs)]
            pairs = list(zip(own, theirs, strict=False))
            if pairs:
                within = [peer / mine for mine, peer in pairs]
                cells.append(f"  {median(within):.2f} ({min(within):.2f}-{max(within):.2f})")
            yield f"{line.streams:>3} streams  {name:<18}" + "".join(cells)
        yield from (f"{line.streams:>3} streams  failed: {name}: {why}" for name, why in line.failed.items())
