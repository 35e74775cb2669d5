"""How large the pool would have to be: the number of blocks that would have served the reuse of the last minutes.

An LRU pool of C blocks still holds what is asked for if and only if no more than C blocks were needed since: those in use
now, those used after it, and itself. That number, the demand, is taken of every block that is asked for again. The
working set is the smallest pool that meets 95 % of the demands of the last five minutes.

        in use now        used since, newest first      asked for again
    |----------------|--------------------------------|x|..... older .....|
    |------------------ demand, in blocks --------------|
"""

from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns

from engine.config import check_bounds

DEPTH_IN_POOLS = 8
"""How far back a block is remembered, in pools; the largest working set that can be told."""
MAX_TRACKED = 16_384
"""Blocks that are remembered one by one; of a deeper stack only a sample is."""
SERVED_SHARE = 0.95
WINDOW_SECONDS = 300.0
_SLICES = 10
_EXACT_BITS = 7


def demand_class(demand: int) -> int:
    """The upper end of the class that holds `demand`: itself below 128, and at most 1/64 more above."""
    shift = max(0, demand.bit_length() - _EXACT_BITS)
    return ((demand >> shift) + 1 << shift) - 1


class WorkingSet:
    """An LRU stack over block identities: uniformly distributed, signed integers of 64 bits.

    Exact for pools of up to MAX_TRACKED / DEPTH_IN_POOLS (2,048) blocks. For larger ones it remembers those identities
    that lie below a threshold, a fixed share R of all (spatial sampling, as in SHARDS): a demand of D blocks then
    has a standard error of sqrt((1 - R) / (R * D)) of itself, which is at most 2.3 % where it matters, at D >= the pool.
    Demands from 128 on are kept in classes 1/64 wide and reported by their upper end. What comes back after DEPTH_IN_POOLS
    pools of other blocks counts as new.

    Not seen: blocks that were in use between two uses, are not in use now and never held a full block of content.
    """

    def __init__(
        self,
        num_blocks: int,
        clock_ns: Callable[[], int] = perf_counter_ns,
        window_seconds: float = WINDOW_SECONDS,
        max_tracked: int = MAX_TRACKED,
    ) -> None:
        check_bounds("num_blocks", num_blocks)
        check_bounds("max_tracked", max_tracked)
        depth = DEPTH_IN_POOLS * num_blocks
        self.sampling_rate = min(1.0, max_tracked / depth)
        self._tracked = min(depth, max_tracked)
        self._threshold = round(self.sampling_rate * 2**64) - 2**63
        self.window_seconds = window_seconds
        self._clock_ns = clock_ns
        self._slice_ns = max(1, round(window_seconds * 1e9 / _SLICES))
        self._slices: deque[tuple[int, Counter[int]]] = deque()
        self._uses = 0
        # Identity -> number of its latest use, oldest first; the same numbers, ascending, for counting how many are newer.
        # Numbers of forgotten identities may linger at the old end, where they change no count.
        self._number_of: OrderedDict[int, int] = OrderedDict()
        self._numbers: list[int] = []

    def used(self, identities: Iterable[int]) -> None:
        """These have just gone out of use, the first of them being the next to be evicted."""
        number_of, numbers = self._number_of, self._numbers
        if self.sampling_rate < 1.0:
            threshold = self._threshold
            identities = [identity for identity in identities if identity < threshold]
        for identity in identities:
            if identity in number_of:
                self._remove(identity)
            self._uses += 1
            number_of[identity] = self._uses
            numbers.append(self._uses)
        for _ in range(len(number_of) - self._tracked):
            number_of.popitem(last=False)
        if len(numbers) > 2 * self._tracked:
            del numbers[: len(numbers) - len(number_of)]

    def asked(self, identities: Sequence[int], in_use: int) -> None:
        """A request asks for these, in the order of its prefix, while `in_use` blocks are in use; they now are, too."""
        pop = self._number_of.pop
        asked: Iterable[tuple[int, int]] = enumerate(identities)
        if self.sampling_rate < 1.0:
            threshold = self._threshold
            asked = [(position, identity) for position, identity in asked if identity < threshold]
        # What went out of use in one go, tail first, has numbers in a row, and is handled as one.
        newest = 0
        run: list[int] = []
        for position, identity in asked:
            number = pop(identity, None)
            if number is None:
                continue
            if run and number != newest - len(run):
                self._end_run(newest, run, in_use)
                run = []
            if not run:
                newest = number
            run.append(position)
        if run:
            self._end_run(newest, run, in_use)

    def forget(self, identities: Sequence[int]) -> None:
        """They came into use without having been asked for."""
        number_of = self._number_of
        if number_of.keys().isdisjoint(identities):  # as it mostly is
            return
        for identity in identities:
            if identity in number_of:
                self._remove(identity)

    def blocks(self) -> int | None:
        """The working set in blocks; None when nothing was asked for again within the window."""
        self._drop_old(self._clock_ns())
        demands: Counter[int] = Counter()
        for _, counts in self._slices:
            demands.update(counts)
        wanted = SERVED_SHARE * demands.total()
        served = 0
        for demand in sorted(demands):
            served += demands[demand]
            if served >= wanted:
                return demand
        return None

    def clear(self) -> None:
        """What is cached was given up on purpose: asking for it again says nothing about the pool."""
        self._number_of.clear()
        self._numbers.clear()

    def _remove(self, identity: int) -> None:
        numbers = self._numbers
        del numbers[bisect_left(numbers, self._number_of.pop(identity))]

    def _end_run(self, newest: int, positions: list[int], in_use: int) -> None:
        """Takes numbers newest, newest - 1, ... off the stack, and notes the demand of each of the blocks."""
        numbers, count = self._numbers, len(positions)
        at = bisect_left(numbers, newest - count + 1)
        newer = len(numbers) - at - count
        # Moves as many numbers as are newer: a memory move of some kilobytes at most.
        del numbers[at : at + count]
        demand = in_use + round(newer / self.sampling_rate) + 1
        counts = self._current_slice()
        if positions[-1] - positions[0] == count - 1:
            low, high = demand + positions[0], demand + positions[-1]
            while low <= high:
                top = demand_class(low)
                counts[top] += min(top, high) - low + 1
                low = top + 1
        else:
            counts.update([demand_class(demand + position) for position in positions])

    def _current_slice(self) -> Counter[int]:
        now_ns = self._clock_ns()
        current = now_ns // self._slice_ns
        if not self._slices or self._slices[-1][0] != current:
            self._drop_old(now_ns)
            self._slices.append((current, Counter()))
        return self._slices[-1][1]

    def _drop_old(self, now_ns: int) -> None:
        oldest = now_ns // self._slice_ns - _SLICES
        while self._slices and self._slices[0][0] <= oldest:
            self._slices.popleft()
