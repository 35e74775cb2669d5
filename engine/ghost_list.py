"""Identities of blocks whose content was given up a while ago: a request for one of them is a hit that came too late."""

from collections.abc import Sequence

from engine.config import check_bounds


class GhostList:
    """The newest `capacity` evictions. Holds 64-bit identities and times, never KV; every operation is O(1) per block.

    What has been overwritten counts as new content when it is asked for again, so that the count of ghost hits is a
    lower bound: it misses what comes back after more than `capacity` further evictions.
    """

    def __init__(self, capacity: int) -> None:
        check_bounds("capacity", capacity)
        self.capacity = capacity
        # A ring, overwritten from the oldest on, several places at a time; None where a ghost was asked for.
        self._ring: list[int | None] = [None] * capacity
        self._evicted_ns = [0] * capacity
        self._next = 0
        self._place_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._place_of)

    def add(self, identities: Sequence[int], now_ns: int) -> None:
        """Evicted now, in this order. None of them is on the list: content leaves it when it is cached again."""
        while identities:
            start, count = self._next, min(len(identities), self.capacity - self._next)
            end = start + count
            for overwritten in self._ring[start:end]:
                if overwritten is not None:
                    del self._place_of[overwritten]
            self._ring[start:end] = identities[:count]
            self._evicted_ns[start:end] = [now_ns] * count
            self._place_of.update(zip(identities, range(start, end), strict=False))
            self._next = end % self.capacity
            identities = identities[count:]

    def take(self, identities: Sequence[int]) -> list[int]:
        """When those that are remembered were evicted, ns. They are ghosts no longer."""
        place_of = self._place_of
        if place_of.keys().isdisjoint(identities):
            return []
        places = [place for identity in identities if (place := place_of.pop(identity, None)) is not None]
        for place in places:
            self._ring[place] = None
        return [self._evicted_ns[place] for place in places]

    def clear(self) -> None:
        self._ring = [None] * self.capacity
        self._place_of.clear()
