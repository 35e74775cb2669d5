"""A small OpenAI-compatible server that streams at a pace which a test sets."""

import asyncio
import json
import threading
from types import TracebackType

from aiohttp import web


class FakeServer:
    """`with FakeServer(gap=0.02) as server:` streams a token every `gap` seconds at `server.url`."""

    def __init__(self, gap: float = 0.02, *, status: int = 200, stall: float = 0.0) -> None:
        self.gap, self.status, self.stall = gap, status, stall
        """Every tenth token comes `stall` seconds later."""
        self.prompts: list[str] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "FakeServer":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """May be called from anywhere, and twice."""
        if not self._loop.is_closed() and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.prompts.append(body["prompt"])
        if self.status != 200:
            return web.Response(status=self.status, text="no room")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(body["max_tokens"]):
            await asyncio.sleep(self.gap + (self.stall if number % 10 == 9 else 0.0))
            await self._send(response, {"choices": [{"text": " a", "index": 0}]})
        words = len(body["prompt"].split())
        usage = {
            "prompt_tokens": words,
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        await self._send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _send(self, response: web.StreamResponse, chunk: dict[str, object]) -> None:
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
