"""`make proofs`: a controlled comparison on our own engine, judged on outcomes and ratios, never on times of this machine."""

from typing import Any

import pytest

from runbooks.drills.engine_process import EngineProcess
from tests.pressure import skip_when_starved
from tests.runbooks.experiments.on_engine import (
    BLOCK,
    BUDGETS,
    TOKENS,
    WORDS,
    OthersWhen,
    compare,
    interference,
    knob,
    measure_pace,
)

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def engine():
    skip_when_starved()
    with EngineProcess(["--model", "smollm2", "--max-batched-tokens", str(BUDGETS[0]), "--threads", "1"]) as engine:
        yield engine


@pytest.fixture(scope="module")
def load(engine, tmp_path_factory):
    """Options of every comparison here. On a test machine a late client and a changed speed are not what a test is about."""
    path = tmp_path_factory.mktemp("policy") / "noisy.toml"
    path.write_text(
        "[thresholds]\nmatched_speed = 1.0\nclient_lag = 1.0\nclient_late_sends = 1.0\nmatched_arrivals = 0.5\n"
        "matched_error_rate = 0.2\n"
    )
    return [*interference(measure_pace(engine.url, WORDS), WORDS, TOKENS), *BLOCK, "--policy", str(path)]


@pytest.fixture(scope="module")
def noise(engine, load):
    """Of equal arms: the noise floor of the p99 gap, seconds."""
    report = compare("--arm-a", engine.url, "--arm-b", engine.url, *load)
    difference = report["rows"]["itl_p99"]["difference"]
    return report, max(abs(difference["low"]), abs(difference["high"]))


def told(report: dict[str, Any]) -> str:
    return "\n".join([*report["reading"], *report["mismatches"], *report["notes"]])


def test_a_smaller_budget_under_interference_is_confirmed(engine, load):
    report = compare(*knob(engine, "max_batched_tokens", *BUDGETS), "--hypothesis", "prefill_interference", *load)
    assert report["outcome"] == "confirmed", told(report)
    row = report["rows"]["itl_p99"]
    assert row["second"] < 0.7 * row["first"]
    assert row["difference"]["high"] < 0
    assert report["differences"] == [f"max_batched_tokens {BUDGETS[0]} -> {BUDGETS[1]}"]
    assert set(report["rows"]) >= {"itl_p50", "itl_p99", "ttft_p50", "throughput"}, "the trade is measured beside it"


def test_equal_arms_confirm_nothing(noise):
    report, floor = noise
    assert report["outcome"] == "noise floor"
    assert report["pairs"] == 6 and floor > 0
    assert report["differences"] == []


def test_a_knob_that_matters_not_is_a_null_with_its_interval(engine, load, noise):
    """A cap of 64 or of 48 sequences, of which a handful run."""
    _, floor = noise
    given = knob(engine, "max_sequences", 64, 48)
    report = compare(*given, *load, "--noise", f"{max(1, round(floor * 1e3))}ms")
    assert report["outcome"] in ("refuted", "not shown"), told(report)
    assert "[" in report["reading"][0] and "the other way" not in report["reading"][0]
    difference = report["rows"]["itl_p99"]["difference"]
    assert difference["low"] < difference["high"]


def test_traffic_of_others_on_one_arm_is_not_comparable(engine, load):
    """The same trace in both arms, and more beside it in one: the target's counters tell."""
    with OthersWhen(engine, "max_sequences", 48, WORDS // 4):
        report = compare(*knob(engine, "max_sequences", 64, 48), *load)
    assert report["outcome"] == "not comparable", told(report)
    assert any(line.startswith("traffic of others: ") for line in report["mismatches"]), report["mismatches"]
    assert "no difference is given" in report["reading"][0]
