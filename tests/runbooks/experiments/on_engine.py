"""Comparisons on our own engine as a process: a load that fits its pace, the command as it is typed, and traffic of others."""

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import urllib3

from runbooks.admin import AdminClient
from runbooks.drills import traffic
from runbooks.drills.engine_process import EngineProcess
from runbooks.drills.load import prompt_text

ROOT = Path(__file__).resolve().parents[3]
BUDGETS = 1024, 128
WORDS, TOKENS = 400, 80
"""Of a long prompt, and of a stream's answer."""
BLOCK = ["--block", "24s", "--washout", "6s", "--drain", "12s"]


@dataclass(frozen=True, slots=True)
class Pace:
    """Of an engine on this machine, now. Seconds."""

    prompt: float
    """A long prompt in one step of the larger budget."""
    token: float
    """Of one stream, the mean: tokens that arrive together have gaps of nothing, and a median of those says nothing."""


@cache
def model_of(url: str) -> str:
    return str(urllib3.request("GET", f"{url}/v1/models", timeout=30).json()["data"][0]["id"])


def ask(url: str, words: int, seed: int, tokens: int = 1) -> float:
    """Seconds that a request took."""
    body = {"model": model_of(url), "prompt": prompt_text(words, seed), "max_tokens": tokens, "ignore_eos": True}
    began = time.perf_counter()
    answer = urllib3.request("POST", f"{url}/v1/completions", json=body, timeout=300, retries=False)
    assert answer.status == 200, answer.data
    return time.perf_counter() - began


def measure_pace(url: str, words: int) -> Pace:
    prompts = [ask(url, words, seed) for seed in range(5)]
    return Pace(median(prompts), traffic.measure_pace(url).seconds)


def interference(pace: Pace, words: int, tokens: int) -> list[str]:
    """Options of the command: long prompts for two fifths of the time, in every block alike, beside about three streams."""
    long_rate, stream_rate = 0.4 / pace.prompt, 3 / (tokens * pace.token / 0.6)
    return [
        *("--load", f"rate={stream_rate:.2g},prompt=12,output={tokens}"),
        *("--load", f"rate={long_rate:.2g},arrivals=constant,prompt={words},output=2"),
    ]


def run_command(*arguments: str, timeout: float = 1800) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "diagnose.cli", "experiment", *arguments, "--quiet"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)


def compare(*arguments: str) -> dict[str, Any]:
    """The command's report."""
    done = run_command(*arguments, "--json")
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def knob(engine: EngineProcess, name: str, first: int, second: int) -> list[str]:
    return [engine.url, "--knob", f"{name}={first},{second}", "--admin-token-file", str(engine.token_path), "--apply"]


class OthersWhen:
    """`with OthersWhen(engine, "max_sequences", 48, words):` other clients send prompts while the knob has that value."""

    def __init__(self, engine: EngineProcess, setting: str, value: int, words: int) -> None:
        self._engine, self._setting, self._value, self._words = engine, setting, value, words
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "OthersWhen":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        admin = AdminClient(self._engine.url, self._engine.admin_token)
        for seed in itertools.count(10_000):
            if self._stop.is_set():
                return
            if admin.get(self._setting) == self._value:
                ask(self._engine.url, self._words, seed, tokens=4)
            else:
                self._stop.wait(0.05)
