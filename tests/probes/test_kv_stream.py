"""Chunked KV streaming on paper: the lesson's exercise 4, to the digit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.arithmetic import ByteRate, ideal_payload_time, kv_bytes_per_token, kv_payload
from probes.kv_stream import StreamTimeline, stream_timeline
from tests.requirements import covers

LINK = ByteRate.from_gigabits_per_second(200)
KIB_160 = kv_bytes_per_token(num_layers=40, num_kv_heads=8, head_dim=128, bytes_per_element=2)


def exercise_4(chunk_ms: float, overlap: bool = True) -> StreamTimeline:
    """4096 tokens in 8 chunks of 512 over 200 Gb/s."""
    return stream_timeline([512] * 8, [chunk_ms / 1e3] * 8, bytes_per_token=KIB_160, link=LINK, overlap=overlap)


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


@covers("S6.9", "S8.14")
def test_chunks_stream_while_the_next_ones_are_computed():
    timeline = exercise_4(chunk_ms=5)
    first = timeline.chunks[0]
    assert first.transferred - first.transfer_start == pytest.approx(3.3554432e-3, rel=1e-12)
    assert (first.computed, first.transfer_start) == (5e-3, 5e-3)
    assert ms(timeline.done_seconds) == 43.355
    assert ms(timeline.exposed_seconds) == 3.355, "one chunk's transfer: the others hide behind computation"
    assert [ms(chunk.transfer_start) for chunk in timeline.chunks] == [5, 10, 15, 20, 25, 30, 35, 40]


@covers("S6.9", "S8.14")
def test_without_overlap_the_transfer_follows_the_computation():
    timeline = exercise_4(chunk_ms=5, overlap=False)
    assert ms(timeline.done_seconds) == 66.844
    assert timeline.exposed_seconds == pytest.approx(timeline.transfer_seconds)
    assert timeline.transfer_seconds == pytest.approx(0.0268435456, rel=1e-12)


@covers("S6.9")
def test_fast_computation_is_bound_by_the_link():
    timeline = exercise_4(chunk_ms=1)
    assert ms(timeline.done_seconds) == 27.844, "the first chunk's computation, then the link without a pause"
    starts = [chunk.transfer_start for chunk in timeline.chunks]
    assert starts[1:] == [chunk.transferred for chunk in timeline.chunks[:-1]]


@given(
    chunks=st.lists(st.tuples(st.integers(1, 4096), st.floats(0, 0.1)), min_size=1, max_size=12),
    overlap=st.booleans(),
)
def test_a_timeline_is_never_better_than_its_parts(chunks: list[tuple[int, float]], overlap: bool):
    """Overlap hides transfer time, it does not remove any; and it is never worse than to wait."""
    tokens, seconds = [c[0] for c in chunks], [c[1] for c in chunks]
    one = stream_timeline(tokens, seconds, bytes_per_token=KIB_160, link=LINK, overlap=overlap)
    serial = stream_timeline(tokens, seconds, bytes_per_token=KIB_160, link=LINK, overlap=False)
    payload = ideal_payload_time(kv_payload(sum(tokens), KIB_160), LINK).seconds
    assert one.transfer_seconds == pytest.approx(payload)
    assert one.done_seconds <= serial.done_seconds + 1e-12
    assert one.done_seconds >= max(sum(seconds), payload) - 1e-12
    for chunk in one.chunks:
        assert chunk.transfer_start >= chunk.computed - 1e-12, "KV leaves after it was computed"


@pytest.mark.parametrize(("tokens", "seconds"), [([], []), ([512], [1.0, 1.0]), ([0], [1.0]), ([512], [-1.0])], ids=str)
def test_chunks_that_make_no_sense_are_refused(tokens: list[int], seconds: list[float]):
    with pytest.raises(ValueError, match="chunks"):
        stream_timeline(tokens, seconds, bytes_per_token=1, link=LINK)
