"""Quantiles, bounds, rank correlation and the robust fit, against values that are known by construction."""

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.stats import Bounds, bucket_quantile, median, robust_fit, spearman, weighted_quantile, weighted_quantiles

VALUES = st.lists(st.floats(0, 1e3), min_size=1, max_size=40)


def test_several_quantiles_are_those_of_one_at_a_time():
    values, weights = [5.0, 1.0, 4.0, 2.0], [3, 1, 0, 6]
    assert weighted_quantiles(values, weights, (0.0, 0.1, 0.5, 0.99, 1.0)) == [1.0, 1.0, 2.0, 5.0, 5.0]


def test_weighted_quantile_is_a_value_that_occurred():
    assert weighted_quantile([3.0, 1.0, 2.0], [1, 1, 1], 0.5) == 2.0
    assert weighted_quantile([1.0, 10.0], [99, 1], 0.99) == 1.0
    assert weighted_quantile([1.0, 10.0], [98, 2], 0.99) == 10.0
    assert weighted_quantile([1.0, 2.0], [1, 1], 0.0) == 1.0
    assert weighted_quantile([1.0, 2.0], [1, 1], 1.0) == 2.0
    with pytest.raises(ValueError, match="nothing"):
        weighted_quantile([], [], 0.5)


@given(VALUES, st.integers(1, 99))
def test_weights_mean_repetition(values, percent):
    weights = [1 + index % 3 for index in range(len(values))]
    repeated = [value for value, weight in zip(values, weights, strict=True) for _ in range(weight)]
    q = percent / 100
    assert weighted_quantile(values, weights, q) == weighted_quantile(repeated, [1] * len(repeated), q)


def test_median_of_an_even_number_is_the_lower_middle():
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.0


@given(VALUES, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_a_bucket_holds_the_exact_quantile(values, q):
    bounds = [0.1, 1.0, 10.0, 100.0]
    counts = [0.0] * 5
    for value in values:
        counts[sum(bound < value for bound in bounds)] += 1
    found = bucket_quantile(bounds, counts, q)
    exact = weighted_quantile(values, [1] * len(values), q)
    assert found.low < exact <= found.high or (found.low == 0 and exact == 0)


def test_bucket_quantile_names_the_bucket_and_never_an_empty_one():
    assert bucket_quantile([0.1, 0.25], [0, 10, 0], 0.99) == Bounds(0.1, 0.25)
    assert bucket_quantile([0.1, 0.25], [10, 0, 10], 0.5) == Bounds(0.0, 0.1)
    assert bucket_quantile([0.1, 0.25], [0, 0, 1], 0.5) == Bounds(0.25, inf)
    with pytest.raises(ValueError, match="empty"):
        bucket_quantile([0.1], [0, 0], 0.5)


def rows_of(count: int, seed: int = 1, *, sequences: int | None = None) -> list[tuple[float, float, float]]:
    random = Random(seed)
    return [(1.0, float(sequences or random.randint(1, 32)), float(random.randint(500, 30_000))) for _ in range(count)]


TRUE = (0.004, 0.00025, 2e-7)


def times(
    rows: list[tuple[float, float, float]], noise: float = 0.0, outliers: float = 0.0, seed: int = 2
) -> list[float]:
    random = Random(seed)
    exact = [sum(c * x for c, x in zip(TRUE, row, strict=True)) for row in rows]
    noisy = [value * random.gauss(1, noise) for value in exact]
    return [value * 5 if random.random() < outliers else value for value in noisy]


def test_fit_without_noise_is_exact():
    rows = rows_of(50)
    fit = robust_fit(rows, times(rows))
    assert fit.coefficients == pytest.approx(TRUE, rel=1e-6)
    assert fit.rows == 50


@pytest.mark.parametrize("seed", range(5))
def test_fit_withstands_noise_and_a_tenth_of_outliers(seed):
    """Predictions, which the account uses, stay within 3 %, although every tenth step took five times as long."""
    rows = rows_of(400, seed)
    fit = robust_fit(rows, times(rows, noise=0.05, outliers=0.10, seed=seed))
    errors = [abs(fit.predict(row) / exact - 1) for row, exact in zip(rows, times(rows), strict=True)]
    assert median(errors) < 0.03
    assert max(errors) < 0.10


def test_a_constant_batch_leaves_context_its_coefficient():
    """Batch and constant cannot be told apart when the batch never changes; context still can."""
    rows = rows_of(60, sequences=8)
    fit = robust_fit(rows, times(rows))
    assert fit.coefficients[2] == pytest.approx(TRUE[2], rel=1e-6)
    assert fit.coefficients[1] == 0.0
    assert fit.coefficients[0] == pytest.approx(TRUE[0] + 8 * TRUE[1], rel=1e-6)


def test_context_in_step_with_the_batch_is_one_effect():
    rows = [(1.0, float(n), 1000.0 * n) for n in range(1, 30)]
    fit = robust_fit(rows, times(rows))
    assert fit.coefficients[2] == 0.0
    assert [fit.predict(row) for row in rows] == pytest.approx(times(rows))


def test_no_row_varies():
    fit = robust_fit([(1.0, 4.0, 100.0)] * 12, [0.01] * 12)
    assert fit.coefficients == pytest.approx((0.01, 0.0, 0.0))


def test_a_column_of_zeros_is_left_out():
    fit = robust_fit([(1.0, 0.0, float(n)) for n in range(1, 12)], [float(n) for n in range(1, 12)])
    assert fit.coefficients == pytest.approx((0.0, 0.0, 1.0), abs=1e-9)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 50_000), st.floats(1e-4, 10)), min_size=1, max_size=40))
def test_costs_are_never_negative(samples):
    rows = [(1.0, float(seqs), float(context)) for seqs, context, _ in samples]
    fit = robust_fit(rows, [seconds for *_, seconds in samples])
    assert min(fit.coefficients) >= 0
    assert all(fit.predict(row) >= 0 for row in rows)


def test_a_falling_trend_is_fitted_by_a_constant():
    rows = [(1.0, float(n)) for n in range(10)]
    fit = robust_fit(rows, [1.0 - n / 100 for n in range(10)])
    assert fit.coefficients[1] == 0.0
    assert 0.9 < fit.coefficients[0] < 1.0


def test_fit_of_nothing():
    with pytest.raises(ValueError, match="nothing"):
        robust_fit([], [])


def test_spearman():
    assert spearman([1, 2, 3, 4], [10, 100, 1000, 10_000]) == pytest.approx(1.0)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 1, 2, 2], [1, 1, 2, 2]) == pytest.approx(1.0), "ties share a rank"
    assert spearman([1, 2, 3], [1, 2, 3]) is None, "three pairs are no correlation"
    assert spearman([1, 1, 1, 1], [1, 2, 3, 4]) is None
