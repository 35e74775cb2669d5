"""Locks that say who waited, how long, and which site held them meanwhile: `TimedLock`, `TimedRLock`, `TimedCondition`.

    lock = TimedLock()
    schedule, submit = lock.site("schedule"), lock.site("submit")     # once per place in the code
    with schedule: ...

Uncontended, a site costs two clocks and a bucket search beside its lock, in C where that was built. All figures are written by
whoever holds the lock.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from threading import Lock, get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeVar, cast

from probes.catalog import LATENCY_BOUNDS_NS

if TYPE_CHECKING:
    from probes.lock_core import LockCore, SiteCore
else:
    try:
        from probes._lock_core import LockCore, SiteCore
    except ImportError:  # no compiler where it was installed, or another interpreter since
        from probes.lock_core import LockCore, SiteCore

T = TypeVar("T")

NOBODY = "nobody"
"""Stands for the holder while a waiter could have had the lock but had not got the processor or the interpreter yet."""


class Histogram:
    """Cumulative histogram of nanoseconds. Single writer (or a writer that holds a lock); readers take differences."""

    __slots__ = ("bounds", "counts", "sum_ns")

    def __init__(self, bounds: tuple[int, ...] = LATENCY_BOUNDS_NS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_ns = 0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value_ns: int, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value_ns)] += times
        self.sum_ns += value_ns * times

    def copy(self) -> "Histogram":
        """As it is now; for whoever holds the lock under which it is written."""
        twin = Histogram(self.bounds)
        twin.counts, twin.sum_ns = list(self.counts), self.sum_ns
        return twin

    def cumulative(self) -> list[int]:
        """Counts at or below each bound, the last one for +Inf."""
        total, result = 0, []
        for count in self.counts:
            total += count
            result.append(total)
        return result


class _Waiter:
    """One thread's wait in progress. Whoever gives the lock back books its part, the waiter the rest."""

    __slots__ = ("asked_ns", "held_by_ns")

    def __init__(self, asked_ns: int) -> None:
        self.asked_ns = asked_ns
        self.held_by_ns: Counter[str] = Counter()


class LockSite(SiteCore):
    """One place in the code that takes the lock: `with site: ...`.

    Threads may share a site; `last_wait_ns` and `last_hold_ns` are then those of whoever had the lock last. Only a thread's
    outermost acquisition of a `TimedRLock` waits, holds and counts.
    """

    __slots__ = ("blocked_ns", "contended", "name", "waits")

    lock: "TimedLock"

    def __init__(self, lock: "TimedLock", name: str) -> None:
        super().__init__(lock, LATENCY_BOUNDS_NS)
        self.name = name
        self.waits = Histogram()
        """Of contended acquisitions."""
        self.contended = 0
        """Acquisitions that had to wait."""
        self.blocked_ns: Counter[str] = Counter()
        """The waits by the site that held the lock meanwhile, or NOBODY: they add up to `wait.sum_ns`."""

    @property
    def wait(self) -> Histogram:
        """One observation per acquisition, zero when the lock was free."""
        wait = self.waits.copy()
        wait.counts[0] += self.uncontended
        return wait

    @property
    def hold(self) -> Histogram:
        hold = Histogram()
        hold.counts, hold.sum_ns = self.hold_counts(), self.hold_sum_ns
        return hold

    def wait_for_lock(self) -> None:
        lock = self.lock
        waiter = _Waiter(lock.clock_ns())
        lock.waiters.add(waiter)
        try:
            lock.acquire()
        finally:
            lock.waiters.discard(waiter)
        try:
            self.last_wait_ns = waited_ns = lock.clock_ns() - waiter.asked_ns
            self.contended += 1
            self.waits.observe(waited_ns)
            self.blocked_ns.update(waiter.held_by_ns)
            self.blocked_ns[NOBODY] += waited_ns - waiter.held_by_ns.total()
        except Exception:  # noqa: BLE001 - a fault of the probe is counted; the engine has its lock
            lock.probe_errors += 1


class TimedLock(LockCore):
    """A `threading.Lock` whose holders and waiters are timed; it is taken through its sites."""

    waiters: set[_Waiter]

    def __init__(self, clock_ns: Callable[[], int] = perf_counter_ns, *, reentrant: bool = False) -> None:
        self.raw = Lock()
        super().__init__(self.raw, clock_ns, reentrant, set())
        self.sites: dict[str, LockSite] = {}

    def site(self, name: str) -> LockSite:
        """Call once per place in the code and keep the result. Raises ValueError for a name that is taken."""
        if name in self.sites or name == NOBODY:
            raise ValueError(f"lock site {name!r} exists already")
        self.sites[name] = LockSite(self, name)
        return self.sites[name]

    def tell_waiters(self, site: LockSite, now_ns: int) -> None:
        """Books the hold that ends with everyone who waited for it. Who asks later than `now_ns` waited for nothing of it."""
        for waiter in self.waiters.copy():
            waited_ns = now_ns - max(self.taken_ns, waiter.asked_ns)
            if waited_ns > 0:
                waiter.held_by_ns[site.name] += waited_ns

    # What a condition does with it.

    def is_held(self) -> bool:
        """By this thread, where the lock is reentrant; by any, where it is not."""
        return self.owner == get_ident() if self.reentrant else self.locked()

    def let_go(self) -> tuple[LockSite, int]:
        """Ends the hold, however deep; returns what `take_back` needs to take the lock again for the same site."""
        site, depth = cast(LockSite, self.holder), self.depth
        self.depth = 1
        site.__exit__(None, None, None)
        return site, depth

    def take_back(self, state: tuple[LockSite, int]) -> None:
        site, depth = state
        site.__enter__()
        self.depth = depth


class TimedRLock(TimedLock):
    """A `threading.RLock` that is timed: the thread that holds it may take it again, through any of its sites."""

    def __init__(self, clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        super().__init__(clock_ns, reentrant=True)


class TimedCondition:
    """A `threading.Condition` on a timed lock, which is held through its sites as ever; several conditions may share it.

    `wait` ends the site's hold. The time until the notification is no wait for the lock; taking the lock again is.
    """

    def __init__(self, lock: TimedLock) -> None:
        self._condition = threading.Condition(cast(Lock, _ConditionLock(lock)))

    def wait(self, timeout: float | None = None) -> bool:
        """False when `timeout` seconds went by first. Raises RuntimeError, as the others do, when the lock is not held."""
        return self._condition.wait(timeout)

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Until `predicate()` is true; its last answer, which is false when `timeout` seconds went by first."""
        return self._condition.wait_for(predicate, timeout)

    def notify(self, n: int = 1) -> None:
        self._condition.notify(n)

    def notify_all(self) -> None:
        self._condition.notify_all()


class _ConditionLock:
    """The lock under the names by which `threading.Condition` asks for one whose waits are not plain releases."""

    def __init__(self, lock: TimedLock) -> None:
        self.acquire, self.release = lock.raw.acquire, lock.raw.release
        self._is_owned, self._release_save, self._acquire_restore = lock.is_held, lock.let_go, lock.take_back
