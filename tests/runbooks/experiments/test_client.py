"""What the client stamps: open loop, from when a request was due, with its own delay beside it."""

import asyncio
from itertools import pairwise

import pytest

from diagnose.slo import parse_slo
from runbooks.errors import ExperimentError
from runbooks.experiments.client import Client, Stream, Traffic, first_model
from runbooks.experiments.figures import Answer, Lengths, conditions, lengths, make_block, measure
from runbooks.experiments.workload import Arrival
from tests.runbooks.experiments.fake_server import FakeServer


def run(server: FakeServer, arrivals: list[Arrival], seconds: float, drain: float = 5.0) -> Traffic:
    return asyncio.run(Client(server.url, "fake", drain_seconds=drain).run(arrivals, seconds, "salt"))


def test_every_token_of_every_stream_is_stamped():
    arrivals = [Arrival(0.1 * number, 12, 5, 0, 0) for number in range(4)]
    with FakeServer(gap=0.01) as server:
        traffic = run(server, arrivals, 0.5)
    assert [len(stream.tokens) for stream in traffic.streams] == [5] * 4
    for stream in traffic.streams:
        assert stream.sent is not None
        assert stream.ended is not None
        assert stream.due <= stream.sent < stream.tokens[0] < stream.tokens[-1] <= stream.ended
        assert (stream.prompt_tokens, stream.output_tokens, stream.cached_tokens) == (13, 5, 0)
        assert all(after >= before for before, after in pairwise(stream.tokens))
    assert len({prompt.split()[1] for prompt in server.prompts}) > 1
    assert traffic.loop_lags


def test_a_slow_server_does_not_slow_the_arrivals():
    """Twenty arrivals in a second to a server that needs two for each: all are sent in time."""
    arrivals = [Arrival(0.05 * number, 5, 2, 0, 0) for number in range(20)]
    with FakeServer(gap=1.0) as server:
        traffic = run(server, arrivals, 1.0)
    sent = [stream.sent for stream in traffic.streams if stream.sent is not None]
    assert len(sent) == 20
    assert max(sent) < 2.0


def test_streams_that_outlast_the_drain_are_aborted_and_keep_what_came():
    with FakeServer(gap=0.05) as server:
        traffic = run(server, [Arrival(0.0, 5, 1000, 0, 0)], 0.4, drain=0.2)
    stream = traffic.streams[0]
    assert stream.ended is None
    assert 2 <= len(stream.tokens) < 1000


def test_an_error_is_kept_in_words():
    with FakeServer(status=503) as server:
        traffic = run(server, [Arrival(0.0, 5, 5, 0, 0)], 0.1)
    assert traffic.streams[0].error == "HTTP 503: no room"
    unreachable = asyncio.run(Client("http://127.0.0.1:9", "m").run([Arrival(0.0, 5, 5, 0, 0)], 0.1, "s"))
    assert "ClientConnectorError" in (unreachable.streams[0].error or "")


def test_a_server_that_is_none_is_named():
    with pytest.raises(ExperimentError, match="not an OpenAI-compatible server"):
        asyncio.run(first_model("http://127.0.0.1:9"))


def stream(due: float, tokens: list[float], **over: object) -> Stream:
    made = Stream(
        due, sent=due, tokens=tokens, ended=tokens[-1] if tokens else None, prompt_tokens=100, output_tokens=len(tokens)
    )
    for name, value in over.items():
        setattr(made, name, value)
    return made


def test_figures_of_the_window_alone():
    """A block of 10 s of which the first 2 are washout."""
    traffic = Traffic(
        0.0,
        [
            stream(0.5, [1.0, 1.5, 2.5, 3.0]),  # due in the washout: its gaps count once they end inside
            stream(4.0, [4.5, 4.6, 4.8]),
            stream(9.0, [9.5, 11.0]),  # the second token came after the block
            stream(9.9, []),
        ],
        [0.001],
    )
    figures, samples, gaps = measure(traffic, (2.0, 10.0), parse_slo("ttft_p99=600ms"))
    assert gaps == pytest.approx((1.0, 0.5, 0.1, 0.2))
    assert figures["itl_p50"] == pytest.approx(0.2)
    assert figures["itl_p99"] == pytest.approx(1.0)
    assert figures["ttft_p50"] == pytest.approx(0.5)
    assert figures["ttft_p99"] == pytest.approx(1.1), "no token until the last anyone saw, at 11.0"
    assert figures["throughput"] == pytest.approx(6 / 8)
    assert figures["goodput"] == pytest.approx(2 / 8)
    assert samples == {"itl": 4, "ttft": 3, "throughput": 6, "goodput": 3}


def test_conditions_of_the_window():
    traffic = Traffic(
        0.0,
        [
            stream(0.5, [1.0], prompt_tokens=9000),
            stream(3.0, [4.0], cached_tokens=50),
            stream(4.0, [5.0], cached_tokens=0, prompt_tokens=300),
            stream(5.0, [], error="HTTP 503", prompt_tokens=None),
        ],
        [],
    )
    found = conditions(traffic, (2.0, 10.0))
    assert found.arrivals_per_second == pytest.approx(3 / 8)
    assert found.answers == (Answer(100, 1, 50), Answer(300, 1, 0), None)
    means = lengths([answer for answer in found.answers if answer is not None])
    assert means == Lengths(prompt=200, output=1, hit_rate=50 / 400)
    assert lengths([]) is None
    assert found.error_rate == pytest.approx(1 / 3)
    block = make_block(0, "A", traffic, (2.0, 10.0), (), 1000.0)
    assert (block.late_sends, block.lag_p99, block.first_error) == (0, 0.0, "HTTP 503")
