"""/v1/completions and /v1/chat/completions, as OpenAI's clients speak them."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from engine.errors import RequestRejected
from engine.outputs import OutputToken, RequestStream, merged
from engine.request import FinishReason, Request, choice_seed
from engine.server.body import read_body
from engine.server.context import ServerContext, TextCodec
from engine.server.errors import ApiError, error_body, json_response
from engine.server.logprobs import chat_logprobs, completion_logprobs
from engine.server.schemas import ChatBody, Common, CompletionBody, decode_body
from engine.server.sse import DONE, EventStream, event, unless_disconnected
from probes.recorder import RequestOrigin

log = logging.getLogger("stallscope.server")

DEFAULT_COMPLETION_TOKENS = 16
LONG_TEXT_CHARS = 4096
"""Longer prompts are tokenised on a worker thread, so that the event loop goes on serving the streams."""
MAX_TRACE_CONTEXT_CHARS = 512
"""Of each trace context header; finished requests are kept with theirs."""

Logprobs = dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Shape:
    """How the two APIs dress the same answer."""

    id_prefix: str
    object_whole: str
    object_chunk: str
    is_chat: bool

    @property
    def operation(self) -> str:
        """As the GenAI conventions name it."""
        return "chat" if self.is_chat else "text_completion"

    def whole(self, index: int, text: str, logprobs: Logprobs, finish_reason: str) -> dict[str, Any]:
        if self.is_chat:
            message = {"role": "assistant", "content": text, "refusal": None}
            return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason}
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def chunk(
        self, index: int, text: str | None, logprobs: Logprobs = None, finish_reason: str | None = None
    ) -> dict[str, Any]:
        if self.is_chat:
            delta = {} if text is None else {"content": text}
            return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return {"index": index, "text": text or "", "logprobs": logprobs, "finish_reason": finish_reason}


COMPLETION = Shape("cmpl-", "text_completion", "text_completion", is_chat=False)
CHAT = Shape("chatcmpl-", "chat.completion", "chat.completion.chunk", is_chat=True)


class Answer:
    """One request's answer, whole or in events. It has a stream per choice, that of the first one being the leader's."""

    def __init__(self, shape: Shape, streams: list[RequestStream], model: str, codec: TextCodec) -> None:
        self._shape = shape
        self._codec = codec
        self._streams = streams
        self._created = int(time.time())
        self._model = model

    async def whole(self) -> dict[str, Any]:
        texts: list[list[str]] = [[] for _ in self._streams]
        tokens: list[list[OutputToken]] = [[] for _ in self._streams]
        async for index, piece in merged(self._streams):
            if piece is not None:
                texts[index].append(piece.text)
                tokens[index] += piece.tokens
            elif _failed(self._streams[index]):
                raise _engine_error()
        choices = [
            self._shape.whole(index, "".join(texts[index]), self._logprobs(tokens[index]), str(stream.finish_reason))
            for index, stream in enumerate(self._streams)
        ]
        return self._envelope(self._shape.object_whole, choices) | {"usage": self._usage()}

    async def events(self, include_usage: bool) -> AsyncIterator[bytes]:
        """OpenAI's order: role (chat), texts and finish reason of each choice, usage with no choices, [DONE].

        One error event ends them all.
        """
        shape = self._shape
        nothing = {"usage": None} if include_usage else {}

        def chunk(choice: dict[str, Any]) -> bytes:
            return event(self._envelope(shape.object_chunk, [choice]) | nothing)

        if shape.is_chat:
            for index in range(len(self._streams)):
                first = shape.chunk(index, "")
                first["delta"] = {"role": "assistant", "content": "", "refusal": None}
                yield chunk(first)
        async for index, piece in merged(self._streams):
            if piece is not None:
                yield chunk(shape.chunk(index, piece.text, self._logprobs(piece.tokens)))
            elif _failed(self._streams[index]):
                # The status line is gone; clients look for this event.
                yield event(error_body(_engine_error()))
                return
            else:
                yield chunk(shape.chunk(index, None, finish_reason=str(self._streams[index].finish_reason)))
        if include_usage:
            yield event(self._envelope(shape.object_chunk, []) | {"usage": self._usage()})
        yield DONE

    def close(self) -> None:
        """Aborts what has not finished. Idempotent."""
        for stream in self._streams:
            stream.close()

    def _logprobs(self, tokens: list[OutputToken]) -> Logprobs:
        num_top = self._streams[0].request.params.logprobs
        if num_top is None:
            return None
        if self._shape.is_chat:
            return chat_logprobs(tokens, self._codec)
        return completion_logprobs(tokens, self._codec, num_top)

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._streams[0].request.request_id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _usage(self) -> dict[str, Any]:
        """The prompt counts once: it was computed once."""
        leader = self._streams[0].usage()
        completion = sum(stream.usage().completion_tokens for stream in self._streams)
        return {
            "prompt_tokens": leader.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": leader.prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": leader.cached_tokens},
        }


def _failed(stream: RequestStream) -> bool:
    return stream.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH)


def _engine_error() -> ApiError:
    return ApiError(500, "the engine ended this request with an error", code="engine_error")


def _origin(http: HttpRequest, shape: Shape, request_id: str) -> RequestOrigin:
    traceparent, tracestate = (http.headers.get(name) for name in ("traceparent", "tracestate"))
    if traceparent is None or len(traceparent) > MAX_TRACE_CONTEXT_CHARS:
        return RequestOrigin(shape.operation, request_id)
    if tracestate is not None and len(tracestate) > MAX_TRACE_CONTEXT_CHARS:
        tracestate = None  # may be dropped; the parent may not
    return RequestOrigin(shape.operation, request_id, traceparent, tracestate)


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
        request_id = shape.id_prefix + secrets.token_hex(12)
        params = body.sampling_params(max_tokens, context.codec.vocab_size)
        origin = _origin(http, shape, request_id)
        requests = [
            Request(
                request_id=f"{request_id}/{choice}" if choice else request_id,
                prompt_token_ids=prompt,
                params=replace(params, seed=choice_seed(params.seed, choice)) if choice else params,
                arrival_ns=arrival_ns,
                cache_salt=body.cache_salt or "",
                origin=origin,
            )
            for choice in range(body.n or 1)
        ]
        streams = [RequestStream(context.engine, request, context.codec.detokenizer()) for request in requests]
        try:
            streams[0].submit(streams[1:])
        except RequestRejected as error:
            param = body.their_names.get(error.param or "", error.param)
            raise ApiError(400, str(error), param=param, code=error.code) from error
        answer = Answer(shape, streams, context.model_name, context.codec)
        if body.stream:
            return EventStream(answer.events(body.include_usage), answer.close, self._on_cut)
        try:
            return json_response(await unless_disconnected(http, answer.whole()))
        finally:
            answer.close()

    def _on_cut(self, error: Exception) -> None:
        log.error("connection dropped in the middle of a stream: %s: %s", type(error).__name__, error)
        self._context.recorder.on_failure("connection_dropped")

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
