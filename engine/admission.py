"""Which requests can ever be served."""

from collections.abc import Container, Sequence

from engine.config import SchedulerConfig
from engine.errors import RequestRejected
from engine.prefix_cache import pack_tokens
from engine.request import Request


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def check_group(group: Sequence[Request], live_ids: Container[str], config: SchedulerConfig) -> None:
    """As `check_request`, for requests that come together; their ids must be new, too."""
    ids: set[str] = set()
    for request in group:
        if request.request_id in live_ids or request.request_id in ids:
            raise RequestRejected(
                f"request id {request.request_id!r} is already in use", param="request_id", code="duplicate_request"
            )
        ids.add(request.request_id)
        check_request(request, config)


def check_request(request: Request, config: SchedulerConfig) -> None:
    """Raises RequestRejected, with the numbers, when no amount of waiting would let the request finish."""
    num_prompt, max_tokens = len(request.prompt_token_ids), request.params.max_tokens
    if num_prompt == 0:
        raise RequestRejected("the prompt is empty: at least 1 token is needed", param="prompt", code="empty_prompt")
    try:
        pack_tokens(request.prompt_token_ids)
    except ValueError as error:
        raise RequestRejected(str(error), param="prompt", code="invalid_token_id") from error
    if max_tokens < 1:
        raise RequestRejected(
            f"max_tokens must be at least 1, got {max_tokens}", param="max_tokens", code="invalid_max_tokens"
        )
    if num_prompt + 1 > config.max_model_len:
        raise RequestRejected(
            f"the prompt has {num_prompt} tokens; with 1 output token that exceeds the context"
            f" of {config.max_model_len}",
            param="prompt",
            code="context_length_exceeded",
        )
    if num_prompt + max_tokens > config.max_model_len:
        raise RequestRejected(
            f"{num_prompt} prompt tokens + max_tokens {max_tokens} exceed the context of {config.max_model_len};"
            f" at most {config.max_model_len - num_prompt} output tokens fit",
            param="max_tokens",
            code="context_length_exceeded",
        )
    # The last output token is never fed back, so its KV is never stored.
    needed = blocks_for(num_prompt + max_tokens - 1, config.block_size)
    if needed > config.kv_blocks:
        raise RequestRejected(
            f"{num_prompt} prompt tokens + max_tokens {max_tokens} need {needed} KV blocks"
            f" of {config.block_size} tokens; the whole pool has {config.kv_blocks}",
            param="max_tokens",
            code="kv_capacity_exceeded",
        )
