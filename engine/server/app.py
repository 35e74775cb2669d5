"""The ASGI application: the one place where engine, exporters and HTTP meet."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter_ns

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.core import TokenOutput
from engine.disagg.decode_side import INFO_PATH
from engine.errors import EngineUnavailable, RequestRejected
from engine.loop import Deliver
from engine.server.admin import AdminApi
from engine.server.context import ServerContext
from engine.server.disaggregation import DisaggregationApi
from engine.server.errors import ApiError, error_response
from engine.server.observe import ObserveApi
from engine.server.openai import OpenAIApi
from engine.server.sse import ClientGone
from probes.exports import close_all

log = logging.getLogger("stallscope.server")

EXPORT_GRACE_SECONDS = 3.0
"""What exporters get for their last delivery, all together."""


def build_app(context: ServerContext) -> Starlette:
    """The engine thread starts and stops with the application's lifespan."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        engine, loop = context.engine, asyncio.get_running_loop()

        def post(deliver: Deliver, outputs: list[TokenOutput]) -> None:
            loop.call_soon_threadsafe(arrive, deliver, outputs, perf_counter_ns())

        def arrive(deliver: Deliver, outputs: list[TokenOutput], handed_out_ns: int) -> None:
            context.recorder.on_delivered(perf_counter_ns() - handed_out_ns)
            deliver(outputs)

        engine.start(post)
        if context.disaggregation is not None:
            context.disaggregation.start()
        for export in context.exports:
            export.start()
        if context.gpu is not None:
            context.gpu.start()
        try:
            yield
        finally:
            engine.fail_all()
            if context.disaggregation is not None:
                context.disaggregation.stop()
            if context.gpu is not None and not await asyncio.to_thread(context.gpu.stop):
                log.warning("the GPU driver does not answer; leaving its thread behind")
            if not await asyncio.to_thread(engine.stop):
                log.error("the engine thread is still in a step; leaving it behind")
            await asyncio.to_thread(close_all, context.exports, EXPORT_GRACE_SECONDS)

    return Starlette(
        routes=_routes(context),
        lifespan=lifespan,
        exception_handlers={
            ApiError: _on_api_error,
            RequestRejected: _on_rejected,
            EngineUnavailable: _on_unavailable,
            ClientGone: _on_client_gone,
            HTTPException: _on_http_exception,
            Exception: _on_bug,
        },
    )


def _routes(context: ServerContext) -> list[Route]:
    openai, observe = OpenAIApi(context), ObserveApi(context)
    routes = [
        Route("/v1/completions", openai.completions, methods=["POST"]),
        Route("/v1/chat/completions", openai.chat, methods=["POST"]),
        Route("/v1/models", openai.models),
        Route("/v1/models/{name:path}", openai.model),
        Route("/health", observe.health),
        Route("/metrics", observe.metrics),
        Route("/version", observe.version),
        Route("/debug/steps", observe.steps),
        Route("/debug/census", observe.census),
        Route("/debug/requests", observe.requests),
        Route("/debug/gpu", observe.gpu),
    ]
    if context.disaggregation is not None and context.disaggregation.prefill is not None:
        routes.append(Route(INFO_PATH, DisaggregationApi(context.disaggregation.prefill).describe))
    if context.admin_token is not None:
        admin = AdminApi(context, context.admin_token)
        routes += [
            Route("/admin/state", admin.state),
            Route("/admin/limits", admin.limits, methods=["POST"]),
            Route("/admin/prefix_cache", admin.prefix_cache, methods=["POST"]),
            Route("/admin/prefix_cache/reset", admin.reset_prefix_cache, methods=["POST"]),
            Route("/admin/drain", admin.drain, methods=["POST"]),
            Route("/admin/resume", admin.resume, methods=["POST"]),
        ]
    return routes


async def _on_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _on_rejected(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRejected)
    return error_response(ApiError(400, str(error), param=error.param, code=error.code))


async def _on_unavailable(_: Request, error: Exception) -> Response:
    assert isinstance(error, EngineUnavailable)
    return error_response(ApiError(503, str(error), code=error.code))


async def _on_client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # reaches nobody; keeps the log of the ASGI server quiet


async def _on_http_exception(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = error_response(ApiError(error.status_code, error.detail))
    response.headers.update(error.headers or {})
    return response


async def _on_bug(request: Request, error: Exception) -> Response:
    log.error("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
    return error_response(ApiError(500, "internal error", code="internal_error"))
