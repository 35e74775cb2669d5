"""Sends a block's arrivals to an OpenAI-compatible server and stamps every token.

Open loop: a request is sent when it is due, whether or not earlier ones were answered, and latencies count from when it was
due (no coordinated omission). What this process itself adds is measured beside them: sends that were late, and how late the
event loop was at a heartbeat.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from runbooks.errors import ExperimentError
from runbooks.experiments.workload import Arrival, prompt_text

_HEARTBEAT_SECONDS = 0.05
LATE_SEND_SECONDS = 0.05
"""A send later than this counts as late: the load was then not quite what was planned."""


@dataclass(slots=True)
class Stream:
    """One request. Seconds after the start of the block; None for what did not happen."""

    due: float
    sent: float | None = None
    tokens: list[float] = field(default_factory=list)
    """When each chunk with text came."""
    ended: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        return self.tokens[0] - self.due if self.tokens else None


@dataclass(slots=True)
class Traffic:
    """What one block of load brought."""

    started_unix: float
    streams: list[Stream]
    loop_lags: list[float]
    """By how much each heartbeat of the client was late."""


@dataclass(frozen=True, slots=True)
class Client:
    """One target. `key_header` is sent as the Authorization header."""

    url: str
    model: str
    key_header: str | None = None
    drain_seconds: float = 20.0
    """How long streams may go on after the block's last arrival; the rest is aborted."""

    async def run(
        self,
        arrivals: Sequence[Arrival],
        seconds: float,
        salt: str,
        on_second: Callable[[float], None] = lambda _: None,
    ) -> Traffic:
        """Sends `arrivals` over `seconds`, and stays until they are answered or aborted. Cancelled, it aborts them at once."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        headers = {} if self.key_header is None else {"Authorization": self.key_header}
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
            start = time.perf_counter()
            traffic = Traffic(time.time(), [Stream(arrival.at) for arrival in arrivals], [])
            heart = asyncio.create_task(_heartbeat(traffic.loop_lags, start, on_second))
            tasks: list[asyncio.Task[None]] = []
            try:
                for number, (arrival, stream) in enumerate(zip(arrivals, traffic.streams, strict=True)):
                    await asyncio.sleep(max(0.0, arrival.at - (time.perf_counter() - start)))
                    text = prompt_text(arrival, salt, str(number))
                    tasks.append(asyncio.create_task(self._request(session, arrival, stream, text, start)))
                await asyncio.sleep(max(0.0, seconds - (time.perf_counter() - start)))
                if tasks:
                    await asyncio.wait(tasks, timeout=self.drain_seconds)
            finally:
                for task in (*tasks, heart):
                    task.cancel()
                await asyncio.gather(*tasks, heart, return_exceptions=True)
        return traffic

    async def _request(
        self, session: aiohttp.ClientSession, arrival: Arrival, stream: Stream, text: str, start: float
    ) -> None:
        body = {
            "model": self.model,
            "prompt": text,
            "max_tokens": arrival.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        stream.sent = time.perf_counter() - start
        try:
            async with session.post(f"{self.url}/v1/completions", json=body) as response:
                if response.status != 200:
                    stream.error = f"HTTP {response.status}: {(await response.text())[:200]}"
                    return
                rest = b""
                async for data in response.content.iter_any():
                    now = time.perf_counter() - start
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                            _read_chunk(stream, line[6:], now)
            stream.ended = time.perf_counter() - start
        except (aiohttp.ClientError, ssl.SSLError, OSError, ValueError) as error:
            stream.error = f"{type(error).__name__}: {error}"


class _Choice(msgspec.Struct):
    text: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    """The fields that are read: the others are skipped, which is what most of a chunk is."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_DECODE = msgspec.json.Decoder(_Chunk).decode


def _read_chunk(stream: Stream, text: bytes, now: float) -> None:
    """Raises ValueError when it is no chunk."""
    chunk = _DECODE(text)
    if chunk.choices and chunk.choices[0].text:
        stream.tokens.append(now)
    if chunk.usage is not None:
        stream.prompt_tokens, stream.output_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        details = chunk.usage.prompt_tokens_details
        stream.cached_tokens = None if details is None else details.cached_tokens
    if chunk.error is not None:
        stream.error = str(chunk.error)[:200]


async def _heartbeat(lags: list[float], start: float, on_second: Callable[[float], None]) -> None:
    due = time.perf_counter()
    while True:
        due += _HEARTBEAT_SECONDS
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        now = time.perf_counter()
        lags.append(max(0.0, now - due))
        on_second(now - start)
        due = max(due, now)


async def first_model(url: str, key_header: str | None = None) -> str:
    """The model that the server lists first. Raises ExperimentError when it does not answer as an OpenAI-compatible server."""
    headers = {} if key_header is None else {"Authorization": key_header}
    try:
        timeout = aiohttp.ClientTimeout(total=10)
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.get(f"{url}/v1/models") as response,
        ):
            if response.status != 200:
                raise ExperimentError(f"{url}/v1/models: answered HTTP {response.status}; give --model, or --key-file")
            return str((await response.json())["data"][0]["id"])
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, LookupError, TypeError) as error:
        raise ExperimentError(
            f"{url}/v1/models: not an OpenAI-compatible server ({type(error).__name__}: {error})"
        ) from None
