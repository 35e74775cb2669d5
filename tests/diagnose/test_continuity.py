"""Windows that are not what they seem: missing scrapes, clocks that were set, gauges that nothing bears out."""

from itertools import pairwise

import pytest

from diagnose.continuity import limit_to_trusted
from diagnose.observation import Observation, observe
from diagnose.policy import DEFAULT_POLICY
from probes.recording import Entry
from probes.wire import StepsHeader, encode_steps
from tests.builders import START_UNIX, Engine, build_signals, make_steps
from tests.diagnose import cases
from tests.diagnose.cases import look, texts, verdict


def scraped(*times: float, busy: bool = True, clocks: dict[float, float] | None = None) -> Observation:
    """A page at each time, after some steps if the engine is busy; `clocks` gives the engine's monotonic seconds."""
    engine, steps = Engine(), make_steps(10 * len(times))
    entries = []
    for index, time in enumerate(times):
        if busy:
            engine.run(steps[10 * index : 10 * index + 10])
        entries.append(Entry(START_UNIX + time, "exposition", engine.page()))
        if clocks is not None:
            header = StepsHeader("engine-1", 0, 0, round(clocks[time] * 1e9), round((START_UNIX + time) * 1e9))
            entries.append(Entry(START_UNIX + time, "steps", "".join(encode_steps(header, []))))
    return observe("t", entries)


def judged(observation: Observation) -> tuple[float | None, list[str]]:
    signals = build_signals(observation)
    warnings = limit_to_trusted(observation, signals, DEFAULT_POLICY)
    return signals.length_seconds, warnings


def test_a_regular_window_has_nothing_to_say():
    times = [0.0, 1.0, 2.1, 3.0, 4.0, 5.2]
    length, warnings = judged(scraped(*times, clocks={time: 500 + time for time in times}))
    assert length == pytest.approx(5.2)
    assert warnings == []


def test_missing_scrapes_are_counted_and_measured():
    length, warnings = judged(scraped(0, 1, 2, 3, 9, 10, 13.5))
    assert length == 13.5
    assert warnings == [
        "scrapes are missing: 2 gaps of up to 6.00 s between scrapes that are usually 1.00 s apart; "
        "gauges say nothing of those times"
    ]


def test_what_no_scrape_saw_is_not_refuted_by_gauges():
    """Nobody waited at any scrape, but none was made for half of the window: a queue may have come and gone."""
    gappy = look(scraped(0, 1, 2, 3, 9, 10, 13.5))
    assert gappy.case.signals.unseen_share == pytest.approx((5 + 2.5) / 13.5)
    for name in ("queue_overload", "sequence_cap", "admission_stall"):
        assert verdict(gappy, name) == "undetermined"
        assert "no gauge tells of the 56 % without one" in texts(gappy, name)
        assert verdict(look(scraped(0, 1, 2, 3, 4, 5)), name) == "refuted"
    assert verdict(gappy, "preemption_storm") == "refuted", "a counter misses nothing"


def test_a_short_gap_limits_nothing():
    assert verdict(look(scraped(*range(30), 32.6)), "queue_overload") == "refuted"


def test_a_late_scrape_is_not_a_missing_one():
    assert judged(scraped(0, 1, 2, 3, 5.4, 6))[1] == []


def test_three_scrapes_show_no_usual_interval():
    assert judged(scraped(0, 1, 100))[1] == []


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_was_set_leaves_the_window_without_a_length(jump):
    times = [0.0, 1.0, 2.0 + jump, 3.0 + jump]
    length, warnings = judged(scraped(*times, clocks=dict(zip(times, (50.0, 51.0, 52.0, 53.0), strict=True))))
    assert length is None
    assert "was set" in warnings[0]
    assert sum("was set" in warning for warning in warnings) == 1


def test_a_slow_answer_is_no_jump():
    times = [0.0, 1.0, 6.0]
    assert judged(scraped(*times, clocks={0.0: 50.0, 1.0: 51.0, 6.0: 52.5}))[0] == 6.0


def test_an_engine_without_a_wall_clock_proves_no_jump():
    """Its headers say 0: nothing to compare with."""
    observation = cases.interference()
    assert observation.clocks == []
    assert judged(observation) == (20.0, [])


def test_scrapes_at_one_time_are_named():
    _, warnings = judged(scraped(0, 1, 1, 2))
    assert warnings == ["1 scrapes carry the same time as the one before them"]


def test_a_busy_gauge_beside_idle_counters_is_stale_or_hung():
    _, warnings = judged(scraped(0, 1, 2, busy=False))
    assert len(warnings) == 1
    assert "stale gauge, or an engine that does not advance" in warnings[0]
    assert judged(scraped(0, 1, 2))[1] == []


def test_the_baselines_faults_are_named_as_its_own():
    gappy = scraped(0, 1, 2, 3, 9)
    found = [warning for warning in look(cases.interference(), gappy).warnings if "missing" in warning]
    assert found[0].startswith("baseline: scrapes are missing: one gap")


def test_restarts_limit_the_clocks_to_the_newest_engine():
    entries = []
    for engine_id, time, monotonic in (("old", 0, 9000), ("new", 10, 5), ("new", 20, 15)):
        header = StepsHeader(engine_id, 0, 0, monotonic * 10**9, 10**18)
        entries.append(Entry(START_UNIX + time, "steps", "".join(encode_steps(header, []))))
    clocks = observe("t", entries).clocks
    assert [(after.monotonic_ns - before.monotonic_ns) / 1e9 for before, after in pairwise(clocks)] == [10]
