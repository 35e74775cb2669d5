"""The timed lock under real contention, and the histogram beneath it."""

import threading
import time

import pytest

from probes.locks import Histogram, TimedLock


def test_an_uncontended_site_waits_for_nothing():
    site = TimedLock().site("only")
    for _ in range(3):
        with site:
            time.sleep(0.001)
    assert (site.wait.count, site.wait.sum_ns, site.contended) == (3, 0, 0)
    assert site.hold.count == 3
    assert site.hold.sum_ns >= 3_000_000
    assert site.last_hold_ns >= 1_000_000


def test_who_waits_and_who_holds_is_told_apart():
    lock = TimedLock()
    holder, waiter = lock.site("holder"), lock.site("waiter")
    held = threading.Event()

    def hold() -> None:
        with holder:
            held.set()
            time.sleep(0.2)  # long, so that a late wake-up of the other thread does not matter

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with waiter:
        pass
    thread.join()
    assert waiter.contended == 1
    assert waiter.last_wait_ns > 20_000_000
    assert holder.last_hold_ns >= 200_000_000
    assert waiter.last_hold_ns < waiter.last_wait_ns
    assert (holder.contended, holder.last_wait_ns) == (0, 0)
    with waiter:
        pass
    assert waiter.last_wait_ns == 0


def test_it_is_a_lock():
    """Two threads increment without losing an update, and every acquisition is counted."""
    lock = TimedLock()
    total = 0

    def work(name: str) -> None:
        nonlocal total
        site = lock.site(name)
        for _ in range(2000):
            with site:
                seen = total
                if seen % 500 == 0:
                    time.sleep(0)
                total = seen + 1

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == 4000
    assert all(site.hold.count == site.wait.count == 2000 for site in lock.sites.values())


def test_the_lock_is_released_when_its_block_raises():
    lock = TimedLock()
    site = lock.site("raises")
    with pytest.raises(KeyError), site:
        raise KeyError
    assert lock.raw.acquire(blocking=False)


def test_a_site_has_one_owner():
    lock = TimedLock()
    lock.site("a")
    with pytest.raises(ValueError, match="'a'"):
        lock.site("a")


def test_a_histogram_counts_at_or_below_each_bound():
    histogram = Histogram((10, 20))
    for value in (5, 10, 11, 20, 21):
        histogram.observe(value)
    histogram.observe(7, times=3)
    assert histogram.cumulative() == [5, 7, 8]
    assert (histogram.count, histogram.sum_ns) == (8, 67 + 21)
