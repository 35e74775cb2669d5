"""The estimated account: engines of known composition, seen through histograms alone, lie within the stated bounds."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.account import PARTS, Account, analyse_steps
from diagnose.account_estimate import estimate_account
from diagnose.policy import DEFAULT_POLICY
from diagnose.signals import HistogramWindow, Signals
from diagnose.stats import Bounds
from probes.records import StepRecord
from tests.builders import (
    Machine,
    Plan,
    build_signals,
    make_histogram,
    make_signals,
    make_steps,
    varied,
    watch,
    with_prefill,
)
from tests.diagnose import cases
from tests.diagnose.cases import look

HOST = ("schedule", "prepare", "postprocess", "idle")
MACHINES = st.builds(
    Machine,
    base_us=st.floats(500, 20_000),
    per_sequence_us=st.floats(0, 400),
    schedule_us=st.floats(20, 4000),
    lock_us=st.floats(0, 1000),
    idle_us=st.floats(0, 500),
    unbooked_us=st.floats(0, 200),
    slowdown=st.floats(1, 3),
    noise=st.floats(0, 0.1),
)


def seen(steps: list[StepRecord]) -> Signals:
    return build_signals(watch(steps, show_records=False))


def truth(steps: list[StepRecord], estimate: Account, *, upwards: bool) -> Account:
    """The exact account of the same gaps: those of the bucket, or all above its lower end."""
    ends = [
        bound for bound in seen(steps).histograms["inter_token_latency"].bounds if bound > estimate.quantile_seconds
    ]
    high = float("inf") if upwards or not ends else ends[0]
    exact = analyse_steps(steps, DEFAULT_POLICY).account_between(estimate.quantile_seconds + 1e-9, high, 0.5)
    assert exact is not None
    return exact


def assert_within(estimate: Account, exact: Account) -> None:
    def within(name: str, value: float) -> bool:
        bounds = estimate.bounds[name]
        return bounds.low - 1e-6 <= value <= bounds.high + 1e-6

    parts, total = exact.parts, estimate.total_bounds
    assert total is not None
    assert estimate.num_gaps == exact.num_gaps
    assert total.low - 1e-6 <= exact.total_seconds <= total.high + 1e-6
    assert within("decode_floor", parts["decode_floor"]), (estimate, exact)
    assert within("host", sum(parts[name] for name in HOST)), (estimate, exact)
    assert within("lock_wait", parts["lock_wait"])
    assert within("waiting", parts["preempted"] + parts["deferred"]), (estimate, exact)
    assert within("other", parts["other"])
    # The lower bound counts as prefill what nothing else explains in a mixed step, and says so.
    computed = parts["prefill"] + parts["recompute"]
    assert computed <= max(estimate.bounds["prefill"].high, estimate.bounds["recompute"].high) + 1e-6, (estimate, exact)
    assert computed + parts["off_cpu"] + parts["other"] >= estimate.bounds["prefill"].low - 1e-6, (estimate, exact)


def assert_adds_up(account: Account) -> None:
    assert sum(account.parts.values()) == pytest.approx(account.total_seconds)
    assert min(account.parts.values()) >= 0
    assert account.basis == "estimated"
    assert set(account.parts) == set(account.bounds)
    assert account.total_bounds is not None


@settings(max_examples=25)
@given(MACHINES, st.integers(0, 1000), st.integers(2, 20), st.integers(8, 3000))
def test_engines_of_known_composition_lie_within_the_bounds(machine, seed, every, tokens):
    steps = make_steps(200, with_prefill(every, tokens), machine, seed=seed)
    signals = seen(steps)
    for q in (0.5, 0.99):
        estimate = estimate_account(signals, q, DEFAULT_POLICY)
        assert estimate is not None
        assert_adds_up(estimate)
        assert_within(estimate, truth(steps, estimate, upwards=q > 0.5))


@settings(max_examples=15)
@given(MACHINES, st.integers(0, 1000), st.floats(60, 2000), st.booleans())
def test_late_gaps_lie_within_the_bounds(machine, seed, late_ms, recomputed):
    def plan(index: int) -> Plan:
        if index % 10 != 9:
            return varied(index)
        return replace(varied(index), recompute=60 * recomputed, late_ms=(late_ms,))

    steps = make_steps(200, plan, machine, seed=seed)
    estimate = estimate_account(seen(steps), 0.99, DEFAULT_POLICY)
    assert estimate is not None
    assert_adds_up(estimate)
    assert_within(estimate, truth(steps, estimate, upwards=True))


def test_interference_is_estimated_close_to_what_it_is():
    """The bounds alone say that most of a slow token's time is prefill."""
    steps = make_steps(300, with_prefill(5, 1500))
    estimate = estimate_account(seen(steps), 0.99, DEFAULT_POLICY)
    assert estimate is not None
    exact = truth(steps, estimate, upwards=True)
    assert estimate.parts["prefill"] == pytest.approx(exact.parts["prefill"], rel=0.15)
    assert estimate.parts["decode_floor"] == pytest.approx(exact.parts["decode_floor"], rel=0.15)
    assert estimate.bounds["prefill"].low > 0.3 * exact.total_seconds
    assert {(pair.first, pair.second) for pair in estimate.inseparable} == {("prefill", "off_cpu")}


def test_what_cannot_be_told_apart_is_named_with_what_would():
    for make, pair in (
        (cases.exhaustion, ("preempted", "deferred")),
        (cases.slow_host, ("decode_floor", "off_cpu")),
        (cases.interference, ("prefill", "off_cpu")),
    ):
        account = look(make(show_records=False)).account_p99
        assert account is not None
        found = {(p.first, p.second): p.measurement for p in account.inseparable}
        assert "step records" in found[pair]


def test_prefill_and_recompute_share_by_tokens():
    def plan(index: int) -> Plan:
        return replace(varied(index), prefill=900, recompute=300) if index % 5 == 4 else varied(index)

    account = estimate_account(seen(make_steps(200, plan)), 0.99, DEFAULT_POLICY)
    assert account is not None
    assert account.parts["prefill"] == pytest.approx(3 * account.parts["recompute"])
    assert ("prefill", "recompute") in {(pair.first, pair.second) for pair in account.inseparable}


def test_step_records_are_preferred():
    diagnosis = look(cases.interference())
    assert diagnosis.account_p99 is not None
    assert diagnosis.account_p99.basis == "fitted"
    assert diagnosis.account_p99.bounds == {}
    assert set(diagnosis.account_p99.parts) == set(PARTS)


@pytest.mark.parametrize("missing", ["inter_token_latency", "step_decode", "step_mixed"])
def test_nothing_is_estimated_without_its_histograms(missing):
    signals = seen(make_steps(60, with_prefill(5, 400)))
    del signals.histograms[missing]
    assert estimate_account(signals, 0.99, DEFAULT_POLICY) is None


def test_nothing_is_estimated_from_too_little_or_from_contradictions():
    full = {"inter_token_latency": {0.01: 100}, "step_decode": {0.01: 50}, "step_mixed": {0.3: 5}}
    assert estimate_account(make_signals(histograms=full), 0.5, DEFAULT_POLICY) is not None
    few = make_signals(histograms=full | {"step_decode": {0.01: DEFAULT_POLICY.min_decode_steps - 1}})
    assert estimate_account(few, 0.5, DEFAULT_POLICY) is None
    broken = make_signals(histograms=full)
    bounds = broken.histograms["inter_token_latency"].bounds
    counts = make_histogram({0.01: 100}).counts
    broken.histograms["inter_token_latency"] = HistogramWindow(bounds, counts, -3.0, "x")
    assert estimate_account(broken, 0.5, DEFAULT_POLICY) is None


def test_without_counters_the_bounds_are_all_that_histograms_leave():
    """No stall counter, no cap on the batch: the total is known, and every part may be nearly all of it."""
    histograms = {"inter_token_latency": {0.01: 990, 0.3: 10}, "step_decode": {0.01: 100}, "step_mixed": {0.3: 5}}
    account = estimate_account(make_signals(histograms=histograms), 0.99, DEFAULT_POLICY)
    assert account is not None
    assert_adds_up(account)
    assert account.bounds["waiting"] == Bounds(0.0, account.total_bounds.high if account.total_bounds else 0.0)
    assert account.bounds["prefill"].low == 0
