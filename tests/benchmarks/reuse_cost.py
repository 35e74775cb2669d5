"""What measuring reuse costs: `python -m tests.benchmarks.reuse_cost`. The same work with it on and off, in turns.

Thread CPU time of schedule() + commit(): the best round of each arm, and the median of what a pair of rounds differs by.
Prints a table and asserts nothing.
"""

from collections.abc import Callable
from statistics import median
from time import thread_time_ns

from engine.request import FinishReason
from engine.scheduler import Scheduler
from tests.engine.builders import make_request, make_scheduler, run_step, start_decodes

ROUNDS = 15
CONTENTS = 36
PROMPT = 4096


def step(scheduler: Scheduler) -> float:
    """Microseconds of one step, all that finishes being finished outside of it."""
    started = thread_time_ns()
    scheduled = scheduler.schedule()
    tokens = [7] * len(scheduled.sampled)
    emitted = scheduler.commit(scheduled, tokens, 0)
    elapsed = thread_time_ns() - started
    for request in emitted:
        if len(request.output_token_ids) >= request.params.max_tokens:
            scheduler.finish(request, FinishReason.LENGTH)
    return elapsed / 1000


def decodes(measure: bool) -> Callable[[], float]:
    """256 decodes; in 16 steps each fills a block, which is then indexed, and takes another one."""
    scheduler = make_scheduler(max_batched_tokens=8192, kv_blocks=100_000, max_model_len=1 << 20, measure_reuse=measure)
    start_decodes(scheduler, 256, max_tokens=10_000, prompt=20)
    run_step(scheduler)
    return lambda: sum(step(scheduler) for _ in range(16)) / 16


def prompts(measure: bool, kv_blocks: int) -> Callable[[], float]:
    """Prompts of 256 blocks one after the other, from admission to release: hits in a large pool, ghost hits in a small one."""
    scheduler = make_scheduler(max_batched_tokens=8192, kv_blocks=kv_blocks, measure_reuse=measure)

    def serve_all() -> float:
        total = 0
        for content in range(CONTENTS):
            request = make_request("r", PROMPT, max_tokens=1, first=content * 100_000)
            started = thread_time_ns()
            scheduler.add(request)
            scheduled = scheduler.schedule()
            scheduler.commit(scheduled, [7], 0)
            scheduler.finish(request, FinishReason.LENGTH)
            total += thread_time_ns() - started
        return total / CONTENTS / 1000

    serve_all()
    return serve_all


WORK: dict[str, Callable[[bool], Callable[[], float]]] = {
    "step of 256 decodes, 100,000 blocks": decodes,
    "4,096-token prompt, full hit, 20,000 blocks": lambda measure: prompts(measure, 20_000),
    "4,096-token prompt, all ghosts, 8,000 blocks": lambda measure: prompts(measure, 8_000),
    "4,096-token prompt, all ghosts, 2,048 blocks": lambda measure: prompts(measure, 2_048),
}


def main() -> None:
    print(f"{'work':<46} {'off':>9} {'on':>9}  us, and what it adds by the median pair")
    for name, prepare in WORK.items():
        off, on = prepare(False), prepare(True)
        pairs = [(off(), on()) for _ in range(ROUNDS)]
        best_off, best_on = (min(pair[arm] for pair in pairs) for arm in (0, 1))
        added = median(pair[1] / pair[0] for pair in pairs) - 1
        print(f"{name:<46} {best_off:>9.1f} {best_on:>9.1f}  {added:+.1%}")


if __name__ == "__main__":
    main()
