"""Reading a request's body within bounds."""

from starlette.requests import ClientDisconnect, Request

from engine.server.errors import ApiError
from engine.server.sse import ClientGone

MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_ADMIN_BODY_BYTES = 4096


async def read_body(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """Raises ApiError 413 as soon as the body is known to be larger, without reading the rest."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            chunks.append(chunk)
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(chunks)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
