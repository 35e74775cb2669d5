"""The experiments' open-loop client on a thread of its own, beside the watch of a drill; `load` is the closed loop."""

import asyncio
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import NamedTuple

from runbooks.drills.service_levels import Levels
from runbooks.errors import DrillError
from runbooks.experiments.client import Client, Stream, Traffic, first_model
from runbooks.experiments.workload import Arrival, Load, Workload

_JOIN_SECONDS = 30.0
_WARM_SECONDS = 240.0
_PACE_WORDS = 24
_PACE_TOKENS = (80, 1000)
"""The second where the first answer comes in a few pieces, as on a machine without a core to spare."""


class Pace(NamedTuple):
    """Of an engine: seconds that a lone stream waits for a token, and tokens that its model makes of a word."""

    seconds: float
    tokens_per_word: float

    def in_words(self, arrival: Arrival) -> Arrival:
        prompt, prefix = arrival.prompt_words / self.tokens_per_word, arrival.prefix_words / self.tokens_per_word
        return arrival._replace(prompt_words=max(1, round(prompt)), prefix_words=round(prefix))


class BackgroundTraffic:
    """`with BackgroundTraffic(...) as traffic:` sends for `seconds`; after the block nothing is in flight."""

    def __init__(
        self,
        url: str,
        loads: Sequence[Load],
        seconds: float,
        *,
        pace: "Pace",
        seed: int,
        salt: str,
        at_once: Sequence[Arrival] = (),
        stand_still_seconds: float = 0.0,
    ) -> None:
        """Lengths are tokens here, and sent as so many words as the model needs for them.

        `stand_still_seconds`: the client's loop does nothing for so long at every heartbeat.
        """
        drawn = Workload(loads, seed=seed).block(0, seconds)
        self._arrivals = [pace.in_words(arrival) for arrival in (*at_once, *drawn)]
        self._url, self._seconds, self._salt = url, seconds, salt
        self._stand_still = stand_still_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Traffic] | None = None
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._work, name="drill-load", daemon=True)
        self._began = 0.0
        self.streams: list[Stream] = []
        """Filled when the block has ended; seconds in them are after the start of the load."""

    def __enter__(self) -> "BackgroundTraffic":
        self._thread.start()
        self._ready.wait(_JOIN_SECONDS)
        if self._failure is not None:
            raise DrillError(f"the load could not start: {self._failure}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an error the load is cancelled; else it ends at its own time, and its streams are complete then."""
        if error is not None and self._loop is not None and self._task is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(self._seconds + _JOIN_SECONDS)

    def elapsed(self) -> float:
        """Seconds since the load began."""
        return time.perf_counter() - self._began

    def _work(self) -> None:
        try:
            asyncio.run(self._run())
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - reported by whoever waits for the load
            self._failure = error
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        client = Client(self._url, await first_model(self._url), drain_seconds=0.0)
        self._task = asyncio.create_task(client.run(self._arrivals, self._seconds, self._salt, self._on_heartbeat))
        self._began = time.perf_counter()
        self._ready.set()
        traffic = await self._task
        self.streams = traffic.streams

    def _on_heartbeat(self, _: float) -> None:
        if self._stand_still:
            time.sleep(self._stand_still)


def _answer(url: str, arrival: Arrival, drain_seconds: float, salt: str) -> Stream:
    """What a lone request gets within so many seconds."""

    async def ask() -> Traffic:
        client = Client(url, await first_model(url), drain_seconds=drain_seconds)
        return await client.run([arrival], 0.0, salt)

    return asyncio.run(ask()).streams[0]


def measure_pace(url: str) -> Pace:
    """Asks for one answer of an otherwise idle engine. Raises DrillError."""
    for tokens in _PACE_TOKENS:
        stream = _answer(url, Arrival(0.0, _PACE_WORDS, tokens, 0, 0), _JOIN_SECONDS, "pace")
        if stream.error is None and (seconds := _pace_of(stream, tokens)) is not None:
            return Pace(seconds, (stream.prompt_tokens or _PACE_WORDS) / _PACE_WORDS)
    raise DrillError(f"a lone request was not answered in {_JOIN_SECONDS:g} s ({stream.error or 'too slow'})")


def _pace_of(stream: Stream, tokens: int) -> float | None:
    """Seconds per token. Of an answer that came in few pieces only a long one tells it; None: this one does not."""
    later = stream.tokens[tokens // 4 :]
    if len(later) >= 2:
        return (later[-1] - later[0]) / (len(later) - 1)
    if tokens == _PACE_TOKENS[-1] and len(stream.tokens) >= 2:
        return (stream.tokens[-1] - stream.tokens[0]) / (stream.output_tokens or tokens)
    return None


def warm_prefix(url: str, arrivals: Sequence[Arrival], pace: Pace, salt: str) -> None:
    """Has the prefix that the arrivals share computed once, and waits for it. Raises DrillError."""
    first = arrivals[0]
    alone = pace.in_words(first._replace(prompt_words=first.prefix_words + 1, output_tokens=1))
    if _answer(url, alone, _WARM_SECONDS, salt).ended is None:
        raise DrillError(f"a shared prefix of {first.prefix_words} tokens was not computed in {_WARM_SECONDS:g} s")


def levels_of(streams: Iterable[Stream], since: float, until: float) -> Levels:
    """Of the window from `since` to `until`, seconds after the start of the load.

    A failure counts at the last sign of its request.
    """
    levels = Levels()
    for stream in streams:
        levels.gaps += [b - a for a, b in pairwise(stream.tokens) if since <= b <= until]
        if stream.error is not None:
            levels.failed += since <= (stream.tokens[-1] if stream.tokens else stream.due) <= until
            continue
        if stream.due > until:
            continue
        if stream.ttft is not None and stream.tokens[0] <= until:
            if stream.tokens[0] >= since:
                levels.ttfts.append(stream.ttft)
        else:
            levels.ttfts.append(until - stream.due)
            levels.unanswered += 1
    return levels
