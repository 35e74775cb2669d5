"""Faults of the front end that a drill asks for: an event loop that stands still, and streams that are cut off.

Both are wrapped around the application, which knows nothing of them.
"""

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.drill_fault import DrillFault

_EVENTS_BEFORE_A_CUT = 20


class CutOff(Exception):
    """What the drill raises in the middle of a stream."""


def make_faulty_app(fault: DrillFault, app: ASGIApp) -> ASGIApp:
    """`app` itself where the fault is one of the engine's."""
    if fault.kind == "frontend":
        return BlockedLoop(app, fault.seconds)
    if fault.kind == "drop":
        return CutStreams(app, fault.amount)
    return app


class BlockedLoop:
    """The server's event loop does nothing for so long, again and again, as a callback does that computes or waits on it."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            return await self._app(scope, receive, send)
        standing = asyncio.create_task(self._stand_still())
        try:
            await self._app(scope, receive, send)
        finally:
            standing.cancel()

    async def _stand_still(self) -> None:
        while True:
            time.sleep(self._seconds)  # nothing else runs meanwhile: that is the fault
            await asyncio.sleep(self._seconds / 5)


class CutStreams:
    """Every so-manieth stream ends after some events without the end of its answer, and its connection is closed."""

    def __init__(self, app: ASGIApp, every: int) -> None:
        self._app = app
        self._every = every
        self._streams = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left: int | None = None

        async def counted(message: Message) -> None:
            nonlocal left
            if message["type"] == "http.response.start" and (b"content-type", _EVENT_STREAM) in message["headers"]:
                self._streams += 1
                left = _EVENTS_BEFORE_A_CUT if self._streams % self._every == 0 else None
            elif left is not None:
                left -= 1
                if left < 0:
                    raise CutOff(f"the drill cuts off one stream of {self._every}")
            await send(message)

        await self._app(scope, receive, counted)


_EVENT_STREAM = b"text/event-stream; charset=utf-8"
