"""One number per block and metric, from what the client saw."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from diagnose.slo import Objective
from diagnose.stats import weighted_quantile
from runbooks.experiments.client import LATE_SEND_SECONDS, Stream, Traffic


class Answer(NamedTuple):
    """Tokens of one request that was answered to its end, as the server counted them; None where it does not say."""

    prompt: int
    output: int | None
    cached: int | None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of some answers."""

    prompt: float
    """Mean, tokens."""
    output: float | None
    hit_rate: float | None
    """Cached share of the prompt tokens."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What must be alike in both arms for their figures to be compared."""

    arrivals_per_second: float
    answers: tuple[Answer | None, ...]
    """In the order of the arrivals; None for one that was not answered to its end."""
    error_rate: float
    others: float | None = None
    """Share of what the target served that other clients asked for; None where it does not count it."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of one arm."""

    pair: int
    arm: str
    started_unix: float
    figures: dict[str, float]
    """By metric name; one that had no sample is absent."""
    conditions: Conditions
    samples: dict[str, int]
    gaps: tuple[float, ...]
    """Inter-token gaps, for the plot of both arms."""
    late_sends: int
    lag_p99: float
    """Of the client's own event loop, seconds."""
    speed: float
    """The machine's speed index: a fixed computation, per second, right before the block."""
    first_error: str = ""


def measure(
    traffic: Traffic, window: tuple[float, float], objectives: Sequence[Objective]
) -> tuple[dict[str, float], dict[str, int], tuple[float, ...]]:
    """Figures, sample counts and gaps of what happened inside `window` (seconds after the block's start).

    The time before it is the washout: what the arm before left behind has ended by then.
    """
    start, end = window
    inside = [stream for stream in traffic.streams if start <= stream.due < end]
    gaps = tuple(
        after - before
        for stream in traffic.streams
        for before, after in pairwise(stream.tokens)
        if start <= after < end
    )
    # A request without a first token by the end of the drain waited at least until then: leaving it out would flatter the arm.
    horizon = max((t for s in traffic.streams for t in s.tokens[-1:]), default=end)
    ttfts = [
        stream.ttft if stream.ttft is not None else max(horizon, end) - stream.due
        for stream in inside
        if not stream.error
    ]
    figures: dict[str, float] = {}
    for name, values in (("itl", gaps), ("ttft", tuple(ttfts))):
        if values:
            for q in (50, 95, 99):
                figures[f"{name}_p{q}"] = weighted_quantile(values, [1.0] * len(values), q / 100)
    tokens = sum(start <= at < end for stream in traffic.streams for at in stream.tokens)
    figures["throughput"] = tokens / (end - start)
    if objectives:
        figures["goodput"] = sum(_meets(stream, objectives) for stream in inside) / (end - start)
    return figures, {"itl": len(gaps), "ttft": len(ttfts), "throughput": tokens, "goodput": len(inside)}, gaps


def _meets(stream: Stream, objectives: Sequence[Objective]) -> bool:
    """Whether one request kept every objective, its quantiles taken over its own gaps."""
    if stream.error or stream.ttft is None or stream.ended is None:
        return False
    gaps = [after - before for before, after in pairwise(stream.tokens)]
    for objective in objectives:
        values = {
            "time_to_first_token": [stream.ttft],
            "e2e_latency": [stream.ended - stream.due],
            "inter_token_latency": gaps,
        }.get(objective.metric, [])
        if values and weighted_quantile(values, [1.0] * len(values), objective.quantile) > objective.limit_seconds:
            return False
    return True


def conditions(traffic: Traffic, window: tuple[float, float], others: float | None = None) -> Conditions:
    start, end = window
    inside = [stream for stream in traffic.streams if start <= stream.due < end]
    return Conditions(
        arrivals_per_second=sum(stream.sent is not None for stream in inside) / (end - start),
        answers=tuple(_answer(stream) for stream in inside),
        error_rate=sum(stream.error is not None for stream in inside) / len(inside) if inside else 0.0,
        others=others,
    )


def _answer(stream: Stream) -> Answer | None:
    if stream.error or stream.ended is None or stream.prompt_tokens is None:
        return None
    return Answer(stream.prompt_tokens, stream.output_tokens, stream.cached_tokens)


def lengths(answers: Sequence[Answer]) -> Lengths | None:
    """None of no answers."""
    if not answers:
        return None
    prompt = [answer.prompt for answer in answers]
    output = [answer.output for answer in answers if answer.output is not None]
    cached = [answer.cached for answer in answers if answer.cached is not None]
    return Lengths(
        fmean(prompt),
        fmean(output) if output else None,
        sum(cached) / sum(prompt) if sum(prompt) and len(cached) == len(answers) else None,
    )


def make_block(
    pair: int,
    arm: str,
    traffic: Traffic,
    window: tuple[float, float],
    objectives: Sequence[Objective],
    speed: float,
    others: float | None = None,
) -> Block:
    figures, samples, gaps = measure(traffic, window, objectives)
    lags = sorted(traffic.loop_lags)
    return Block(
        pair=pair,
        arm=arm,
        started_unix=traffic.started_unix,
        figures=figures,
        conditions=conditions(traffic, window, others),
        samples=samples,
        gaps=gaps,
        late_sends=sum(
            stream.sent is None or stream.sent - stream.due > LATE_SEND_SECONDS for stream in traffic.streams
        ),
        lag_p99=lags[int(0.99 * (len(lags) - 1))] if lags else 0.0,
        speed=speed,
        first_error=next((stream.error for stream in traffic.streams if stream.error), ""),
    )


_SPEED_DATA = bytes(1 << 20)


def speed_index(clock: Callable[[], float] = time.perf_counter) -> float:
    """Mebibytes of zeros hashed per second, the best of five: shared hosts change speed in steps, and a block tells on which."""
    best = float("inf")
    for _ in range(5):
        begin = clock()
        hashlib.sha256(_SPEED_DATA).digest()
        best = min(best, clock() - begin)
    return 1 / best if best > 0 else 0.0
