"""Identities of blocks whose content was given up a while ago: a request for one of them is a hit that came too late."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine.config import check_bounds


class GhostList:
    """The newest `capacity` evictions. Holds digests and times, never KV; every operation is O(1).

    What has fallen off the end counts as new content when it is asked for again, so that the count of ghost hits is a
    lower bound: it misses what comes back after more than `capacity` further evictions.
    """

    def __init__(self, capacity: int) -> None:
        check_bounds("capacity", capacity)
        self.capacity = capacity
        self._evicted_ns: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._evicted_ns)

    def add(self, identities: Iterable[bytes], now_ns: int) -> None:
        """Evicted now, in this order. None of them is on the list: content leaves it when it is cached again."""
        ghosts = self._evicted_ns
        for identity in identities:
            ghosts[identity] = now_ns
        for _ in range(len(ghosts) - self.capacity):
            ghosts.popitem(last=False)

    def take(self, identities: Iterable[bytes]) -> list[int]:
        """When those that are remembered were evicted, ns. They are ghosts no longer."""
        if not self._evicted_ns:
            return []
        pop = self._evicted_ns.pop
        return [evicted for identity in identities if (evicted := pop(identity, None)) is not None]

    def discard(self, identities: Sequence[bytes]) -> None:
        """They are cached again, without having been asked for."""
        if not self._evicted_ns.keys().isdisjoint(identities):
            for identity in identities:
                self._evicted_ns.pop(identity, None)

    def clear(self) -> None:
        self._evicted_ns.clear()
