"""Identities of blocks whose content was given up a while ago: a request for one of them is a hit that came too late."""

from collections import OrderedDict

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

    def add(self, identity: bytes, now_ns: int) -> None:
        ghosts = self._evicted_ns
        ghosts[identity] = now_ns
        ghosts.move_to_end(identity)
        if len(ghosts) > self.capacity:
            ghosts.popitem(last=False)

    def take(self, identity: bytes) -> int | None:
        """When this content was evicted, ns; None when it is not remembered. It is a ghost no longer."""
        return self._evicted_ns.pop(identity, None)

    def clear(self) -> None:
        self._evicted_ns.clear()
