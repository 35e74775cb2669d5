"""How an engine is asked: one JSON object per line on its standard input, one answer per line on its standard output.

    <- {"version": "5.24.0"}                                  or  {"error": "why it is not there"}
    -> {"prompts": [[17, 4, ...], ...], "num_tokens": 32}
    <- {"seconds": 4.1, "tokens": [[960, ...], ...]}          or  {"error": "..."}

Stdlib only: it runs in the peers' environments too.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

MAX_BATCHED_TOKENS = 2048
"""Offline budget of a step, where an engine has one."""

Generate = Callable[[list[list[int]], int], list[list[int]]]
"""Greedy, exactly so many tokens for each prompt, whatever the end-of-sequence token."""


def main(load: Callable[[argparse.Namespace], tuple[str, Generate]]) -> None:
    """Answers until the input ends. What the engine prints goes to standard error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="a Hugging Face directory")
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        version, generate = load(args)
    except Exception as error:  # noqa: BLE001 - whatever keeps an engine from loading, it is simply not there
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=out)
        return
    print(json.dumps({"version": version}), file=out)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            started = time.perf_counter()
            tokens = generate(question["prompts"], question["num_tokens"])
            answer: dict[str, Any] = {"seconds": time.perf_counter() - started, "tokens": tokens}
        except Exception as error:  # noqa: BLE001 - one shape that an engine cannot do must not end the others
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out)
