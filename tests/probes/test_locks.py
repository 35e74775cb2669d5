"""The timed locks under real contention, and the histogram beneath them."""

import threading
import time
from collections import deque
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.locks import NOBODY, Histogram, LockSite, TimedCondition, TimedLock, TimedRLock

LOCKS = (TimedLock, TimedRLock)


class ManualClock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The locks' clock, which moves when a test says so."""
    clock = ManualClock()
    monkeypatch.setattr("probes.locks.perf_counter_ns", clock)
    return clock


def assert_accounted(lock: TimedLock) -> None:
    """Whatever happened: each acquisition was released, each wait has a holder for its whole length, nobody is left over."""
    for site in lock.sites.values():
        assert site.wait.count == site.hold.count, site.name
        assert site.blocked_ns.total() == site.wait.sum_ns, site.name
        assert all(ns >= 0 for ns in site.blocked_ns.values()), site.name
        assert set(site.blocked_ns) <= {*lock.sites, NOBODY}, site.name
    assert not lock.waiters
    assert lock.probe_errors == 0
    assert not lock.raw.locked()


def run_all(*work) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_an_uncontended_site_waits_for_nothing(clock):
    site = TimedLock().site("only")
    for _ in range(3):
        with site:
            clock.now_ns += 1000
    assert (site.wait.count, site.wait.sum_ns, site.contended) == (3, 0, 0)
    assert (site.hold.count, site.hold.sum_ns, site.last_hold_ns) == (3, 3000, 1000)
    assert not site.blocked_ns


def test_who_waits_and_who_holds_is_told_apart(clock):
    lock = TimedLock()
    holder, waiter = lock.site("holder"), lock.site("waiter")
    held = threading.Event()

    def hold() -> None:
        with holder:
            clock.now_ns += 10
            held.set()
            while not lock.waiters:
                time.sleep(0.001)
            clock.now_ns += 200

    def wait() -> None:
        held.wait(30)
        with waiter:
            clock.now_ns += 1

    run_all(hold, wait)
    assert (waiter.contended, waiter.last_wait_ns, waiter.last_hold_ns) == (1, 200, 1)
    assert (holder.contended, holder.last_wait_ns, holder.last_hold_ns) == (0, 0, 210)
    assert waiter.blocked_ns["holder"] == 200
    with waiter:
        pass
    assert waiter.last_wait_ns == 0
    assert_accounted(lock)


@pytest.mark.parametrize("kind", LOCKS)
def test_it_is_a_lock(kind):
    """Two threads increment without losing an update, and every acquisition is counted."""
    lock = kind()
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

    run_all(lambda: work("a"), lambda: work("b"))
    assert total == 4000
    assert all(site.hold.count == 2000 for site in lock.sites.values())
    assert_accounted(lock)


@pytest.mark.parametrize("kind", LOCKS)
def test_the_lock_is_released_when_its_block_raises(kind):
    lock = kind()
    site = lock.site("raises")
    with pytest.raises(KeyError), site:
        raise KeyError
    assert lock.raw.acquire(blocking=False)


@pytest.mark.parametrize("name", ["a", NOBODY])
def test_a_name_stands_for_one_site(name):
    lock = TimedLock()
    lock.site("a")
    with pytest.raises(ValueError, match=name):
        lock.site(name)


@pytest.mark.parametrize("kind", LOCKS)
def test_every_holder_of_a_wait_is_booked_with_its_part(kind, clock):
    """Two wait while one holds; whoever of them gets the lock last waited for the other one, too."""
    lock = kind()
    first = lock.site("first")
    others = lock.site("second"), lock.site("third")
    first_holds = threading.Event()

    def hold_first() -> None:
        with first:
            first_holds.set()
            while len(lock.waiters) < 2:
                time.sleep(0.001)
            clock.now_ns += 30

    def hold(site: LockSite) -> None:
        first_holds.wait(30)
        with site:
            clock.now_ns += 50

    run_all(hold_first, *[lambda site=site: hold(site) for site in others])
    blocked = {site.name: {name: ns for name, ns in site.blocked_ns.items() if ns} for site in others}
    assert blocked in (
        {"second": {"first": 30}, "third": {"first": 30, "second": 50}},
        {"third": {"first": 30}, "second": {"first": 30, "third": 50}},
    )
    assert [site.contended for site in (first, *others)] == [0, 1, 1]
    assert_accounted(lock)


@given(
    plan=st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), min_size=1, max_size=3),
    reentrant=st.booleans(),
)
def test_whatever_threads_do_every_wait_is_accounted_for(plan, reentrant):
    lock = TimedRLock() if reentrant else TimedLock()
    sites = {name: lock.site(name) for name in "abc"}

    def work(names: list[str]) -> None:
        for name in names:
            with sites[name]:
                time.sleep(0)

    run_all(*[lambda names=names: work(names) for names in plan])
    assert sum(site.hold.count for site in sites.values()) == sum(map(len, plan))
    assert_accounted(lock)


def test_a_fault_of_the_bookkeeping_is_counted_and_the_lock_still_works():
    lock = TimedLock()
    site = lock.site("broken")
    del site.wait, site.hold
    for _ in range(2):
        with site:
            assert lock.raw.locked()
        assert not lock.raw.locked()
    assert lock.probe_errors == 4


def test_a_fault_while_a_contended_wait_is_booked_is_counted_too():
    lock = TimedLock()
    holder, broken = lock.site("holder"), lock.site("broken")
    del broken.blocked_ns
    holding = threading.Event()

    def hold() -> None:
        with holder:
            holding.set()
            while not lock.waiters:
                time.sleep(0.001)

    def wait() -> None:
        holding.wait(30)
        with broken:
            assert lock.raw.locked()

    run_all(hold, wait)
    assert lock.probe_errors == 1
    assert not lock.raw.locked()


def test_only_the_outermost_acquisition_of_a_thread_counts():
    lock = TimedRLock()
    outer, inner = lock.site("outer"), lock.site("inner")
    with outer:
        with inner, outer:
            assert lock.is_held()
        assert lock.is_held()
        assert outer.hold.count == 0
    assert not lock.is_held()
    assert (outer.wait.count, outer.hold.count, inner.wait.count, inner.hold.count) == (1, 1, 0, 0)
    assert_accounted(lock)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8))
def test_nested_sites_of_one_thread_are_one_hold_of_the_outermost(names):
    lock = TimedRLock()
    sites = {name: lock.site(name) for name in "abc"}
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(sites[name])
        assert lock.depth == len(names)
    assert {name: site.hold.count for name, site in sites.items()} == {name: int(name == names[0]) for name in "abc"}
    assert_accounted(lock)


def test_a_reentrant_lock_keeps_other_threads_out():
    lock = TimedRLock()
    mine, theirs = lock.site("mine"), lock.site("theirs")
    order: list[str] = []

    def enter() -> None:
        with theirs:
            order.append("theirs")

    thread = threading.Thread(target=enter)
    with mine, mine:
        thread.start()
        while not lock.waiters:
            time.sleep(0.001)
        order.append("mine")
    thread.join(30)
    assert order == ["mine", "theirs"]
    assert theirs.contended == 1
    assert theirs.blocked_ns["mine"] > 0
    assert_accounted(lock)


@pytest.mark.parametrize("kind", LOCKS)
def test_waiting_for_a_notification_is_neither_hold_nor_lock_wait(kind, clock):
    lock = kind()
    taker, giver = lock.site("taker"), lock.site("giver")
    arrived = TimedCondition(lock)
    asleep = threading.Event()
    notified = []

    def take() -> None:
        with taker:
            asleep.set()
            clock.now_ns += 5
            notified.append(arrived.wait(30))
            clock.now_ns += 3

    def give() -> None:
        asleep.wait(30)
        with giver:  # only once the taker has let go
            pass
        clock.now_ns += 1000
        with giver:
            arrived.notify()
            while not lock.waiters:  # the taker is awake and waits for the lock
                time.sleep(0.001)
            clock.now_ns += 7

    run_all(take, give)
    assert notified == [True]
    assert (taker.hold.count, taker.hold.sum_ns) == (2, 5 + 3)
    assert (taker.wait.count, taker.wait.sum_ns, taker.contended) == (2, 7, 1)
    assert taker.blocked_ns["giver"] == 7
    assert_accounted(lock)


@pytest.mark.parametrize("kind", LOCKS)
def test_a_wait_that_times_out_says_so_and_has_the_lock_again(kind):
    lock = kind()
    site, condition = lock.site("site"), TimedCondition(lock)
    with site:
        assert condition.wait(0.001) is False
        assert condition.wait_for(lambda: False, timeout=0.001) is False
        assert lock.is_held()
    assert_accounted(lock)


def test_a_condition_gives_back_every_level_of_a_reentrant_lock():
    lock = TimedRLock()
    outer, inner, other = lock.site("outer"), lock.site("inner"), lock.site("other")
    condition = TimedCondition(lock)
    ready: list[int] = []

    def notify() -> None:
        with other:
            ready.append(1)
            condition.notify_all()

    thread = threading.Thread(target=notify)
    with outer:
        with inner:
            thread.start()
            assert condition.wait_for(lambda: ready, timeout=30)
            assert lock.depth == 2
        assert lock.is_held()
    thread.join(30)
    assert outer.hold.count >= 2
    assert inner.hold.count == 0
    assert_accounted(lock)


@pytest.mark.parametrize("kind", LOCKS)
def test_a_condition_needs_its_lock(kind):
    condition = TimedCondition(kind())
    for call in (condition.wait, condition.notify, condition.notify_all):
        with pytest.raises(RuntimeError, match="un-acquired"):
            call()


@pytest.mark.parametrize("kind", LOCKS)
def test_a_bounded_queue_on_two_conditions_of_one_lock_loses_nothing(kind):
    lock = kind()
    put, take = lock.site("put"), lock.site("take")
    not_full, not_empty = TimedCondition(lock), TimedCondition(lock)
    queue: deque[int] = deque()
    taken: list[int] = []

    def produce(numbers: range) -> None:
        for number in numbers:
            with put:
                assert not_full.wait_for(lambda: len(queue) < 3, timeout=60)
                queue.append(number)
                not_empty.notify()

    def consume() -> None:
        for _ in range(400):
            with take:
                assert not_empty.wait_for(lambda: queue, timeout=60)
                taken.append(queue.popleft())
                not_full.notify()

    run_all(lambda: produce(range(400)), lambda: produce(range(400, 800)), consume, consume)
    assert sorted(taken) == list(range(800))
    assert_accounted(lock)


def test_a_histogram_counts_at_or_below_each_bound():
    histogram = Histogram((10, 20))
    for value in (5, 10, 11, 20, 21):
        histogram.observe(value)
    histogram.observe(7, times=3)
    assert histogram.cumulative() == [5, 7, 8]
    assert (histogram.count, histogram.sum_ns) == (8, 67 + 21)
