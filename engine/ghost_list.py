"""Identities of blocks whose content was given up a while ago: a request for one of them is a hit that came too late."""

from collections.abc import Sequence

from engine.config import check_bounds


class GhostList:
    """The newest evictions: all of the latest `generation`, and at most twice as many.

    Holds 64-bit identities and times, never KV. When the young generation is full it becomes the old one, and what was
    old is forgotten: nothing is looked up for being forgotten, which would cost more than the eviction itself.

    What is forgotten counts as new content when it is asked for again, so that the count of ghost hits is a lower bound.
    """

    def __init__(self, generation: int) -> None:
        check_bounds("generation", generation)
        self.generation = generation
        # Identity -> when it was evicted, ns.
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, identity_of: Sequence[int], block_ids: Sequence[int], now_ns: int) -> None:
        """What is in these blocks is evicted now, in this order; `identity_of`: of all blocks.

        None of it is on the list: content leaves it when it is cached again.
        """
        while block_ids:
            if len(self._young) >= self.generation:
                self._young, self._old = {}, self._young
            room = self.generation - len(self._young)
            young = self._young
            for block_id in block_ids[:room]:
                young[identity_of[block_id]] = now_ns
            block_ids = block_ids[room:]

    def take(self, identities: Sequence[int]) -> list[int]:
        """When those that are remembered were evicted, ns, the latest ones first. They are ghosts no longer."""
        taken: list[int] = []
        for ghosts in (self._young, self._old):
            if not ghosts.keys().isdisjoint(identities):
                taken += [evicted for identity in identities if (evicted := ghosts.pop(identity, None)) is not None]
        return taken

    def clear(self) -> None:
        self._young, self._old = {}, {}
