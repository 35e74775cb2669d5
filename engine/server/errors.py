"""Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}}."""

from typing import Any

import msgspec
from starlette.responses import Response

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    503: "service_unavailable_error",
}


class ApiError(Exception):
    """An answer other than success. Raised anywhere in a handler, rendered in one place."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code


def error_body(error: ApiError) -> dict[str, Any]:
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def error_response(error: ApiError) -> Response:
    headers = {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    elif error.status == 503:
        headers["retry-after"] = "1"
    elif error.status == 413:
        headers["connection"] = "close"  # the rest of the body stays unread
    return json_response(error_body(error), error.status, headers)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")
