"""What contenders cost that take turns: a machine that is now fast and now slow is so for all alike."""

from collections.abc import Callable, Mapping
from time import process_time


def best_milliseconds(
    contenders: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = process_time
) -> dict[str, float]:
    """The quickest call of each, by its name; `clock` tells seconds."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, work in contenders.items():
            started = clock()
            work()
            best[name] = min(best[name], 1e3 * (clock() - started))
    return best
