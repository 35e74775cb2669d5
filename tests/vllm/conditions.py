"""Induced conditions on a real vLLM with the probe, recorded: `python -m tests.vllm.conditions DIRECTORY [roomy|pressure]`.

    vllm-quiet.rec      streams that decode, in a pool with room
    vllm-mixed.rec      the same streams, and long prompts that arrive beside them; vllm-mixed.client.json: what clients saw
    vllm-after.rec      one stream after that load, nearly all memory reserved and the pool full of what can be given up
    vllm-pressure.rec   more streams than a tiny pool holds

tests/vllm judges fresh recordings, tests/diagnose/test_vllm_recordings.py the ones that are kept in tests/data.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import urllib3

from runbooks.drills.load import Load, Outcome, prompt_text
from tests.vllm.server import VllmServer
from tests.vllm.tiny import write_served_model

COMMON = ["--max-num-seqs", "16", "--gpu-memory-utilization", "0.12"]
ROOMY = [*COMMON, "--max-model-len", "8192", "--max-num-batched-tokens", "512"]
TINY = [
    *COMMON,
    *(
        "--max-model-len",
        "512",
        "--max-num-batched-tokens",
        "256",
        "--block-size",
        "32",
        "--num-gpu-blocks-override",
        "33",
    ),
]
STREAMS = 3
STREAM_TOKENS = 7500
"""More than a stream can get in a window, so that none of them ends and asks again."""
LONG_WORDS = 150
"""Some 1000 tokens of the byte tokenizer: two chunks, each many times a decode step."""
PRESSURE_STREAMS = 8
FIRST_TOKENS_SECONDS = 120.0


class ClientGaps(NamedTuple):
    """Inter-token gaps as the clients of the streams saw them in the window, seconds."""

    mean: float
    slowest_percent_mean: float
    num_gaps: int


class LongPrompts:
    """One long prompt after the other, each followed by a pause of its own length: half of the time, however fast the machine."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        for number in itertools.count():
            begin = time.monotonic()
            body = {"model": "model", "prompt": prompt_text(LONG_WORDS, 1000 + number), "max_tokens": 1}
            answer = urllib3.request("POST", f"{self._url}/v1/completions", json=body, retries=False, timeout=120)
            assert answer.status == 200, answer.data
            if self._stop.wait(time.monotonic() - begin):
                return


def record(url: str, seconds: int, interval: int, path: Path) -> None:
    command = [
        *(sys.executable, "-m", "diagnose.cli", "record", url),
        *("--for", f"{seconds}s", "--interval", f"{interval}s", "-q", "-o", str(path)),
    ]
    subprocess.run(command, check=True, timeout=seconds + 60)


def roomy(model: Path, directory: Path) -> None:
    with VllmServer(model, ROOMY, directory / "roomy.log") as server:
        with Load(server.url, streams=STREAMS, stream_tokens=STREAM_TOKENS) as load:
            await_streams(load, STREAMS)
            record(server.url, 25, 5, directory / "vllm-quiet.rec")
        with Load(server.url, streams=STREAMS, stream_tokens=STREAM_TOKENS, seed=7) as load:
            await_streams(load, STREAMS)
            with LongPrompts(server.url):
                marks = [(one, len(one.gaps)) for one in load.outcomes if one.label == "stream"]
                record(server.url, 60, 6, directory / "vllm-mixed.rec")
                gaps = client_gaps(marks)
        (directory / "vllm-mixed.client.json").write_text(json.dumps(gaps._asdict()) + "\n")
        with Load(server.url, streams=1, stream_tokens=STREAM_TOKENS, seed=9) as load:
            await_streams(load, 1)
            record(server.url, 10, 2, directory / "vllm-after.rec")


def pressure(model: Path, directory: Path) -> None:
    with (
        VllmServer(model, TINY, directory / "pressure.log") as server,
        Load(server.url, streams=PRESSURE_STREAMS, stream_tokens=120, seed=3) as load,
    ):
        await_streams(load, 1)
        # Every second: a fast machine takes three from a preemption to the end of its request, where vLLM counts it.
        record(server.url, 45, 1, directory / "vllm-pressure.rec")


def await_streams(load: Load, count: int) -> None:
    """Until that many streams have their first token, and the steps of those prompts are over."""
    deadline = time.monotonic() + FIRST_TOKENS_SECONDS
    while len(load.ttfts("stream")) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {count} streams after {FIRST_TOKENS_SECONDS:g} s: {load.errors()[:1]}")
        time.sleep(0.1)
    time.sleep(2.0)


def client_gaps(marks: list[tuple[Outcome, int]]) -> ClientGaps:
    gaps = sorted(gap for one, seen in marks for gap in list(one.gaps)[seen:])
    slowest = gaps[-max(1, len(gaps) // 100) :]
    return ClientGaps(sum(gaps) / len(gaps), sum(slowest) / len(slowest), len(gaps))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        exported = write_served_model(Path(scratch))
        for condition in (roomy, pressure):
            if condition.__name__ in sys.argv[2:] or not sys.argv[2:]:
                condition(exported, target)
