"""Small exact statistics: weighted quantiles, histogram quantiles with their bounds, a robust non-negative fit."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf


def weighted_quantile(values: Sequence[float], weights: Sequence[float], q: float) -> float:
    """The smallest value whose cumulative weight reaches q of the total (no interpolation: a value that occurred)."""
    return weighted_quantiles(values, weights, (q,))[0]


def weighted_quantiles(values: Sequence[float], weights: Sequence[float], qs: Sequence[float]) -> list[float]:
    """`weighted_quantile` for several q, sorting once."""
    ranked = Ranked(values, weights)
    return [ranked.quantile(q) for q in qs]


class Ranked:
    """Values and their weights, sorted once for whoever asks for quantiles again and again."""

    def __init__(self, values: Sequence[float], weights: Sequence[float]) -> None:
        """Raises ValueError where there is no value."""
        if not values:
            raise ValueError("quantile of nothing")
        order = sorted(range(len(values)), key=values.__getitem__)
        self._values = [values[index] for index in order]
        self._reached = list(accumulate(map(weights.__getitem__, order)))
        self._total = sum(weights)

    def quantile(self, q: float) -> float:
        """As `weighted_quantile`."""
        return self._values[min(len(self._values) - 1, bisect_left(self._reached, q * self._total))]


def median(values: Sequence[float]) -> float:
    return weighted_quantile(values, [1.0] * len(values), 0.5)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of a quantile: it lies in (low, high]."""

    low: float
    high: float

    @property
    def exact(self) -> bool:
        return self.low == self.high


def bucket_quantile(bounds: Sequence[float], counts: Sequence[float], q: float) -> Bounds:
    """The bucket that holds quantile q, of per-bucket `counts` (one more than `bounds`, the last for +Inf).

    No interpolation: a bucket's own limits are all that a histogram says. Raises ValueError when it is empty.
    """
    total = sum(counts)
    if total <= 0:
        raise ValueError("quantile of an empty histogram")
    reached = 0.0
    for index, count in enumerate(counts):
        reached += count
        if reached >= q * total and count > 0:
            low = bounds[index - 1] if index else 0.0
            return Bounds(low, bounds[index] if index < len(bounds) else inf)
    return Bounds(bounds[-1], inf)


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Rank correlation; None when either side does not vary or there are fewer than four pairs."""
    if len(xs) < 4:
        return None
    rx, ry = _ranks(xs), _ranks(ys)
    mx, my = sum(rx) / len(rx), sum(ry) / len(ry)
    sxx = sum((x - mx) ** 2 for x in rx)
    syy = sum((y - my) ** 2 for y in ry)
    if sxx == 0 or syy == 0:
        return None
    return float(sum((x - mx) * (y - my) for x, y in zip(rx, ry, strict=True)) / (sxx * syy) ** 0.5)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for index in order[at : end + 1]:
            ranks[index] = (at + end) / 2
        at = end + 1
    return ranks


@dataclass(frozen=True, slots=True)
class LinearFit:
    """y = coefficients . x, every coefficient >= 0."""

    coefficients: tuple[float, ...]
    rows: int

    def predict(self, x: Sequence[float]) -> float:
        return sum(c * v for c, v in zip(self.coefficients, x, strict=True))


def robust_fit(rows: Sequence[Sequence[float]], y: Sequence[float], rounds: int = 8) -> LinearFit:
    """Least absolute-like fit by iteratively reweighted least squares (Huber weights on the median absolute residual).

    Coefficients that come out negative are dropped and the rest fitted again: none of the costs modelled here can be
    negative. Needs at least one row; a column that depends on those before it (a batch that never varies) gets 0, and its
    effect is theirs.
    """
    if not rows:
        raise ValueError("fit of nothing")
    weights = [1.0] * len(rows)
    coefficients: list[float] = []
    for _ in range(rounds):
        coefficients = _nonnegative_least_squares(rows, y, weights)
        residuals = [
            abs(v - sum(c * x for c, x in zip(coefficients, row, strict=True))) for row, v in zip(rows, y, strict=True)
        ]
        scale = 1.345 * 1.4826 * median(residuals)
        if scale <= 0:
            break
        weights = [1.0 if r <= scale else scale / r for r in residuals]
    return LinearFit(tuple(coefficients), len(rows))


def _nonnegative_least_squares(
    rows: Sequence[Sequence[float]], y: Sequence[float], weights: Sequence[float]
) -> list[float]:
    width = len(rows[0])
    used = list(range(width))
    while used:
        solution = _solve_normal_equations(rows, y, weights, used)
        if isinstance(solution, int):
            used.pop(solution)  # collinear: it says nothing that the columns before it do not
            continue
        worst = min(range(len(used)), key=solution.__getitem__)
        if solution[worst] >= 0:
            result = [0.0] * width
            for column, value in zip(used, solution, strict=True):
                result[column] = value
            return result
        used.pop(worst)
    return [0.0] * width


def _solve_normal_equations(
    rows: Sequence[Sequence[float]], y: Sequence[float], weights: Sequence[float], used: list[int]
) -> list[float] | int:
    """Gauss elimination on columns scaled to unit size; the place in `used` of the first column that depends on those before.

    No pivoting: the matrix is positive semi-definite, and a pivot that vanishes names its column.
    """
    scale = [max(abs(row[c]) for row in rows) for c in used]
    for place, size in enumerate(scale):
        if not 0 < size < inf:
            return place
    n = len(used)
    a = _normal_equations(rows, y, weights, list(zip(used, scale, strict=True)))
    for i in range(n):
        if a[i][i] < 1e-9 * sum(weights):
            return i
        for r in range(i + 1, n):
            factor = a[r][i] / a[i][i]
            for c in range(i, n + 1):
                a[r][c] -= factor * a[i][c]
    solution = [0.0] * n
    for i in reversed(range(n)):
        solution[i] = (a[i][n] - sum(a[i][j] * solution[j] for j in range(i + 1, n))) / a[i][i]
    return [value / size for value, size in zip(solution, scale, strict=True)]


def _normal_equations(
    rows: Sequence[Sequence[float]], y: Sequence[float], weights: Sequence[float], columns: list[tuple[int, float]]
) -> list[list[float]]:
    """X'WX with X'Wy as its last column, of columns divided by their scale."""
    n = len(columns)
    a = [[0.0] * (n + 1) for _ in range(n)]
    for row, value, weight in zip(rows, y, weights, strict=True):
        x = [row[c] / size for c, size in columns]
        for i in range(n):
            wi = weight * x[i]
            for j in range(i, n):
                a[i][j] += wi * x[j]
            a[i][n] += wi * value
    for i in range(n):
        for j in range(i):
            a[i][j] = a[j][i]
    return a
