"""Blocks as a comparison would have measured them, of which a test overrides what it is about."""

from random import Random
from typing import Any

from runbooks.experiments.figures import Answer, Block, Conditions


def make_block(pair: int, arm: str, itl_p99: float, **over: Any) -> Block:
    same: dict[str, Any] = {
        "arrivals_per_second": 2.0,
        "answers": (Answer(200, 60, 0),) * 4,
        "error_rate": 0.0,
        "others": 0.0,
    }
    condition = {name: over.pop(name) for name in list(over) if name in same}
    fields: dict[str, Any] = {
        "pair": pair,
        "arm": arm,
        "started_unix": 1_700_000_000.0 + 80 * pair,
        "figures": {"itl_p50": 0.05, "itl_p99": itl_p99, "ttft_p50": 0.4, "throughput": 60.0} | over.pop("figures", {}),
        "conditions": Conditions(**(same | condition)),
        "samples": {"itl": 1200, "ttft": 60, "throughput": 1200, "goodput": 60},
        "gaps": (0.05,) * 99 + (itl_p99,),
        "late_sends": 0,
        "lag_p99": 0.001,
        "speed": 1000.0,
    }
    return Block(**(fields | over))


def make_pairs(
    count: int = 6, first: float = 0.4, second: float = 0.2, noise: float = 0.01, seed: int = 1, **of_second: Any
) -> list[Block]:
    """`count` pairs whose p99 is `first` in arm A and `second` in arm B, give or take `noise`."""
    source = Random(seed)
    blocks = []
    for pair in range(count):
        blocks.append(make_block(pair, "A", first + source.gauss(0, noise)))
        blocks.append(make_block(pair, "B", second + source.gauss(0, noise), **of_second))
    return blocks
