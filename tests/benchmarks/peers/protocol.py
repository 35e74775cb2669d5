"""How a subject is asked: one JSON object per line on its standard input, one answer per line on its standard output.

    <- {"subject": "vllm", "version": "0.32.0", "cases": ["hash_sha256", ...]}      or  {"error": "why it is not there"}
    -> {"case": "evict", "size": 10000}
    <- {"rows": {"evict": [812.5, 790.1]}}                                          or  {"error": "..."}

An answer is one round: nanoseconds of thread CPU time per unit of the case, one figure per repetition. What the case
needs (a pool full of content, 256 running decodes) is made when it is first asked for and kept for its next rounds;
then the garbage is collected once and frozen, and the collector stays off.
"""

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from time import thread_time_ns

BLOCK = 16
PROMPT = 4096
SEQUENCE = 1024
"""Tokens of each prompt that fills a pool: 64 blocks that it shares with nobody."""
SEQUENCE_BLOCKS = SEQUENCE // BLOCK
EVICTIONS = 7
"""Sequences evicted in a row per round: the first of them also warms up what another subject left cold. The smallest pool has
room for ten rounds of two rows."""
DECODES = 256
CHUNK = 256
STEPS = 16
"""Steps per repetition: each decode takes one new block in them."""
NEW_TOKENS = 1 << 24
"""First token id of content that is in no pool yet."""

Rows = dict[str, list[float]]
Round = Callable[[], Rows]
Case = Callable[[int], Round]
"""Makes a case ready for a pool of so many blocks; what it returns runs one round."""


def timed_ns(action: Callable[[], object]) -> int:
    started = thread_time_ns()
    action()
    return thread_time_ns() - started


def repeated(row: str, action: Callable[[], object], units: float, repetitions: int = 5) -> Round:
    """A case of one row whose action can be done again and again."""
    return lambda: {row: [timed_ns(action) / units for _ in range(repetitions)]}


def consuming(row: str, actions: Iterator[Callable[[], object]], units: float, repetitions: int = 5) -> Round:
    """A case of one row in which every repetition takes a prepared action of its own."""
    return lambda: {row: [timed_ns(next(actions)) / units for _ in range(repetitions)]}


def prompt_tokens(index: int, length: int = SEQUENCE) -> list[int]:
    """The index-th prompt of a trace; from its first token on it shares nothing with the others."""
    return list(range(1 + index * length, 1 + (index + 1) * length))


def filling_prompts(size: int) -> Iterator[list[int]]:
    """Prompts of PROMPT tokens that fill a pool of `size` blocks, but for a remainder and one block for a peer's own."""
    for index in range((size - 1) // (PROMPT // BLOCK)):
        yield prompt_tokens(index, PROMPT)


def spread(count: int, wanted: int = 16) -> list[int]:
    """Up to `wanted` of `count` places, evenly apart, so that a big pool is read all over and not in a warm corner."""
    return [i * count // min(wanted, count) for i in range(min(wanted, count))]


def serve(subject: str, version: Callable[[], str], load: Callable[[], dict[str, Case]]) -> None:
    """Answers until the input ends. Whatever the subject's packages print goes to standard error."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        cases = load()
        hello: dict[str, object] = {"subject": subject, "version": version(), "cases": list(cases)}
    except Exception as error:  # noqa: BLE001 - whatever keeps a peer from loading, it is simply not there
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=out)
        return
    print(json.dumps(hello), file=out)
    ready: tuple[tuple[str, int], Round] | None = None
    for line in sys.stdin:
        question = json.loads(line)
        wanted = (question["case"], question["size"])
        try:
            if ready is None or ready[0] != wanted:
                ready = None
                gc.unfreeze()
                gc.collect()
                ready = wanted, cases[wanted[0]](wanted[1])
                gc.collect()
                gc.freeze()
            gc.disable()
            answer: dict[str, object] = {"rows": ready[1]()}
        except Exception as error:  # noqa: BLE001 - one case that a peer cannot do must not end the others
            answer = {"error": f"{type(error).__name__}: {error}"}
        finally:
            gc.enable()
        print(json.dumps(answer), file=out)
