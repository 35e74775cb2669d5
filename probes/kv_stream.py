"""When the KV of a prompt has crossed a link, chunk by chunk or all at the end. Analytical, on an otherwise free link.

compute   |--c0--|--c1--|--c2--|
overlap          |-t0-|  |-t1-| |-t2-|          a chunk leaves as soon as it is computed and the link is free
serial                         |-t0-|-t1-|-t2-| nothing leaves before the whole prompt is computed
                               |.....| exposed: what the decode side waits for beyond the computation
"""

from collections.abc import Sequence
from typing import NamedTuple

from probes.arithmetic import ByteRate, ideal_payload_time, kv_payload


class ChunkTimes(NamedTuple):
    """Seconds since the computation began."""

    num_tokens: int
    computed: float
    transfer_start: float
    transferred: float


class StreamTimeline(NamedTuple):
    chunks: tuple[ChunkTimes, ...]

    @property
    def computed_seconds(self) -> float:
        """When the last chunk is computed."""
        return self.chunks[-1].computed

    @property
    def done_seconds(self) -> float:
        """When all KV is there: no dependent decode starts before."""
        return self.chunks[-1].transferred

    @property
    def transfer_seconds(self) -> float:
        """Time on the link, summed over chunks."""
        return sum(chunk.transferred - chunk.transfer_start for chunk in self.chunks)

    @property
    def exposed_seconds(self) -> float:
        """What the transfer adds to the computation; the rest of it is hidden behind later chunks."""
        return self.done_seconds - self.computed_seconds


def stream_timeline(
    chunk_tokens: Sequence[int],
    chunk_seconds: Sequence[float],
    *,
    bytes_per_token: int,
    link: ByteRate,
    overlap: bool = True,
) -> StreamTimeline:
    """Chunks of `chunk_tokens` tokens that take `chunk_seconds` to compute, one after the other, over one link.

    Transfers take their ideal payload time and keep their order. Raises ValueError without a chunk, for sequences of
    different lengths, and for a chunk without tokens or of negative time.
    """
    if not chunk_tokens or len(chunk_tokens) != len(chunk_seconds):
        raise ValueError(
            f"{len(chunk_tokens)} chunks with {len(chunk_seconds)} times: one time for each of them is needed"
        )
    if min(chunk_tokens) <= 0 or min(chunk_seconds) < 0:
        raise ValueError(
            f"chunks need tokens and times of 0 or more, got {list(chunk_tokens)} in {list(chunk_seconds)} s"
        )
    prompt_seconds = sum(chunk_seconds)
    chunks: list[ChunkTimes] = []
    computed = link_free = 0.0
    for num_tokens, seconds in zip(chunk_tokens, chunk_seconds, strict=True):
        computed += seconds
        start = max(link_free, computed if overlap else prompt_seconds)
        link_free = start + ideal_payload_time(kv_payload(num_tokens, bytes_per_token), link).seconds
        chunks.append(ChunkTimes(num_tokens, computed, start, link_free))
    return StreamTimeline(tuple(chunks))
