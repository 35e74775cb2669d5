"""What the probes may cost, in calls and allocations: figures that a busy machine does not change.

`tests/benchmarks/probe_cost.py` measures the time; these tests keep it from growing unnoticed.
"""

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable

import pytest

from probes.locks import TimedLock, TimedRLock
from probes.recorder import COUNTED_TOGETHER, NullRecorder, RequestTrace, RingRecorder
from probes.records import DeviceTime
from tests.probes.records import make_record

DECODE = make_record(7, num_decode_seqs=8, num_regular_gaps=8, device_ns=DeviceTime(5), host_gap_ns=9)
STEPS = iter([DECODE._replace(step_id=number) for number in range(2 * COUNTED_TOGETHER)])
RECORDER, NULL = RingRecorder(64, 64), NullRecorder()
TRACE = RequestTrace("r", 0, 1, 2, 3, 9, 0, 5, 0, "stop")


def calls(work: Callable[[], object]) -> Counter[str]:
    """Calls of Python and of C functions that one `work()` makes, itself left out."""
    counted: Counter[str] = Counter()

    def count(frame: object, event: str, argument: object) -> None:
        counted[event] += 1

    work()  # first times fill dictionaries
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return Counter({"python": counted["call"] - 1, "c": counted["c_call"] - 1})  # the work itself, and setprofile


def record_sixteen() -> None:
    for _ in range(COUNTED_TOGETHER):
        RECORDER.on_step(next(STEPS))


def take(site) -> Callable[[], None]:
    def work() -> None:
        with site:
            pass

    return work


@pytest.mark.parametrize(
    ("what", "work", "python", "c"),
    [
        # each: a guard and on_step, another and its parts, four histograms, the floor, device time and its guard; their
        # bisections and what is appended; and once: what is new to count
        ("sixteen steps and their counting", record_sixteen, 16 * 12 + 4, 16 * 13 + 8),
        ("a step without probes", lambda: NULL.on_step(DECODE), 1, 0),
        ("a finished request", lambda: RECORDER.on_request_finished(TRACE), 3, 2),
        # enter and exit; try to acquire, two clocks, a bisection, release
        ("a lock", take(TimedLock().site("site")), 2, 5),
        # and who asks
        ("a reentrant lock", take(TimedRLock().site("site")), 4, 6),
    ],
)
def test_calls_of_one_record(what, work, python, c):
    found = calls(work)
    assert found["python"] <= python, f"{what}: {found}"
    assert found["c"] <= c, f"{what}: {found}"


def held() -> int:
    """Bytes that the probes allocated, and who records here: threads of other tests may still be ending."""
    here = [tracemalloc.Filter(True, "*/probes/*")]
    return sum(found.size for found in tracemalloc.take_snapshot().filter_traces(here).statistics("filename"))


def test_the_rings_hold_what_they_hold_and_no_more():
    """Once they are full a step or a request leaves nothing behind but what replaced the oldest of its kind."""
    recorder, lock = RingRecorder(64, 64), TimedLock()
    site = lock.site("site")

    def work(count: int, first: int) -> None:
        for step_id in range(first, first + count):
            with site:
                recorder.on_step(make_record(step_id, num_regular_gaps=1))
            recorder.on_request_finished(TRACE._replace(arrival_ns=step_id, finished_ns=step_id + 5))

    work(500, 0)
    gc.collect()
    tracemalloc.start()
    try:
        work(200, 500)
        gc.collect()
        before = held()
        work(2000, 700)
        gc.collect()
        grown = held() - before
    finally:
        tracemalloc.stop()
    assert grown < 4096, f"{grown} bytes over 2,000 steps"
