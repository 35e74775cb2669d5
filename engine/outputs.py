"""From tokens to text, per request: incremental detokenising, stop strings, and the stream a handler reads."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from engine.core import TokenOutput
from engine.loop import EngineThread
from engine.request import FinishReason, Request
from engine.runner.base import TokenLogprobs


class Detokenizer(Protocol):
    """Turns tokens into text as they come; text that later tokens may still change (half a character) is kept back."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class StopMatcher:
    """Passes text on up to the first stop string; text that may turn out to be the start of one is held back.

    "...and so on END"     stop strings: "END", "\\n\\n"
     |--- passed ---|E     held: the longest tail that is a proper start of a stop string
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Text that is now certain. Nothing more comes once `stopped`."""
        if self.stopped or not text:
            return ""
        if not self._stop:
            return text
        pending = self._held + text
        # The one that is complete first, so that the answer does not depend on how the text was cut into tokens.
        found = [(at + len(stop), at) for stop in self._stop if (at := pending.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return pending[: min(found)[1]]
        keep = max(_overlap(pending, stop) for stop in self._stop)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def finish(self) -> str:
        """The held tail, when generation ended for another reason: it was no stop string after all."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper start of `stop` that `text` ends with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


class Usage(NamedTuple):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class OutputToken(NamedTuple):
    """A token of the answer with its log probabilities."""

    token_id: int
    text_offset: int
    """Characters of the answer before it."""
    logprobs: TokenLogprobs


class Piece(NamedTuple):
    """What came at once."""

    text: str
    tokens: list[OutputToken]
    """Those whose text has begun by the end of `text`; none unless the request asked for log probabilities."""


class RequestStream:
    """One request as its handler sees it. Lives on the event loop; `sink` is called there by the engine's hand-out.

    A slow client costs no more than its token ids: what has gathered meanwhile comes as one piece of text.
    """

    def __init__(self, engine: EngineThread, request: Request, detokenizer: Detokenizer) -> None:
        self.request = request
        self.finish_reason: FinishReason | None = None
        self._engine = engine
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(request.params.stop)
        self._pending: list[TokenOutput] = []
        self._arrived = asyncio.Event()
        self._num_tokens = 0
        self._num_chars = 0
        """Characters decoded so far, held back ones included."""
        self._num_passed_on = 0
        self._held_tokens: list[OutputToken] = []

    def submit(self, siblings: Sequence["RequestStream"] = ()) -> None:
        """`siblings`: further choices of the same prompt. Raises RequestRejected or EngineUnavailable."""
        self._engine.submit(self.request, self.sink, [(stream.request, stream.sink) for stream in siblings])

    def sink(self, output: TokenOutput) -> None:
        self._pending.append(output)
        self._arrived.set()

    def close(self) -> None:
        """Aborts what has not finished: the client left. Idempotent."""
        if self.finish_reason is None:
            self.finish_reason = FinishReason.ABORT
            self._engine.abort(self.request.request_id)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Pieces of the answer in order, none empty; ends when `finish_reason` is set."""
        while self.finish_reason is None:
            await self._arrived.wait()
            self._arrived.clear()
            outputs, self._pending = self._pending, []
            text = self._text_of(outputs)
            tokens = self._tokens_up_to(text)
            if text or tokens:
                yield Piece(text, tokens)

    async def collect(self) -> str:
        return "".join([piece.text async for piece in self.pieces()])

    def usage(self) -> Usage:
        """Every sampled token counts, the end-of-sequence token too."""
        prompt = len(self.request.prompt_token_ids)
        return Usage(prompt, self._num_tokens, self.request.num_cached_tokens)

    def _text_of(self, outputs: list[TokenOutput]) -> str:
        pieces = []
        for output in outputs:
            ended_by_eos = output.finish_reason is FinishReason.STOP
            if output.token_id is not None:
                self._num_tokens += 1
                if not ended_by_eos:
                    if output.logprobs is not None:
                        self._held_tokens.append(OutputToken(output.token_id, self._num_chars, output.logprobs))
                    text = self._detokenizer.push(output.token_id)
                    self._num_chars += len(text)
                    pieces.append(self._matcher.push(text))
            if output.finish_reason is not None and not self._matcher.stopped:
                pieces.append(self._matcher.push(self._detokenizer.flush()))
                pieces.append(self._matcher.finish())
            if self._matcher.stopped:
                self.finish_reason = FinishReason.STOP
                self._engine.abort(self.request.request_id, FinishReason.STOP)
                break
            self.finish_reason = output.finish_reason
        return "".join(pieces)

    def _tokens_up_to(self, text: str) -> list[OutputToken]:
        """Tokens that go with `text`, which is passed on now. The others wait: a stop string may yet cut them off."""
        self._num_passed_on += len(text)
        held, passed_on = self._held_tokens, self._num_passed_on
        if self.finish_reason is not None and not self._matcher.stopped:
            self._held_tokens = []
            return held
        self._held_tokens = [token for token in held if token.text_offset >= passed_on]
        return held[: len(held) - len(self._held_tokens)]


async def merged(streams: Sequence[RequestStream]) -> AsyncIterator[tuple[int, Piece | None]]:
    """Pieces with the index of their stream, as they come, and (index, None) when one has ended.

    At most one piece per stream is taken ahead of the reader.
    """
    pieces = [stream.pieces() for stream in streams]
    if len(pieces) == 1:  # needs no tasks
        async for piece in pieces[0]:
            yield 0, piece
        yield 0, None
        return
    waiting = {asyncio.ensure_future(anext(own, None)): i for i, own in enumerate(pieces)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                index, found = waiting.pop(task), task.result()
                if found is not None:
                    waiting[asyncio.ensure_future(anext(pieces[index], None))] = index
                yield index, found
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
