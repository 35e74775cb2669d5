"""Entry point of `vllm.endpoint_plugins`: /debug/steps and /debug/census on the API server's own port.

vLLM adds routes of plugins only where the operator has named them in VLLM_PLUGINS; without that the same answers are to be
had from the side port, on the machine itself.
"""

from argparse import Namespace
from typing import Any

import urllib3
from fastapi import FastAPI, Request, Response
from urllib3.exceptions import HTTPError

from probes.vllm import rendezvous

_PATHS = ("/debug/steps", "/debug/census")
_TIMEOUT_SECONDS = 5.0


class StallscopeRoutes:
    name = "stallscope"
    required_tasks = None

    def __init__(self) -> None:
        self._pool = urllib3.PoolManager(maxsize=4, retries=False, timeout=urllib3.Timeout(_TIMEOUT_SECONDS))

    def attach_router(self, app: FastAPI) -> None:
        for path in _PATHS:
            app.add_api_route(path, self._forward, methods=["GET"], include_in_schema=False)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Nothing to prepare: the side ports are looked up at each request."""

    def _forward(self, request: Request, engine: int = 0) -> Response:
        """Not async: it runs in a thread of its own, so that a large answer holds up no request."""
        ports = rendezvous.side_ports()
        if engine not in ports:
            return Response("no engine of this server has a probe under that number\n", 404, media_type="text/plain")
        query = f"?{request.url.query}" if request.url.query else ""
        try:
            found = self._pool.request("GET", f"{ports[engine]}{request.url.path}{query}")
        except HTTPError as error:
            return Response(f"the engine's side port does not answer: {error}\n", 503, media_type="text/plain")
        return Response(found.data, found.status, media_type=found.headers.get("Content-Type"))
