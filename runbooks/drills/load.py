"""The demo's load: a fixed number of streams that decode for as long as somebody looks, and long prompts beside them.

Closed loop, which `traffic` is not: there requests come by a plan made in advance, and how many are in flight follows from the
server. Here as many streams as asked for decode at any moment, at whatever pace the machine has. It needs nothing but the base
install, so that the demo runs without the `lab` extra that the open-loop client needs.
"""

import json
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

import urllib3
from urllib3.exceptions import HTTPError

from runbooks.experiments.workload import random_words


@dataclass(slots=True)
class Outcome:
    """What a client saw of one request. Seconds."""

    label: str
    sent_at: float
    ttft: float | None = None
    gaps: list[float] = field(default_factory=list)
    error: str | None = None


def prompt_text(words: int, seed: int) -> str:
    """Plain text without a shared beginning, so that no prefix cache can answer it."""
    return " ".join(random_words(str(seed), words))


class Load:
    """`with Load(url, ...) as load:` runs until the block ends; every thread has ended then.

    `streams` closed-loop streams generate `stream_tokens` each, over and over; every `every_seconds` one prompt of
    `long_words` words arrives (open loop, so that a slow server does not slow the arrivals).
    """

    def __init__(
        self,
        url: str,
        *,
        streams: int,
        stream_tokens: int = 400,
        long_words: int = 0,
        every_seconds: float = 0.0,
        seed: int = 1,
    ) -> None:
        self._base = url
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._seed = seed
        self._model = ""
        self.outcomes: list[Outcome] = []
        # One connection per thread that may be in flight: long prompts can pile up on a slow server.
        self._pool = urllib3.PoolManager(
            maxsize=streams + 32, retries=False, timeout=urllib3.Timeout(connect=5, read=120)
        )
        self._threads = [
            threading.Thread(target=self._stream, args=(number, stream_tokens), daemon=True)
            for number in range(streams)
        ]
        if long_words:
            self._threads.append(threading.Thread(target=self._arrivals, args=(long_words, every_seconds), daemon=True))

    def __enter__(self) -> "Load":
        models = self._pool.request("GET", self._base + "/v1/models").json()
        self._model = models["data"][0]["id"]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        # Threads notice at their next token; a new arrival thread may be added until the arrivals thread has ended.
        for thread in list(self._threads):
            thread.join(timeout=30)
        for thread in list(self._threads):
            thread.join(timeout=30)
        self._pool.clear()

    def ttfts(self, label: str) -> list[float]:
        """Times to first token of finished first tokens, in order of sending."""
        with self._lock:
            return [outcome.ttft for outcome in self.outcomes if outcome.label == label and outcome.ttft is not None]

    def gaps(self, label: str) -> list[float]:
        """Times between tokens, request by request. Call it when the load has ended."""
        return [gap for outcome in self.outcomes if outcome.label == label for gap in outcome.gaps]

    def errors(self) -> list[str]:
        with self._lock:
            return [outcome.error for outcome in self.outcomes if outcome.error is not None]

    def _stream(self, number: int, tokens: int) -> None:
        turn = 0
        while not self._stop.is_set():
            prompt = "Write a long story. " + prompt_text(24, self._seed * 1000 + number * 100 + turn)
            self._request("stream", prompt, tokens)
            turn += 1

    def _arrivals(self, words: int, every_seconds: float) -> None:
        number = 0
        while not self._stop.wait(every_seconds):
            prompt = prompt_text(words, self._seed * 100_000 + number)
            thread = threading.Thread(target=self._request, args=("long", prompt, 2), daemon=True)
            self._threads.append(thread)
            thread.start()
            number += 1

    def _request(self, label: str, prompt: str, tokens: int) -> None:
        outcome = Outcome(label, time.monotonic())
        with self._lock:
            self.outcomes.append(outcome)
        body = {"model": self._model, "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        try:
            response = self._pool.request("POST", self._base + "/v1/completions", json=body, preload_content=False)
            try:
                if response.status != 200:
                    outcome.error = f"HTTP {response.status}: {response.read(200)!r}"
                    self._stop.wait(0.5)  # do not hammer a server that refuses
                    return
                self._read(response, outcome)
            finally:
                response.close()  # an unfinished stream is aborted, which the server notices
        except HTTPError as error:
            outcome.error = f"{type(error).__name__}: {error}"
            self._stop.wait(0.5)

    def _read(self, response: urllib3.BaseHTTPResponse, outcome: Outcome) -> None:
        last = outcome.sent_at
        for line in response:
            if self._stop.is_set():
                return
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            if not json.loads(line[6:]).get("choices"):
                continue
            now = time.monotonic()
            if outcome.ttft is None:
                outcome.ttft = now - outcome.sent_at
            else:
                outcome.gaps.append(now - last)
            last = now
