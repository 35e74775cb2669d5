"""Many long simulated lives of the scheduler, the prefix indexes in turn.

`python -m tests.benchmarks.policy_soak [first seed] [lives] [steps]`
raises at the first broken invariant, with the seed on the last line printed.
"""

import sys
from collections import Counter
from time import perf_counter

from engine.config import PREFIX_INDEXES
from tests.engine.test_scheduler_simulation import live


def main(first: int = 1000, lives: int = 1000, steps: int = 2000) -> None:
    totals: Counter[str] = Counter()
    started = perf_counter()
    for seed in range(first, first + lives):
        print(f"\rseed {seed}", end="", flush=True)
        world = live(seed, steps, PREFIX_INDEXES[seed % len(PREFIX_INDEXES)])
        totals.update(world.scheduler.counters._asdict())
        totals.update(requests=world.num_offered, accepted=len(world.accepted), copies=world.copies)
    print(f"\r{lives} lives of {steps} steps, {perf_counter() - started:.0f} s, no violation: {dict(totals)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
