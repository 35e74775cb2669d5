"""The quick part of a timed lock: what every acquisition runs through, and all of one that nobody contends for.

`_lock_core.c` says the same in C; `probes.locks` takes that where it was built (`python -m probes.build`), and this elsewhere.
Tests run on both.
"""

from bisect import bisect_left
from collections.abc import Callable
from threading import Lock, get_ident
from types import TracebackType
from typing import Any

UNKNOWN_NS = -1
"""Stands for the start of a hold whose clock failed."""


class LockCore:
    """The state of one lock. `reentrant`: whether the thread that holds it may take it again."""

    __slots__ = (
        "acquire", "clock_ns", "depth", "holder", "locked", "owner", "probe_errors", "reentrant", "release", "taken_ns", "waiters"
    )  # fmt: skip

    def __init__(self, raw: Lock, clock_ns: Callable[[], int], reentrant: bool, waiters: set[Any]) -> None:
        self.acquire, self.release, self.locked = raw.acquire, raw.release, raw.locked
        self.clock_ns = clock_ns
        self.reentrant = reentrant
        self.waiters = waiters
        """Truthy while somebody waits: then the end of a hold is told to `tell_waiters`."""
        self.holder: SiteCore | None = None
        """Who took it last."""
        self.taken_ns = UNKNOWN_NS
        self.owner = 0
        """Of a reentrant lock: the thread that holds it, 0 for none; and how often it has taken it."""
        self.depth = 0
        self.probe_errors = 0
        """Faults of the bookkeeping; the lock itself worked."""

    def tell_waiters(self, site: Any, now_ns: int) -> None:
        """Called with the site whose hold ends now, while somebody waits."""
        raise NotImplementedError


class SiteCore:
    """Takes and gives back `lock`, and counts. Figures are written by whoever holds the lock."""

    __slots__ = ("_bounds", "_hold_counts", "hold_sum_ns", "last_hold_ns", "last_wait_ns", "lock", "uncontended")

    def __init__(self, lock: LockCore, bounds: tuple[int, ...]) -> None:
        self.lock = lock
        self.uncontended = 0
        """Acquisitions of a lock that was free."""
        self.last_wait_ns = 0
        self.last_hold_ns = 0
        self.hold_sum_ns = 0
        self._bounds = bounds
        self._hold_counts = [0] * (len(bounds) + 1)

    def hold_counts(self) -> list[int]:
        """Holds by the first of `bounds` that is not below them; the last count is of those above all."""
        return self._hold_counts.copy()

    def wait_for_lock(self) -> None:
        """Takes the lock that another one holds; raises only when it did not get it."""
        raise NotImplementedError

    def __enter__(self) -> "SiteCore":
        lock = self.lock
        if lock.reentrant and lock.owner == get_ident():
            lock.depth += 1
            return self
        if lock.acquire(False):
            self.last_wait_ns = 0
            self.uncontended += 1
        else:
            self.wait_for_lock()
        lock.holder = self
        if lock.reentrant:
            lock.owner, lock.depth = get_ident(), 1
        try:
            lock.taken_ns = lock.clock_ns()
        except Exception:  # noqa: BLE001 - a fault of the probe is counted; the engine has its lock
            lock.taken_ns = UNKNOWN_NS
            lock.probe_errors += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lock = self.lock
        if lock.reentrant:
            lock.depth -= 1
            if lock.depth > 0:
                return
            lock.owner = 0
        try:
            now_ns = lock.clock_ns()
            # The hold of a reentrant lock is that of the site where it was taken first.
            site = lock.holder
            if site is not None and lock.taken_ns != UNKNOWN_NS:
                site.last_hold_ns = held_ns = now_ns - lock.taken_ns
                site._hold_counts[bisect_left(site._bounds, held_ns)] += 1
                site.hold_sum_ns += held_ns
            if lock.waiters:
                lock.tell_waiters(site, now_ns)
        except Exception:  # noqa: BLE001 - as in __enter__
            lock.probe_errors += 1
        finally:
            lock.release()
