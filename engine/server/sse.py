"""Server-sent events, and the two ways of noticing that a client has gone."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"

T = TypeVar("T")


class ClientGone(Exception):
    """The connection closed before the answer was ready: nobody is left to answer."""


def event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


class EventStream(StreamingResponse):
    """Calls `on_close` when the response is over, however it ends: a disconnect may come before the first event.

    `on_cut` is called where it was the server that broke it off: the status line is gone by then, and the client is left with
    an answer that has no end.
    """

    def __init__(
        self, events: AsyncIterator[bytes], on_close: Callable[[], None], on_cut: Callable[[Exception], None]
    ) -> None:
        # Proxies must pass events on as they come.
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._on_close = on_close
        self._on_cut = on_cut

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except ClientDisconnect:
            raise
        except Exception as error:
            self._on_cut(error)
            raise
        finally:
            self._on_close()


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; cancels it and raises ClientGone when the client leaves first."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    """Returns when the client has gone; the body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
