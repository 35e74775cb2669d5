"""How often a comparison of two equal arms calls something an effect: `python -m tests.benchmarks.experiment_null`.

Blocks of a machine that drifts, changes its speed in steps, or has rare bad blocks, in the product's own random order of
pairs, through its own test. At p <= 0.05 no more than one in twenty may be wrong; the lower bound of what six pairs can reach
makes it fewer. Beside it the rival that is often done: the blocks of each arm pooled, and Welch's t-test at 5 %.
"""

import argparse
import json
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean, variance

from runbooks.experiments.statistics import Looks, block_order, sign_flip_p

Noise = Callable[[Random, int], list[float]]


def independent(source: Random, blocks: int) -> list[float]:
    return [source.gauss(1.0, 0.1) for _ in range(blocks)]


def drifting(source: Random, blocks: int) -> list[float]:
    """Slower and slower, as a device that warms up, with noise beside it."""
    return [1.0 + 0.05 * index + source.gauss(0, 0.05) for index in range(blocks)]


def stepping(source: Random, blocks: int) -> list[float]:
    """A shared host: now and then a quarter slower for a while."""
    level, values = 1.0, []
    for _ in range(blocks):
        if source.random() < 0.2:
            level = source.choice((1.0, 1.25, 1.5))
        values.append(level + source.gauss(0, 0.03))
    return values


def bad_blocks(source: Random, blocks: int) -> list[float]:
    """One block in ten is three times as slow."""
    return [(3.0 if source.random() < 0.1 else 1.0) + source.gauss(0, 0.05) for _ in range(blocks)]


NOISES: dict[str, Noise] = {f.__name__: f for f in (independent, drifting, stepping, bad_blocks)}


def wrong_rates(noise: Noise, looks: Looks, trials: int) -> tuple[float, float]:
    """Share of A/A comparisons called an effect: by sign flips over pairs, and by pooled blocks."""
    flips = pooled = 0
    for trial in range(trials):
        source = Random(f"{noise.__name__}/{trial}")
        values = noise(source, 2 * looks.at[-1])
        arms: dict[str, list[float]] = {"A": [], "B": []}
        for order, pair in zip(
            block_order(looks.at[-1], trial), zip(values[::2], values[1::2], strict=True), strict=True
        ):
            for arm, value in zip(order, pair, strict=True):
                arms[arm].append(value)
        differences = [b - a for a, b in zip(arms["A"], arms["B"], strict=True)]
        flips += any(sign_flip_p(differences[:count]) <= looks.level for count in looks.at)
        pooled += welch(arms["A"], arms["B"])
    return flips / trials, pooled / trials


def welch(first: list[float], second: list[float]) -> bool:
    """Whether the pooled blocks differ at 5 %, by the normal approximation that scripts use."""
    error = sqrt(variance(first) / len(first) + variance(second) / len(second))
    return abs(fmean(second) - fmean(first)) > NormalDist().inv_cdf(0.975) * error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{'noise':<14}{'looks':<10}{'sign flips':>12}{'pooled t':>12}   ({options.trials} A/A comparisons each)")
    for name, noise in NOISES.items():
        for looks in (Looks.plan(6, None), Looks.plan(8, 12)):
            flips, pooled = wrong_rates(noise, looks, options.trials)
            at = "+".join(map(str, looks.at))
            print(f"{name:<14}{at:<10}{flips:>11.1%}{pooled:>12.1%}")
            rows.append({"noise": name, "pairs": at, "sign_flips": flips, "pooled": pooled, "trials": options.trials})
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
