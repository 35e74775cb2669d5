"""A lock that says who waited, how long, and who held it meanwhile."""

from bisect import bisect_left
from threading import Lock
from time import perf_counter_ns
from types import TracebackType

from probes.catalog import LATENCY_BOUNDS_NS


class Histogram:
    """Cumulative histogram of nanoseconds. Single writer (or a writer that holds a lock); readers take differences."""

    __slots__ = ("bounds", "count", "counts", "sum_ns")

    def __init__(self, bounds: tuple[int, ...] = LATENCY_BOUNDS_NS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum_ns = 0

    def observe(self, value_ns: int, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value_ns)] += times
        self.count += times
        self.sum_ns += value_ns * times

    def copy(self) -> "Histogram":
        """As it is now; for whoever holds the lock under which it is written."""
        twin = Histogram(self.bounds)
        twin.counts, twin.count, twin.sum_ns = list(self.counts), self.count, self.sum_ns
        return twin

    def cumulative(self) -> list[int]:
        """Counts at or below each bound, the last one for +Inf."""
        total, result = 0, []
        for count in self.counts:
            total += count
            result.append(total)
        return result


class LockSite:
    """One place in the code that takes the lock: `with site: ...`. Figures are written while the lock is held."""

    __slots__ = ("_lock", "contended", "hold", "last_hold_ns", "last_wait_ns", "name", "wait")

    def __init__(self, lock: "TimedLock", name: str) -> None:
        self._lock = lock
        self.name = name
        self.wait = Histogram()
        self.hold = Histogram()
        self.contended = 0
        self.last_wait_ns = 0
        self.last_hold_ns = 0

    def __enter__(self) -> "LockSite":
        lock = self._lock
        if lock.raw.acquire(blocking=False):
            lock.taken_ns = perf_counter_ns()
            self.last_wait_ns = 0
        else:
            asked_ns = perf_counter_ns()
            lock.raw.acquire()
            lock.taken_ns = perf_counter_ns()
            self.last_wait_ns = lock.taken_ns - asked_ns
            self.contended += 1
        self.wait.observe(self.last_wait_ns)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lock = self._lock
        self.last_hold_ns = perf_counter_ns() - lock.taken_ns
        self.hold.observe(self.last_hold_ns)
        lock.raw.release()


class TimedLock:
    """The scheduler lock. Uncontended cost: one try-acquire, two clocks, two bucket searches."""

    def __init__(self) -> None:
        self.raw = Lock()
        self.taken_ns = 0
        self.sites: dict[str, LockSite] = {}

    def site(self, name: str) -> LockSite:
        """Call once per place in the code and keep the result; a site belongs to one thread at a time."""
        if name in self.sites:
            raise ValueError(f"lock site {name!r} exists already")
        self.sites[name] = LockSite(self, name)
        return self.sites[name]
