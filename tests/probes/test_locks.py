"""The timed locks under real contention, compiled and in Python, and the histogram beneath them."""

import gc
import importlib.util
import sys
import threading
import time
import weakref
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import build, lock_core
from probes.build import source_hash
from probes.locks import NOBODY, Histogram, LockSite, TimedCondition, TimedLock


def locks_on(core: ModuleType) -> ModuleType:
    """`probes.locks` as it is where `core` is what there is of its quick part."""
    spec = importlib.util.find_spec("probes.locks")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "probes._lock_core", core)
        spec.loader.exec_module(module)
    assert module.TimedLock.__base__ is core.LockCore
    return module


def compiled_core(target: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("probes._lock_core", build.build(target)[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ManualClock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture(scope="session", params=["compiled", "python"])
def locks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    if request.param == "python":
        return locks_on(lock_core)
    try:
        return locks_on(compiled_core(tmp_path_factory.mktemp("core") / "_lock_core.abi3.so"))
    except build.BuildError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session", params=["TimedLock", "TimedRLock"])
def kind(request: pytest.FixtureRequest, locks: ModuleType) -> type[TimedLock]:
    chosen: type[TimedLock] = getattr(locks, request.param)
    return chosen


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


def test_what_is_built_is_built_from_what_lies_beside_it():
    core = pytest.importorskip("probes._lock_core", reason="not compiled here")
    assert source_hash(build.SOURCE) == core.SOURCE, "python -m probes.build"
    assert TimedLock.__base__ is core.LockCore


def run_all(*work) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_an_uncontended_site_waits_for_nothing(locks):
    clock = ManualClock()
    site = locks.TimedLock(clock).site("only")
    for _ in range(3):
        with site:
            clock.now_ns += 1000
    assert (site.wait.count, site.wait.sum_ns, site.contended) == (3, 0, 0)
    assert (site.hold.count, site.hold.sum_ns, site.last_hold_ns) == (3, 3000, 1000)
    assert not site.blocked_ns


def test_who_waits_and_who_holds_is_told_apart(locks):
    clock = ManualClock()
    lock = locks.TimedLock(clock)
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


def test_the_lock_is_released_when_its_block_raises(kind):
    lock = kind()
    site = lock.site("raises")
    with pytest.raises(KeyError), site:
        raise KeyError
    assert lock.raw.acquire(blocking=False)


@pytest.mark.parametrize("name", ["a", NOBODY])
def test_a_name_stands_for_one_site(locks, name):
    lock = locks.TimedLock()
    lock.site("a")
    with pytest.raises(ValueError, match=name):
        lock.site(name)


def test_every_holder_of_a_wait_is_booked_with_its_part(kind):
    """Two wait while one holds; whoever of them gets the lock last waited for the other one, too."""
    clock = ManualClock()
    lock = kind(clock)
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
def test_whatever_threads_do_every_wait_is_accounted_for(locks, plan, reentrant):
    lock = locks.TimedRLock() if reentrant else locks.TimedLock()
    sites = {name: lock.site(name) for name in "abc"}

    def work(names: list[str]) -> None:
        for name in names:
            with sites[name]:
                time.sleep(0)

    run_all(*[lambda names=names: work(names) for names in plan])
    assert sum(site.hold.count for site in sites.values()) == sum(map(len, plan))
    assert_accounted(lock)


def test_a_fault_of_the_bookkeeping_is_counted_and_the_lock_still_works(locks):
    lock = locks.TimedLock(lambda: 1 // 0)
    site = lock.site("broken")
    for _ in range(2):
        with site:
            assert lock.raw.locked()
        assert not lock.raw.locked()
    assert lock.probe_errors == 4
    assert (site.wait.count, site.hold.count) == (2, 0)


def test_a_hold_whose_beginning_is_not_known_is_not_told(locks):
    times: list[int] = []
    lock = locks.TimedLock(times.pop)
    site = lock.site("site")
    with site:  # the clock fails
        times.append(7)
    assert (lock.probe_errors, site.hold.count) == (1, 0)
    times += [12, 9]
    with site:
        pass
    assert (lock.probe_errors, site.hold.count, site.last_hold_ns) == (1, 1, 3)


def test_an_interrupt_while_waiters_are_told_is_passed_on_once_the_lock_is_given_back(locks):
    def interrupt(lock, site, now_ns):
        raise KeyboardInterrupt

    lock = type("Interrupted", (locks.TimedLock,), {"tell_waiters": interrupt})()
    site = lock.site("site")
    lock.waiters.add("somebody")
    with pytest.raises(KeyboardInterrupt), site:
        pass
    assert not lock.raw.locked()
    assert lock.probe_errors == 0


def test_giving_back_what_nobody_took_is_said(kind):
    with pytest.raises(RuntimeError, match="unlocked"):
        kind().site("site").__exit__(None, None, None)


def test_a_lock_that_is_let_go_of_leaves_nothing_behind(kind):
    lock = kind()
    with lock.site("site"):
        pass
    gone = weakref.ref(lock)
    del lock
    gc.collect()
    assert gone() is None


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=20))
def test_holds_are_counted_as_a_histogram_counts_them(locks, holds):
    clock, expected = ManualClock(), Histogram()
    site = locks.TimedLock(clock).site("site")
    for held_ns in holds:
        with site:
            clock.now_ns += held_ns
        expected.observe(held_ns)
    assert (site.hold.counts, site.hold.sum_ns) == (expected.counts, expected.sum_ns)


def test_a_fault_while_a_contended_wait_is_booked_is_counted_too(locks):
    lock = locks.TimedLock()
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


def test_only_the_outermost_acquisition_of_a_thread_counts(locks):
    lock = locks.TimedRLock()
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
def test_nested_sites_of_one_thread_are_one_hold_of_the_outermost(locks, names):
    lock = locks.TimedRLock()
    sites = {name: lock.site(name) for name in "abc"}
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(sites[name])
        assert lock.depth == len(names)
    assert {name: site.hold.count for name, site in sites.items()} == {name: int(name == names[0]) for name in "abc"}
    assert_accounted(lock)


def test_a_reentrant_lock_keeps_other_threads_out(locks):
    lock = locks.TimedRLock()
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


def test_waiting_for_a_notification_is_neither_hold_nor_lock_wait(kind):
    clock = ManualClock()
    lock = kind(clock)
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


def test_a_wait_that_times_out_says_so_and_has_the_lock_again(kind):
    lock = kind()
    site, condition = lock.site("site"), TimedCondition(lock)
    with site:
        assert condition.wait(0.001) is False
        assert condition.wait_for(lambda: False, timeout=0.001) is False
        assert lock.is_held()
    assert_accounted(lock)


def test_a_condition_gives_back_every_level_of_a_reentrant_lock(locks):
    lock = locks.TimedRLock()
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


def test_a_condition_needs_its_lock(kind):
    condition = TimedCondition(kind())
    for call in (condition.wait, condition.notify, condition.notify_all):
        with pytest.raises(RuntimeError, match="un-acquired"):
            call()


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
