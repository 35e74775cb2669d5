"""The traps of a window: resets, a single scrape, a target that is idle or gone, and bounds of buckets."""

import json

import pytest

from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.observation import Event, observe
from diagnose.report.json_report import to_json
from diagnose.report.outline import headline
from probes.recording import Entry
from tests.builders import (
    START_UNIX,
    Engine,
    make_signals,
    watch,
)
from tests.diagnose import cases
from tests.diagnose.cases import look, texts


def test_a_counter_reset_gives_no_negative_rate_and_no_invented_cause():
    diagnosis = look(cases.restarted_engine(running=0), cases.quiet())
    assert all(counter.delta >= 0 for counter in diagnosis.case.signals.counters.values())
    assert any("restarted in the window" in warning for warning in diagnosis.warnings)
    assert not [f.name for f in diagnosis.findings if f.is_supported]


def test_a_restarted_target_is_said_first_and_contained_if_it_was_serving():
    diagnosis = look(cases.restarted_engine(running=5))
    assert diagnosis.exit_code == 4
    assert "restarted in the window with 5 requests running" in texts(diagnosis, "hard_failure")


def test_a_single_scrape_is_a_moment_and_names_nobody():
    """Even a full pool with requests that wait for blocks: at the next moment both may be gone."""
    page = Engine().page(census=cases.FULL, num_running=8, num_waiting=3, waiting_by_reason={"kv_blocks": 3})
    diagnosis = look(observe("one.prom", [Entry(START_UNIX, "exposition", page)]))
    assert diagnosis.exit_code == 3
    assert not [f.name for f in diagnosis.findings if f.is_supported]
    assert "at most 3 requests waited for blocks" in texts(diagnosis, "kv_exhaustion")
    assert "a second scrape" in texts(diagnosis, "kv_exhaustion")
    assert any("one scrape is a moment" in warning for warning in diagnosis.warnings)


def test_an_idle_target_is_called_idle_not_healthy():
    diagnosis = look(watch([], show_records=False, num_running=0))
    assert diagnosis.idle
    assert diagnosis.exit_code == 3
    assert "idle: no token was computed in 20 s" in headline(diagnosis)
    assert "nothing wrong" not in headline(diagnosis)


def test_a_stale_gauge_does_not_make_a_working_target_idle_nor_an_idle_one_busy():
    """Counters decide: a gauge that reads 0 between steps is no idleness; work that stands still is not called idle."""
    assert not look(cases.quiet(num_running=0)).idle
    stuck = look(watch([], show_records=False, num_running=4))
    assert not stuck.idle
    assert stuck.exit_code == 3


def test_an_idle_target_that_dies_is_gone_not_idle():
    events = (Event(START_UNIX + 20, "gone", "the target is gone now: connection refused"),)
    diagnosis = look(watch([], show_records=False, num_running=0), events=events)
    assert not diagnosis.idle
    assert diagnosis.exit_code == 4
    assert headline(diagnosis) == "hard_failure is supported"


def test_a_target_that_dies_after_its_first_answer_is_gone():
    entries = [
        Entry(START_UNIX, "exposition", Engine().page()),
        Entry(START_UNIX + 1, "event", "gone: connection refused", "gone"),
    ]
    diagnosis = look(observe(cases.TARGET, entries))
    assert diagnosis.exit_code == 4
    assert "out of the load balancer" in diagnosis.decision.steps[0].text


@pytest.mark.parametrize(("before", "now"), [(0.0199, 0.0201), (0.0201, 0.0199), (0.025, 0.025)])
def test_neighbouring_buckets_are_no_regression(before, now):
    """19.9 ms and 20.1 ms lie in different buckets, (15, 20] and (20, 30]: their bounds differ by half, they by 1 %."""
    diagnosis = shifted(before, now)
    assert diagnosis.case.itl_moved() is False
    assert diagnosis.case.median_shift() is None


def test_a_regression_inside_a_bucket_is_seen_in_the_mean():
    """21 ms and 29 ms share the bucket (20, 30]."""
    assert shifted(0.021, 0.029).case.itl_moved() is True


def test_a_median_beyond_the_last_bucket_is_no_infinity():
    diagnosis = shifted(0.5, 90.0)
    assert diagnosis.case.median_shift() == pytest.approx(120)
    assert diagnosis.case.itl_moved() is True
    json.dumps(to_json(diagnosis), allow_nan=False)


def shifted(before: float, now: float) -> Diagnosis:
    def window(value: float):
        return make_signals(histograms={"inter_token_latency": {value: 1000}})

    return diagnose("t", window(now), window(before))
