"""What an observer reads: health, metrics, step records, block census, version."""

import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from engine.server.context import ServerContext
from engine.server.errors import ApiError, json_response
from probes.gpu import GpuReading, GpuSample
from probes.locks import Histogram
from probes.prometheus import negotiated
from probes.snapshot import ReuseSnapshot
from probes.wire import StepsHeader, encode_steps

_LINES_PER_WRITE = 64
_REQUESTS_LISTED = 1000

_NotNegative = Annotated[int, Meta(ge=0)]
_Positive = Annotated[int, Meta(ge=1)]
T = TypeVar("T")


class ObserveApi:
    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def health(self, _: Request) -> Response:
        """200 while new requests are taken; 503 says why not."""
        engine = self._context.engine
        status = engine.status()
        if status == "ok":
            return json_response({"status": status})
        return json_response({"status": status, "reason": engine.dead_reason or "no new requests are taken"}, 503)

    async def version(self, _: Request) -> Response:
        return json_response({"version": self._context.version})

    async def metrics(self, request: Request) -> Response:
        page, content_type = negotiated(self._context.collector, request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type, "vary": "accept"})

    async def census(self, _: Request) -> Response:
        state = self._context.engine.snapshot()
        buckets = state.census._asdict() | {"total": state.census.total}
        facts = {"free_includes_reclaimable": False, "block_size": self._context.block_size}
        return json_response(buckets | facts | {"reuse": None if state.reuse is None else _reuse(state.reuse)})

    async def gpu(self, _: Request) -> Response:
        """What the driver says of the engine's GPU, and for each figure that it does not say, why."""
        gpu = self._context.gpu
        reading = GpuReading((), "the engine runs on the CPU") if gpu is None else gpu.latest()
        return json_response({"gpus": [_gpu(sample) for sample in reading.gpus], "reason": reading.reason})

    async def requests(self, request: Request) -> Response:
        """The oldest live requests, at most `limit`: what each waits for and for how long."""
        limit = _query_number(request, "limit", _Positive) or _REQUESTS_LISTED
        views, total = self._context.engine.requests(limit)
        return json_response({"total": total, "requests": [view._asdict() for view in views]})

    async def steps(self, request: Request) -> Response:
        """JSON lines: a header, then the records from `since` on, at most `limit` of them."""
        since = _query_number(request, "since", _NotNegative) or 0
        limit = _query_number(request, "limit", _Positive)
        found = self._context.recorder.steps_since(since, limit)
        header = StepsHeader(
            self._context.engine.facts.engine_id, found.next_id, found.lost, time.perf_counter_ns(), time.time_ns()
        )

        async def lines() -> AsyncIterator[bytes]:
            encoded = encode_steps(header, found.records)
            while batch := "".join(islice(encoded, _LINES_PER_WRITE)):
                yield batch.encode()

        return StreamingResponse(lines(), media_type="application/jsonl")


def _reuse(reuse: ReuseSnapshot) -> dict[str, Any]:
    return {
        "ghost_hits": reuse.ghost_age.count,
        "ghosts": reuse.num_ghosts,
        "working_set_blocks": reuse.working_set_blocks,
        "working_set_window_seconds": reuse.working_set_window_seconds,
        "residency_seconds": _count_and_mean(reuse.residency),
        "reuse_seconds": _count_and_mean(reuse.reuse),
        "ghost_age_seconds": _count_and_mean(reuse.ghost_age),
    }


def _gpu(sample: GpuSample) -> dict[str, Any]:
    return asdict(sample) | {"throttle": None if sample.throttle is None else sorted(sample.throttle)}


def _count_and_mean(ages: Histogram) -> dict[str, float | None]:
    """Since the start; the distribution is in the metrics."""
    return {"count": ages.count, "mean": ages.sum_ns / 1e9 / ages.count if ages.count else None}


def _query_number(request: Request, name: str, kind: type[int]) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ApiError(400, f"{name}={text!r}: {error}", param=name) from None
