"""A late transfer between two real processes, seen by the real command; and an ordinary pair, of which nothing is said."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from subprocess import run
from typing import Any

import pytest

from runbooks.drills.engine_process import EngineProcess
from tests.engine.model_helpers import make_prompt
from tests.engine.pair import SMALL, complete_at

pytestmark = pytest.mark.slow


@contextmanager
def load(url: str, length: int) -> Iterator[None]:
    """Requests one after the other, each with a prompt of its own of so many tokens."""
    stop = threading.Event()

    def ask() -> None:
        for seed in count():
            if stop.is_set():
                return
            complete_at(url, make_prompt(length, seed=seed), max_tokens=4)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def diagnose(*prefill_options: str, length: int) -> dict[str, Any]:
    """Of the decode instance, under load for some seconds."""
    roles = [*SMALL, "--role", "prefill", "--max-batched-tokens", "64", *prefill_options]
    with (
        EngineProcess(roles, environment={"STALLSCOPE_DRILLS": "1"}) as prefill,
        EngineProcess([*SMALL, "--role", "decode", "--prefill", prefill.url]) as decode,
        load(decode.url, length),
    ):
        command = [sys.executable, "-m", "diagnose.cli", "diagnose", decode.url, "--window", "6s", "--json"]
        done = run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1, 3), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_transfer_that_is_slowed_on_purpose_is_diagnosed():
    """Three chunks, each 300 ms late, where the prompt takes a few ms to compute."""
    verdicts = diagnose("--drill-fault", "transfer=300ms", length=160)["verdicts"]
    assert verdicts["transfer_stall"]["verdict"] == "supported"
    assert "to the first token" in json.dumps(verdicts["transfer_stall"]["evidence"])
    assert verdicts["queue_overload"]["verdict"] == verdicts["prefill_interference"]["verdict"] == "refuted"


def test_an_ordinary_pair_has_no_transfer_stall():
    """Thirteen chunks, of which only the last is waited for."""
    assert diagnose(length=800)["verdicts"]["transfer_stall"]["verdict"] in ("refuted", "undetermined")
