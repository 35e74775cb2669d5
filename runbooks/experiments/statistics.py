"""Paired differences of blocks: a sign-flip test, a bootstrap over pairs, and when to stop.

One number per block and metric; the unit of chance is the pair, never the request. Pure and seeded.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from statistics import NormalDist, fmean

LEVEL = 0.05
_EXACT_PAIRS = 14
"""Up to here all 2^n sign patterns are counted; beyond, as many are drawn."""
_DRAWS = 20_000
_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Difference:
    """B - A over pairs of blocks, in the metric's unit."""

    mean: float
    low: float
    high: float
    """95 % bootstrap interval over pairs."""
    p: float
    """Two-sided sign-flip test of the mean."""
    pairs: int


def paired_difference(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Difference:
    """Block i of `first` was paired with block i of `second`. Raises ValueError when there is none."""
    differences = [b - a for a, b in zip(first, second, strict=True)]
    if not differences:
        raise ValueError("no pair of blocks")
    low, high = _bootstrap(differences, seed)
    return Difference(fmean(differences), low, high, sign_flip_p(differences, seed), len(differences))


def sign_flip_p(differences: Sequence[float], seed: int = 0) -> float:
    """Share of sign patterns whose mean is at least as far from zero: exact for few pairs, else by drawing.

    Under "the arms do not differ" either order of a pair was as likely (Fisher's randomisation test). n pairs cannot reach
    below 2 / 2^n: six are the fewest that can show p < 0.05.
    """
    observed = abs(sum(differences))
    tolerance = 1e-12 * (observed + max(map(abs, differences)))
    if len(differences) <= _EXACT_PAIRS:
        sums = [
            abs(sum(sign * value for sign, value in zip(signs, differences, strict=True)))
            for signs in product((1, -1), repeat=len(differences))
        ]
        return sum(total >= observed - tolerance for total in sums) / len(sums)
    source = random.Random(seed)
    hits = sum(
        abs(sum(value if source.random() < 0.5 else -value for value in differences)) >= observed - tolerance
        for _ in range(_DRAWS)
    )
    return (hits + 1) / (_DRAWS + 1)


def _bootstrap(differences: Sequence[float], seed: int) -> tuple[float, float]:
    """Expanded percentile interval of the mean over resampled pairs (Hesterberg 2015, The American Statistician 69, section 4).

    A plain percentile interval of few pairs is too narrow: its tails are moved out to Phi(-t sqrt(n / (n - 1))), t being
    Student's quantile for n - 1 degrees of freedom.
    """
    count = len(differences)
    if count == 1:
        return float("-inf"), float("inf")
    source = random.Random(seed)
    means = sorted(fmean(source.choices(differences, k=count)) for _ in range(_RESAMPLES))
    tail = NormalDist().cdf(-_student(count - 1) * sqrt(count / (count - 1)))
    last = _RESAMPLES - 1
    return means[round(tail * last)], means[round((1 - tail) * last)]


def _student(freedom: int) -> float:
    """97.5 % quantile of Student's t, by its expansion around the normal one (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(1 - LEVEL / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(sum(term / freedom**power for power, term in enumerate(terms)))


@dataclass(frozen=True, slots=True)
class Looks:
    """When the test may be read: at these numbers of pairs, each at `level`, which together err in at most 5 % (Bonferroni)."""

    at: tuple[int, ...]

    @property
    def level(self) -> float:
        return LEVEL / len(self.at)

    @classmethod
    def plan(cls, pairs: int, most: int | None) -> "Looks":
        """One look after `pairs`; with a larger `most`, a second one there. Raises ValueError when a look cannot decide."""
        looks = cls((pairs,) if most is None or most <= pairs else (pairs, most))
        if 2 / 2**pairs > looks.level:
            fewest = next(n for n in range(1, 64) if 2 / 2**n <= looks.level)
            raise ValueError(
                f"{pairs} pairs cannot reach p <= {looks.level:g}: the smallest p is 2 / 2^{pairs}; take at least {fewest}"
            )
        return looks


def block_order(pairs: int, seed: int) -> list[tuple[str, str]]:
    """For each pair, which arm goes first: as many AB as BA (give or take one), in random order."""
    orders = [("A", "B") if index % 2 == 0 else ("B", "A") for index in range(pairs)]
    random.Random(seed).shuffle(orders)
    return orders
