"""A watch of many hours stays flat: what is kept of each second is bounded."""

from tests.benchmarks.dashboard_cost import prepare
from tests.benchmarks.dashboard_hour import CompressedRun, live_objects


def test_live_objects_do_not_grow_from_minute_to_minute():
    run = CompressedRun(prepare(20))
    try:
        for _ in range(100):  # caches and rings fill
            run.second()
        counts = []
        for _ in range(3):
            for _ in range(20):
                run.second()
            counts.append(live_objects())
        assert max(counts) - min(counts) < 0.02 * counts[0]
    finally:
        run.close()
