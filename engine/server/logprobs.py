"""Log probabilities in the two shapes of OpenAI's APIs."""

from collections.abc import Sequence
from typing import Any

from engine.outputs import OutputToken
from engine.server.context import TextCodec


def completion_logprobs(tokens: Sequence[OutputToken], codec: TextCodec, num_top: int) -> dict[str, Any]:
    """Parallel lists. `top_logprobs` has `num_top` entries per token, and one more when the chosen one is not among
    them; it is null when none are asked for."""
    names = [_name(codec.token_bytes(token.token_id)) for token in tokens]
    return {
        "tokens": names,
        "token_logprobs": [token.logprobs.logprob for token in tokens],
        "top_logprobs": [_alternatives(token, codec) for token in tokens] if num_top else None,
        "text_offset": [token.text_offset for token in tokens],
    }


def chat_logprobs(tokens: Sequence[OutputToken], codec: TextCodec) -> dict[str, Any]:
    content = []
    for token in tokens:
        top = zip(token.logprobs.top_token_ids, token.logprobs.top_logprobs, strict=True)
        entry = _chat_entry(codec.token_bytes(token.token_id), token.logprobs.logprob)
        content.append(entry | {"top_logprobs": [_chat_entry(codec.token_bytes(one), value) for one, value in top]})
    return {"content": content, "refusal": None}


def _alternatives(token: OutputToken, codec: TextCodec) -> dict[str, float]:
    ids, values = token.logprobs.top_token_ids, token.logprobs.top_logprobs
    chosen = {_name(codec.token_bytes(token.token_id)): token.logprobs.logprob}
    return {_name(codec.token_bytes(one)): value for one, value in zip(ids, values, strict=True)} | chosen


def _chat_entry(raw: bytes, logprob: float) -> dict[str, Any]:
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}


def _name(raw: bytes) -> str:
    """A token as a key: part of a character is spelled out, or all of them would be one key."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
