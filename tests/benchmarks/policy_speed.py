"""What the engine's policy costs: `python -m tests.benchmarks.policy_speed`. Prints a table and asserts nothing.

Thread CPU time, the best of several rounds: the machine may be shared, and the policy is single-threaded.
"""

from collections.abc import Callable
from itertools import chain
from time import thread_time_ns

from engine.block_pool import BlockPool
from engine.prefix_cache import HashChainIndex
from engine.scheduler import Scheduler
from tests.engine.builders import SCOPE, make_request, make_scheduler, run_step, start_decodes

ROUNDS = 7
Row = tuple[str, str, float, str]


def best(measure: Callable[[], float], rounds: int = ROUNDS) -> float:
    return min(measure() for _ in range(rounds))


def timed_us(action: Callable[[], object]) -> float:
    started = thread_time_ns()
    action()
    return (thread_time_ns() - started) / 1000


def steps_us(scheduler: Scheduler, count: int) -> tuple[float, float]:
    """Mean microseconds of schedule() and of commit() over `count` steps."""
    schedule_ns = commit_ns = 0
    for _ in range(count):
        started = thread_time_ns()
        step = scheduler.schedule()
        scheduled = thread_time_ns()
        tokens = [7] * len(step.sampled)
        committing = thread_time_ns()
        scheduler.commit(step, tokens, 0)
        commit_ns += thread_time_ns() - committing
        schedule_ns += scheduled - started
    return schedule_ns / count / 1000, commit_ns / count / 1000


def scheduler_rows() -> list[Row]:
    rows: list[Row] = []
    for decodes, kv_blocks, chunk in ((64, 10_000, 0), (256, 10_000, 0), (256, 100_000, 0), (256, 100_000, 256)):
        # 16 steps, so that every decode takes one new block in each round.
        scheduler = make_scheduler(max_batched_tokens=8192, kv_blocks=kv_blocks, max_model_len=1 << 20)
        start_decodes(scheduler, decodes, max_tokens=16_000 // decodes * 16, prompt=20)
        if chunk:
            scheduler.set_limits(max_batched_tokens=decodes + chunk)
            scheduler.add(make_request("prompt", 256 * 16 * (ROUNDS + 1), first=1 << 24))
        run_step(scheduler)
        rounds = [steps_us(scheduler, 16) for _ in range(ROUNDS)]
        work = f"{decodes} decodes" + (f" + {chunk}-token chunk" if chunk else "")
        rows.append((f"schedule() {work}", f"{kv_blocks} blocks", min(r[0] for r in rounds), "us/step"))
        rows.append((f"commit() {work}", f"{kv_blocks} blocks", min(r[1] for r in rounds), "us/step"))
    return rows


def prefix_rows() -> list[Row]:
    tokens = list(range(4096))
    index = HashChainIndex(16, SCOPE)
    index.insert_sequence(tokens, range(256))
    key = index.start()
    index.extend(key, tokens)
    other = index.start("other tenant")
    index.extend(other, tokens)

    def insert() -> None:
        fresh = HashChainIndex(16, SCOPE)
        new = fresh.start()
        new.preimages = key.preimages
        fresh.insert(new, range(256), 0, 256)

    return [
        ("hash", "4096 tokens", best(lambda: timed_us(lambda: index.extend(index.start(), tokens))) / 4.096, "us/1k"),
        ("match, hit", "4096 tokens, hashed", best(lambda: timed_us(lambda: index.match(key))) / 4.096, "us/1k"),
        ("match, miss", "4096 tokens, hashed", best(lambda: timed_us(lambda: index.match(other))), "us/lookup"),
        ("hash + lookup, hit", "4096 tokens", best(lambda: timed_us(lambda: index.lookup(tokens))) / 4.096, "us/1k"),
        ("insert", "4096 tokens, hashed", best(lambda: timed_us(insert)) / 4.096, "us/1k"),
    ]


def pool_rows(size: int) -> list[Row]:
    pool = BlockPool(size, 16)
    calls = 200
    work = calls * 16

    def allocate_and_release() -> None:
        for _ in range(calls):
            pool.release(pool.allocate(16))

    def revive() -> None:
        for i in range(calls):
            blocks = filled[i * 16 : i * 16 + 16]
            pool.touch(blocks)
            pool.release(blocks)

    def evict() -> None:
        for _ in range(20):
            pool.allocate(16)

    allocating = best(lambda: timed_us(allocate_and_release)) / work
    filled = pool.allocate(size)
    pool.mark_cached(filled)
    pool.release(filled)
    return [
        ("allocate + release", f"{size} blocks", allocating, "us/block"),
        ("touch + release, cached", f"{size} blocks", best(lambda: timed_us(revive)) / work, "us/block"),
        ("evict + allocate", f"{size} blocks", best(lambda: timed_us(evict)) / 320, "us/block"),
    ]


def main() -> None:
    print(f"{'operation':<42} {'size':<22} {'best':>10}  unit")
    pools = (row for size in (10_000, 100_000, 1_000_000) for row in pool_rows(size))
    for operation, size, value, unit in chain(scheduler_rows(), prefix_rows(), pools):
        print(f"{operation:<42} {size:<22} {value:>10.3f}  {unit}")


if __name__ == "__main__":
    main()
