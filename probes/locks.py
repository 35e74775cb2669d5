"""Locks that say who waited, how long, and which site held them meanwhile: `TimedLock`, `TimedRLock`, `TimedCondition`.

    lock = TimedLock()
    schedule, submit = lock.site("schedule"), lock.site("submit")     # once per place in the code
    with schedule: ...

Uncontended, a site costs one try-acquire, two clocks and a bucket search. All figures are written by whoever holds the lock.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from threading import Lock, get_ident
from time import perf_counter_ns
from types import TracebackType
from typing import TypeVar, cast

from probes.catalog import LATENCY_BOUNDS_NS

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


class LockSite:
    """One place in the code that takes the lock: `with site: ...`.

    Threads may share a site; `last_wait_ns` and `last_hold_ns` are then those of whoever had the lock last.
    """

    __slots__ = ("_lock", "blocked_ns", "contended", "hold", "last_hold_ns", "last_wait_ns", "name", "wait")

    def __init__(self, lock: "TimedLock", name: str) -> None:
        self._lock = lock
        self.name = name
        self.wait = Histogram()
        """One observation per acquisition, zero when the lock was free."""
        self.hold = Histogram()
        self.contended = 0
        """Acquisitions that had to wait."""
        self.blocked_ns: Counter[str] = Counter()
        """The waits by the site that held the lock meanwhile, or NOBODY: they add up to `wait.sum_ns`."""
        self.last_wait_ns = 0
        self.last_hold_ns = 0

    def __enter__(self) -> "LockSite":
        lock = self._lock
        if lock.raw.acquire(False):
            try:
                self.last_wait_ns = 0
                self.wait.counts[0] += 1
            except Exception:  # noqa: BLE001 - a fault of the probe is counted; the engine has its lock
                lock.probe_errors += 1
        else:
            self._wait()
        lock.holder = self
        lock.taken_ns = perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lock = self._lock
        try:
            now_ns = perf_counter_ns()
            self.last_hold_ns = held_ns = now_ns - lock.taken_ns
            hold = self.hold
            hold.counts[bisect_left(hold.bounds, held_ns)] += 1
            hold.sum_ns += held_ns
            if lock.waiters:
                lock.tell_waiters(self.name, now_ns)
        except Exception:  # noqa: BLE001 - as in __enter__
            lock.probe_errors += 1
        finally:
            lock.raw.release()

    def _wait(self) -> None:
        lock = self._lock
        waiter = _Waiter(perf_counter_ns())
        lock.waiters.add(waiter)
        try:
            lock.raw.acquire()
        finally:
            lock.waiters.discard(waiter)
        try:
            self.last_wait_ns = waited_ns = perf_counter_ns() - waiter.asked_ns
            self.contended += 1
            self.wait.observe(waited_ns)
            self.blocked_ns.update(waiter.held_by_ns)
            self.blocked_ns[NOBODY] += waited_ns - waiter.held_by_ns.total()
        except Exception:  # noqa: BLE001 - as in __enter__
            lock.probe_errors += 1


class TimedLock:
    """A `threading.Lock` whose holders and waiters are timed; it is taken through its sites."""

    def __init__(self) -> None:
        self.raw = Lock()
        self.taken_ns = 0
        self.holder: LockSite
        """Who took it last; not set before that."""
        self.waiters: set[_Waiter] = set()
        self.sites: dict[str, LockSite] = {}
        self.probe_errors = 0
        """Faults of the bookkeeping; the lock itself worked."""

    def site(self, name: str) -> LockSite:
        """Call once per place in the code and keep the result. Raises ValueError for a name that is taken."""
        if name in self.sites or name == NOBODY:
            raise ValueError(f"lock site {name!r} exists already")
        self.sites[name] = self._make_site(name)
        return self.sites[name]

    def _make_site(self, name: str) -> LockSite:
        return LockSite(self, name)

    def tell_waiters(self, holder: str, now_ns: int) -> None:
        """Books the hold that ends with everyone who waited for it. Who asks later than `now_ns` waited for nothing of it."""
        for waiter in self.waiters.copy():
            waited_ns = now_ns - max(self.taken_ns, waiter.asked_ns)
            if waited_ns > 0:
                waiter.held_by_ns[holder] += waited_ns

    # What a condition does with it.

    def is_held(self) -> bool:
        return self.raw.locked()

    def let_go(self) -> tuple[LockSite, int]:
        """Ends the hold; returns what `take_back` needs to take the lock again for the same site."""
        site = self.holder
        LockSite.__exit__(site, None, None, None)
        return site, 1

    def take_back(self, state: tuple[LockSite, int]) -> None:
        LockSite.__enter__(state[0])


class ReentrantSite(LockSite):
    """A place that takes a `TimedRLock`. Only a thread's outermost acquisition waits, holds and counts."""

    __slots__ = ()
    _lock: "TimedRLock"

    def __enter__(self) -> "ReentrantSite":
        lock, me = self._lock, get_ident()
        if lock.owner == me:
            lock.depth += 1
        else:
            LockSite.__enter__(self)
            lock.owner, lock.depth = me, 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lock = self._lock
        lock.depth -= 1
        if not lock.depth:
            lock.owner = None
            LockSite.__exit__(lock.holder, kind, error, trace)


class TimedRLock(TimedLock):
    """A `threading.RLock` that is timed: the thread that holds it may take it again, through any of its sites."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: int | None = None
        self.depth = 0

    def _make_site(self, name: str) -> LockSite:
        return ReentrantSite(self, name)

    def is_held(self) -> bool:
        return self.owner == get_ident()

    def let_go(self) -> tuple[LockSite, int]:
        depth, self.owner, self.depth = self.depth, None, 0
        return super().let_go()[0], depth

    def take_back(self, state: tuple[LockSite, int]) -> None:
        super().take_back(state)
        self.owner, self.depth = get_ident(), state[1]


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
