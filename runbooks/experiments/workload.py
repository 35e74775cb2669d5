"""What is asked of both arms: seeded open-loop arrivals, lengths and shared prefixes, or a recorded trace.

An arrival's time and sizes never depend on how fast the server answers.
"""

import csv
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from runbooks.errors import ExperimentError

_WORDS = (
    "queue", "block", "token", "budget", "stream", "cache", "prompt", "decode", "batch", "kernel", "memory", "step",
    "lock", "trace", "engine", "request", "answer", "window", "signal", "cause", "measure", "compare", "night", "pager",
    "graph", "quiet", "river", "stone", "paper", "silver", "garden", "winter", "letter",
)  # fmt: skip


class Arrival(NamedTuple):
    at: float
    """Seconds after the start of the block."""
    prompt_words: int
    """One common word is about one token; what it really was comes back in the answer's usage."""
    output_tokens: int
    prefix_words: int
    prefix_group: int
    """Arrivals of one group begin with the same `prefix_words` words."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths: `256`, `128-512` (uniform), `lognormal:256,0.5` (median, sigma)."""

    text: str
    draw: Callable[[random.Random], int]


def parse_lengths(text: str) -> Lengths:
    """Raises ExperimentError that says what is accepted."""
    if re.fullmatch(r"\d+", text) and int(text) > 0:
        size = int(text)
        return Lengths(text, lambda _: size)
    if (match := re.fullmatch(r"(\d+)-(\d+)", text)) and 0 < int(match[1]) <= int(match[2]):
        low, high = int(match[1]), int(match[2])
        return Lengths(text, lambda source: source.randint(low, high))
    if (match := re.fullmatch(r"lognormal:(\d+),(\d*\.?\d+)", text)) and int(match[1]) > 0:
        middle, sigma = int(match[1]), float(match[2])
        return Lengths(text, lambda source: max(1, round(middle * source.lognormvariate(0.0, sigma))))
    raise ExperimentError(f"length {text!r}: write 256, 128-512 or lognormal:256,0.5 (median, sigma)")


@dataclass(frozen=True, slots=True)
class Load:
    """One class of requests."""

    rate: float
    """Per second."""
    arrivals: str
    """poisson, constant or burst (poisson at three times the rate for a third of every 10 s)."""
    prompt: Lengths
    output: Lengths
    prefix_words: int
    prefix_groups: int

    def times(self, seconds: float, source: random.Random) -> Iterator[float]:
        at = 0.0
        if self.arrivals == "constant":
            # From a random phase, so that two classes do not always arrive together.
            at = source.random() / self.rate
            while at < seconds:
                yield at
                at += 1 / self.rate
            return
        peak = self.rate * (_BURST if self.arrivals == "burst" else 1)
        while (at := at + source.expovariate(peak)) < seconds:
            if self.arrivals == "poisson" or at % _BURST_SECONDS < _BURST_SECONDS / _BURST:
                yield at

    def draw(self, seconds: float, source: random.Random) -> Iterator[Arrival]:
        for at in self.times(seconds, source):
            group = source.randrange(self.prefix_groups)
            yield Arrival(at, self.prompt.draw(source), self.output.draw(source), self.prefix_words, group)


_BURST, _BURST_SECONDS = 3, 10.0
ARRIVALS = ("poisson", "constant", "burst")
_DEFAULTS = {"rate": "1", "arrivals": "poisson", "prompt": "128", "output": "64", "prefix": "0", "groups": "1"}


def parse_load(text: str) -> Load:
    """`rate=0.5,prompt=24,output=200` -> Load. Raises ExperimentError that names the field."""
    values = dict(_DEFAULTS)
    # Commas also separate the parameters of a distribution: a field begins with its name.
    for field in re.split(r",(?=[a-z]+=)", text):
        name, equals, value = field.partition("=")
        if not equals or name not in _DEFAULTS:
            raise ExperimentError(f"--load {field!r}: write NAME=VALUE with NAME one of {', '.join(_DEFAULTS)}")
        values[name] = value
    try:
        rate, prefix, groups = float(values["rate"]), int(values["prefix"]), int(values["groups"])
    except ValueError as error:
        raise ExperimentError(f"--load {text!r}: {error}") from None
    if not 0 < rate <= 10_000 or prefix < 0 or groups < 1:
        raise ExperimentError(f"--load {text!r}: rate must be above 0 (and at most 10000), prefix >= 0, groups >= 1")
    if values["arrivals"] not in ARRIVALS:
        raise ExperimentError(f"--load {text!r}: arrivals is one of {', '.join(ARRIVALS)}")
    return Load(
        rate, values["arrivals"], parse_lengths(values["prompt"]), parse_lengths(values["output"]), prefix, groups
    )


class Workload:
    """What every block replays: the same arrivals in both blocks of a pair, others in the next pair."""

    def __init__(self, loads: Sequence[Load], trace: Sequence[Arrival] = (), seed: int = 0) -> None:
        self._loads = tuple(loads)
        self._trace = tuple(trace)
        self._seed = seed

    def block(self, pair: int, seconds: float) -> list[Arrival]:
        """Arrivals of one block of pair `pair`, in time order. Of a trace, the pair's own stretch; it starts over at its end."""
        if self._trace:
            return self._stretch(pair, seconds)
        source = random.Random(f"{self._seed}/{pair}")
        return sorted(arrival for load in self._loads for arrival in load.draw(seconds, source))

    def _stretch(self, pair: int, seconds: float) -> list[Arrival]:
        # One usual interval after its last arrival the trace starts over.
        length = max(self._trace[-1].at * (1 + 1 / len(self._trace[1:] or [0])), seconds)
        start = pair * seconds % length
        shifted = (arrival._replace(at=(arrival.at - start) % length) for arrival in self._trace)
        return sorted(arrival for arrival in shifted if arrival.at < seconds)


def prompt_text(arrival: Arrival, salt: str, seed: str) -> str:
    """Words that no other block shares: the salt comes first, so that a prefix cache that another block filled does not help."""
    shared = random_words(f"{salt}/{arrival.prefix_group}", arrival.prefix_words)
    own = random_words(f"{salt}/{seed}", max(1, arrival.prompt_words - arrival.prefix_words))
    return f"{salt}: {' '.join([*shared, *own])}"


def random_words(seed: str, count: int) -> list[str]:
    """Common words, the same ones for the same seed."""
    source = random.Random(seed)
    return [source.choice(_WORDS) for _ in range(count)]


def read_trace(path: Path) -> list[Arrival]:
    """A trace of arrivals, recognised by its fields:

    - JSON lines with `timestamp` (ms), `input_length`, `output_length` (Mooncake's traces)
    - CSV with TIMESTAMP, ContextTokens, GeneratedTokens (Azure's LLM traces)
    - CSV with Timestamp, Request tokens, Response tokens (BurstGPT)

    Times start at 0. Raises ExperimentError with the line that is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path}: cannot be read: {error}") from None
    rows = _json_rows(path, text) if text.lstrip().startswith("{") else csv.DictReader(text.splitlines())
    arrivals: list[Arrival] = []
    for number, row in enumerate(rows, 1):
        try:
            arrivals.append(_trace_arrival(row))
        except (KeyError, TypeError, ValueError) as error:
            raise ExperimentError(f"{path}: row {number} is not an arrival: {error!r}") from None
    if not arrivals:
        raise ExperimentError(f"{path}: holds no arrival")
    arrivals.sort()
    start = arrivals[0].at
    return [arrival._replace(at=arrival.at - start) for arrival in arrivals]


def _json_rows(path: Path, text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(filter(None, map(str.strip, text.splitlines())), 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ExperimentError(f"{path}: line {number} is not JSON: {error}") from None


def _trace_arrival(row: dict[str, Any]) -> Arrival:
    if "input_length" in row:
        sizes = int(row["input_length"]), int(row["output_length"])
        at = float(row["timestamp"]) / 1e3
    elif "ContextTokens" in row:
        sizes = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
    else:
        sizes = int(row["Request tokens"]), int(row["Response tokens"])
        at = float(row["Timestamp"])
    if min(sizes) < 0:
        raise ValueError(f"negative length {min(sizes)}")
    return Arrival(at, max(1, sizes[0]), max(1, sizes[1]), 0, 0)
