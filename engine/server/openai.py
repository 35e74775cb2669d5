"""/v1/completions and /v1/chat/completions, as OpenAI's clients speak them."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from engine.outputs import RequestStream, Usage
from engine.request import FinishReason, Request, SamplingParams
from engine.server.body import read_body
from engine.server.context import ServerContext
from engine.server.errors import ApiError, error_body, json_response
from engine.server.schemas import ChatBody, Common, CompletionBody, decode_body
from engine.server.sse import DONE, EventStream, event, unless_disconnected

DEFAULT_COMPLETION_TOKENS = 16
LONG_TEXT_CHARS = 4096
"""Longer prompts are tokenised on a worker thread, so that the event loop goes on serving the streams."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How the two APIs dress the same answer."""

    id_prefix: str
    object_whole: str
    object_chunk: str
    is_chat: bool

    def whole(self, text: str, finish_reason: str) -> dict[str, Any]:
        if self.is_chat:
            message = {"role": "assistant", "content": text, "refusal": None}
            return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}

    def chunk(self, text: str | None, finish_reason: str | None = None) -> dict[str, Any]:
        if self.is_chat:
            delta = {} if text is None else {"content": text}
            return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {"index": 0, "text": text or "", "logprobs": None, "finish_reason": finish_reason}


COMPLETION = Shape("cmpl-", "text_completion", "text_completion", is_chat=False)
CHAT = Shape("chatcmpl-", "chat.completion", "chat.completion.chunk", is_chat=True)


class Answer:
    """One request's answer, whole or in events."""

    def __init__(self, shape: Shape, stream: RequestStream, model: str) -> None:
        self._shape = shape
        self._stream = stream
        self._created = int(time.time())
        self._model = model

    async def whole(self) -> dict[str, Any]:
        text = await self._stream.collect()
        error = self._error()
        if error is not None:
            raise error
        choice = self._shape.whole(text, str(self._stream.finish_reason))
        return self._envelope(self._shape.object_whole, [choice]) | {"usage": _usage(self._stream.usage())}

    async def events(self, include_usage: bool) -> AsyncIterator[bytes]:
        """OpenAI's order: role (chat), texts, finish reason, usage with no choices, [DONE]; or one error event."""
        shape = self._shape
        nothing = {"usage": None} if include_usage else {}

        def chunk(choice: dict[str, Any]) -> bytes:
            return event(self._envelope(shape.object_chunk, [choice]) | nothing)

        if shape.is_chat:
            first = shape.chunk("")
            first["delta"] = {"role": "assistant", "content": "", "refusal": None}
            yield chunk(first)
        async for text in self._stream.texts():
            yield chunk(shape.chunk(text))
        error = self._error()
        if error is not None:
            # The status line is gone; clients look for this event.
            yield event(error_body(error))
            return
        yield chunk(shape.chunk(None, str(self._stream.finish_reason)))
        if include_usage:
            usage = {"usage": _usage(self._stream.usage())}
            yield event(self._envelope(shape.object_chunk, []) | usage)
        yield DONE

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._stream.request.request_id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _error(self) -> ApiError | None:
        reason = self._stream.finish_reason
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            return None
        return ApiError(500, "the engine ended this request with an error", code="engine_error")


class OpenAIApi:
    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._started = int(time.time())

    async def models(self, _: HttpRequest) -> Response:
        return json_response({"object": "list", "data": [self._model_card()]})

    async def model(self, http: HttpRequest) -> Response:
        self._check_model(http.path_params["name"])
        return json_response(self._model_card())

    async def completions(self, http: HttpRequest) -> Response:
        arrival_ns = perf_counter_ns()
        body = decode_body(await read_body(http), CompletionBody)
        self._check_model(body.model)
        prompt = await self._prompt_ids(body.prompt)
        return await self._answer(
            http, COMPLETION, body, prompt, body.max_tokens or DEFAULT_COMPLETION_TOKENS, arrival_ns
        )

    async def chat(self, http: HttpRequest) -> Response:
        arrival_ns = perf_counter_ns()
        body = decode_body(await read_body(http), ChatBody)
        self._check_model(body.model)
        messages = [message.as_template() for message in body.messages]
        codec = self._context.codec
        if sum(len(message["content"]) for message in messages) > LONG_TEXT_CHARS:
            prompt = await asyncio.to_thread(codec.encode_chat, messages)
        else:
            prompt = codec.encode_chat(messages)
        # Without a limit, a chat may fill the context.
        room = max(1, self._context.max_model_len - len(prompt))
        return await self._answer(
            http, CHAT, body, prompt, body.max_completion_tokens or body.max_tokens or room, arrival_ns
        )

    async def _answer(
        self, http: HttpRequest, shape: Shape, body: Common, prompt: list[int], max_tokens: int, arrival_ns: int
    ) -> Response:
        context = self._context
        if not prompt:
            raise ApiError(400, "the prompt has no tokens", param="messages" if shape.is_chat else "prompt")
        request = Request(
            request_id=shape.id_prefix + secrets.token_hex(12),
            prompt_token_ids=prompt,
            params=_sampling_params(body, max_tokens),
            arrival_ns=arrival_ns,
            cache_salt=body.cache_salt or "",
        )
        stream = RequestStream(context.engine, request, context.codec.detokenizer())
        stream.submit()
        answer = Answer(shape, stream, context.model_name)
        if body.stream:
            return EventStream(answer.events(body.include_usage), stream.close)
        try:
            return json_response(await unless_disconnected(http, answer.whole()))
        finally:
            stream.close()

    async def _prompt_ids(self, prompt: str | list[Any]) -> list[int]:
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            codec = self._context.codec
            return (
                await asyncio.to_thread(codec.encode, prompt) if len(prompt) > LONG_TEXT_CHARS else codec.encode(prompt)
            )
        if any(isinstance(part, str | list) for part in prompt):
            raise ApiError(400, "one prompt per request: a list of several prompts is not supported", param="prompt")
        vocab_size = self._context.codec.vocab_size
        for token_id in prompt:
            if type(token_id) is not int or not 0 <= token_id < vocab_size:
                raise ApiError(400, f"prompt holds {token_id!r}, token ids are 0 to {vocab_size - 1}", param="prompt")
        return prompt

    def _check_model(self, name: str | None) -> None:
        if name is not None and name not in self._context.model_aliases:
            message = f"the model {name!r} does not exist here, {self._context.model_name!r} is served"
            raise ApiError(404, message, param="model", code="model_not_found")

    def _model_card(self) -> dict[str, Any]:
        context = self._context
        return {
            "id": context.model_name,
            "object": "model",
            "created": self._started,
            "owned_by": "stallscope",
            "max_model_len": context.max_model_len,
        }


def _sampling_params(body: Common, max_tokens: int) -> SamplingParams:
    """OpenAI's defaults: temperature 1, top_p 1."""
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        seed=body.seed,
        stop=body.stop_strings(),
        ignore_eos=bool(body.ignore_eos),
    )


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
