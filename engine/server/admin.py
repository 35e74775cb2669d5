"""The admin surface: a small closed set of verbs that may be repeated, each answering with the new state.

It exists only when a token file was given. The token is checked before anything of the body is read.
"""

import hmac

from starlette.requests import Request
from starlette.responses import Response

from engine.errors import ConfigError
from engine.server.body import MAX_ADMIN_BODY_BYTES, read_body
from engine.server.context import ServerContext
from engine.server.errors import ApiError, json_response
from engine.server.schemas import LimitsBody, PrefixCacheBody, decode_body


class AdminApi:
    def __init__(self, context: ServerContext, token: bytes) -> None:
        self._engine = context.engine
        self._token = token

    async def state(self, request: Request) -> Response:
        self._authorize(request)
        return self._state()

    async def limits(self, request: Request) -> Response:
        self._authorize(request)
        body = decode_body(await read_body(request, MAX_ADMIN_BODY_BYTES), LimitsBody)
        if body.max_batched_tokens is None and body.max_sequences is None:
            raise ApiError(400, "give max_batched_tokens, max_sequences or both", param="max_batched_tokens")
        try:
            self._engine.set_limits(body.max_batched_tokens, body.max_sequences)
        except ConfigError as error:
            text = str(error)
            param = "max_sequences" if "max_sequences" in text else "max_batched_tokens"
            raise ApiError(400, text, param=param, code="out_of_bounds") from None
        return self._state()

    async def prefix_cache(self, request: Request) -> Response:
        self._authorize(request)
        body = decode_body(await read_body(request, MAX_ADMIN_BODY_BYTES), PrefixCacheBody)
        self._engine.set_prefix_cache(body.enabled)
        return self._state()

    async def reset_prefix_cache(self, request: Request) -> Response:
        self._authorize(request)
        self._engine.reset_prefix_cache()
        return self._state()

    async def drain(self, request: Request) -> Response:
        self._authorize(request)
        self._engine.drain()
        return self._state()

    async def resume(self, request: Request) -> Response:
        self._authorize(request)
        self._engine.resume()
        return self._state()

    def _state(self) -> Response:
        return json_response(self._engine.state()._asdict())

    def _authorize(self, request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Compared in constant time whatever the scheme, so that the answer's time says nothing.
        matches = hmac.compare_digest(given.strip().encode("latin-1"), self._token)
        if scheme.lower() != "bearer" or not matches:
            raise ApiError(401, "a valid admin token is needed: Authorization: Bearer ...", code="invalid_admin_token")
