"""Stop strings and the stream of text."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core import TokenOutput
from engine.outputs import Piece, RequestStream, StopMatcher
from engine.request import FinishReason, Request, SamplingParams
from engine.runner.base import TokenLogprobs


class CharDetokenizer:
    """Token n is character n; 0 is half a character."""

    def push(self, token_id: int) -> str:
        return chr(token_id) if token_id else ""

    def flush(self) -> str:
        return ""


class FakeEngine:
    def __init__(self) -> None:
        self.aborted: list[tuple[str, FinishReason]] = []

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        self.aborted.append((request_id, reason))


def make_stream(stop: tuple[str, ...] = ()) -> tuple[RequestStream, FakeEngine]:
    engine = FakeEngine()
    request = Request("r", [1, 2], SamplingParams(stop=stop), 0)
    return RequestStream(engine, request, CharDetokenizer()), engine  # type: ignore[arg-type]


def feed(stream: RequestStream, text: str, reason: FinishReason | None = None, logprob: float | None = None) -> None:
    reported = None if logprob is None else TokenLogprobs(logprob, [], [])
    for index, char in enumerate(text):
        stream.sink(TokenOutput(stream.request, ord(char), reason if index == len(text) - 1 else None, reported))


@pytest.mark.parametrize(
    ("pieces", "stop", "expected", "stopped"),
    [
        (["hello"], (), "hello", False),
        (["hel", "lo END more"], ("END",), "hello ", True),
        (["a E", "N", "D b"], ("END",), "a ", True),
        (["a E", "N", "X b"], ("END",), "a ENX b", False),
        (["a EN"], ("END",), "a EN", False),
        (["aaab"], ("aab",), "a", True),
        (["a", "a", "a", "b"], ("aab",), "a", True),
        (["xyz"], ("z", "y"), "x", True),
        (["END"], ("END",), "", True),
        (["one\n", "\ntwo"], ("\n\n",), "one", True),
    ],
)
def test_text_ends_before_the_first_stop_string(pieces: list[str], stop: tuple[str, ...], expected: str, stopped: bool):
    matcher = StopMatcher(stop)
    text = "".join(matcher.push(piece) for piece in pieces) + matcher.finish()
    assert (text, matcher.stopped) == (expected, stopped)


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_stop_strings_do_not_depend_on_where_pieces_end(text: str, stop: list[str], data: st.DataObject):
    """However the text is cut, what is passed on is the text up to the earliest-ending stop string."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    matcher, by_char = StopMatcher(tuple(stop)), StopMatcher(tuple(stop))
    passed = "".join(matcher.push(piece) for piece in pieces) + matcher.finish()
    assert passed == "".join(by_char.push(char) for char in text) + by_char.finish()
    assert text.startswith(passed)
    assert not any(word in passed for word in stop)
    assert matcher.stopped == any(word in text for word in stop)
    if not matcher.stopped:
        assert passed == text


def test_a_stream_ends_with_its_reason_and_counts_every_token():
    async def main() -> None:
        stream, engine = make_stream()
        feed(stream, "abc", FinishReason.LENGTH)
        assert await stream.collect() == "abc"
        assert stream.finish_reason is FinishReason.LENGTH
        assert stream.usage() == (2, 3, 0)
        stream.close()
        assert engine.aborted == []

    asyncio.run(main())


def test_the_eos_token_is_counted_but_not_shown():
    async def main() -> None:
        stream, _ = make_stream()
        feed(stream, "ab#", FinishReason.STOP)
        assert await stream.collect() == "ab"
        assert stream.usage().completion_tokens == 3

    asyncio.run(main())


def test_a_stop_string_ends_the_request_in_the_engine():
    async def main() -> None:
        stream, engine = make_stream(("END",))
        feed(stream, "one ENDLESS")
        assert await stream.collect() == "one "
        assert stream.finish_reason is FinishReason.STOP
        assert engine.aborted == [("r", FinishReason.STOP)]
        assert stream.usage().completion_tokens == len("one END")

    asyncio.run(main())


def test_a_held_back_tail_comes_out_at_the_end():
    async def main() -> None:
        stream, _ = make_stream(("END",))
        feed(stream, "one EN", FinishReason.LENGTH)
        assert await stream.collect() == "one EN"

    asyncio.run(main())


def test_a_slow_reader_gets_what_gathered_in_one_piece():
    async def main() -> None:
        stream, _ = make_stream()
        feed(stream, "abc")
        pieces = stream.pieces()
        assert await anext(pieces) == ("abc", [])
        feed(stream, "de", FinishReason.LENGTH)
        assert [piece.text async for piece in pieces] == ["de"]

    asyncio.run(main())


def test_closing_an_open_stream_aborts_it_once():
    async def main() -> None:
        stream, engine = make_stream()
        stream.close()
        stream.close()
        assert engine.aborted == [("r", FinishReason.ABORT)]

    asyncio.run(main())


def tokens_of(piece: Piece) -> list[tuple[str, int]]:
    return [(chr(token.token_id), token.text_offset) for token in piece.tokens]


def test_tokens_come_with_the_text_they_begin():
    """Half a character (token 0) has no text yet: it goes with the text that follows it."""

    async def main() -> None:
        stream, _ = make_stream()
        pieces = stream.pieces()
        feed(stream, "ab\0", logprob=-1.0)
        piece = await anext(pieces)
        assert (piece.text, tokens_of(piece)) == ("ab", [("a", 0), ("b", 1)])
        feed(stream, "c", FinishReason.LENGTH, logprob=-1.0)
        piece = await anext(pieces)
        assert (piece.text, tokens_of(piece)) == ("c", [("\0", 2), ("c", 2)])

    asyncio.run(main())


def test_tokens_that_a_stop_string_may_cut_off_wait_for_their_text():
    async def main() -> None:
        stream, _ = make_stream(("END",))
        pieces = stream.pieces()
        feed(stream, "one EN", logprob=-1.0)
        first = await anext(pieces)
        assert (first.text, [char for char, _ in tokens_of(first)]) == ("one ", list("one "))
        feed(stream, "X EN", logprob=-1.0)
        second = await anext(pieces)
        assert (second.text, tokens_of(second)[0]) == ("ENX ", ("E", 4))
        feed(stream, "D more", logprob=-1.0)
        assert [piece async for piece in pieces] == []

    asyncio.run(main())


def test_tokens_without_text_come_out_at_the_end():
    async def main() -> None:
        stream, _ = make_stream()
        feed(stream, "a\0", FinishReason.LENGTH, logprob=-1.0)
        (piece,) = [piece async for piece in stream.pieces()]
        assert (piece.text, tokens_of(piece)) == ("a", [("a", 0), ("\0", 1)])

    asyncio.run(main())


def test_the_eos_token_has_no_log_probability():
    async def main() -> None:
        stream, _ = make_stream()
        feed(stream, "a#", FinishReason.STOP, logprob=-1.0)
        (piece,) = [piece async for piece in stream.pieces()]
        assert (piece.text, tokens_of(piece)) == ("a", [("a", 0)])

    asyncio.run(main())
