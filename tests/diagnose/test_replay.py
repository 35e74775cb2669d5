"""Replaying: at any speed, from any moment, and over HTTP as if it were the target."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from diagnose.errors import ErrorAnswer, SourceError, TargetError
from diagnose.observation import Cut, When, observe
from diagnose.sources.http import Endpoint
from diagnose.sources.live import Watch
from diagnose.sources.replay import Replay, part_of
from diagnose.sources.replay_server import ReplayedTarget, ReplayServer
from probes.recording import Entry
from tests.builders import START_UNIX, Engine, make_steps
from tests.diagnose.fake_target import FakeClock


def between(since: float, until: float) -> Cut:
    return Cut(When(since, is_unix=False), When(until, is_unix=False))


def recorded(seconds: int = 10, per_second: int = 20) -> list[Entry]:
    """A page and the steps since the last one, each second."""
    engine, steps = Engine(), make_steps(seconds * per_second)
    entries = [Entry(START_UNIX, "exposition", engine.page())]
    for second in range(1, seconds + 1):
        part = steps[(second - 1) * per_second : second * per_second]
        engine.run(part)
        entries.append(Entry(START_UNIX + second, "exposition", engine.page()))
        entries.append(Entry(START_UNIX + second, "steps", engine.steps(part)))
    return entries


def times(clock: FakeClock, entries: list[Entry], speed: float = 1.0, **window: float) -> list[float]:
    """When each entry came, in seconds of the replay's clock."""
    came: list[float] = []
    Replay(entries, clock, lambda _: came.append(round(clock.now, 3)), speed).run(**window)
    return came


def pages(*at: float) -> list[Entry]:
    return [Entry(START_UNIX + second, "exposition", f"{second}") for second in at]


@pytest.mark.parametrize("speed", [0.5, 1.0, 10.0])
def test_entries_come_at_the_recorded_pace_times_the_speed(speed: float):
    assert times(FakeClock(), pages(0, 1, 5, 5, 9), speed) == [at / speed for at in (0, 1, 5, 5, 9)]


def test_seeking_hands_over_the_past_at_once():
    assert times(FakeClock(), pages(0, 1, 2, 3, 4), since=2.5) == [0, 0, 0, 0.5, 1.5]
    assert times(FakeClock(), pages(0, 1, 2, 3, 4), since=1, until=3) == [0, 0, 1, 2]


def test_a_clock_that_was_set_back_does_not_stop_it():
    assert times(FakeClock(), pages(0, 5, 2, 6)) == [0, 5, 5, 6]
    assert times(FakeClock(), pages(5, 0, 6)) == [0, 0, 1]


def test_the_length_is_that_of_the_recording():
    assert Replay(pages(0, 1, 9), FakeClock(), print).length_seconds == 9
    assert Replay([], FakeClock(), print).length_seconds == 0


def test_a_part_of_a_recording_is_a_window_of_its_own():
    """Its counters and its step records are those between its first and its last page."""
    part = part_of("a.rec", recorded(10), between(3.0, 7.0))
    observation = observe("a.rec", part)
    assert observation.length_seconds == 4.0
    assert [step.step_id for step in observation.steps] == list(range(60, 140))


def test_a_part_that_cannot_be_chosen_says_why():
    with pytest.raises(SourceError, match=r"a\.rec: holds 1 scrapes between 9\.5 s and 10 s, .* it is 10\.0 s long"):
        part_of("a.rec", recorded(10), between(9.5, 100.0))
    with pytest.raises(SourceError, match="has no times"):
        part_of("a.prom", [Entry(-1.0, "exposition", "a 1\n")], between(1.0, 2.0))


@contextmanager
def served(target: ReplayedTarget) -> Iterator[Endpoint]:
    with ReplayServer(0, target) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Endpoint(server.url)
        finally:
            server.shutdown()
            thread.join(10)


def test_a_watch_of_a_replay_sees_what_the_recording_holds():
    """The whole way: recorded, replayed over HTTP, watched again."""
    entries, target, clock = recorded(10), ReplayedTarget(), FakeClock()
    for entry in entries[:1]:
        target.take(entry)
    with served(target) as endpoint:
        for second in range(1, 11):
            for entry in entries[2 * second - 1 : 2 * second + 1]:
                clock.at(second, lambda entry=entry: target.take(entry))  # type: ignore[misc]
        watch = Watch(endpoint, clock)
        watch.run(10.0, 1.0)
    seen, original = observe("replay", watch.entries), observe("a.rec", entries)
    assert [scrape.page.samples for scrape in seen.scrapes] == [scrape.page.samples for scrape in original.scrapes]


def test_step_records_are_served_from_any_id_on():
    target = ReplayedTarget()
    for entry in recorded(3):
        target.take(entry)
    with served(target) as endpoint:
        for since in (0, 25, 60, 2**62):
            answer = observe("t", [Entry(START_UNIX, "steps", endpoint.get(f"/debug/steps?since={since}"))])
            assert [step.step_id for step in answer.steps] == list(range(since, 60))
            assert answer.steps_header is not None
            assert (answer.steps_header.next_id, answer.steps_lost) == (60, 0)


def test_a_restarted_engine_counts_anew():
    target = ReplayedTarget()
    for name, count in (("engine-1", 30), ("engine-2", 5)):
        target.take(Entry(START_UNIX, "steps", Engine(engine_id=name).steps(make_steps(count))))
    answer = target.steps(0)
    assert answer is not None
    assert '"engine_id":"engine-2"' in answer
    assert answer.count("\n") == 1 + 5


def test_failures_are_replayed_too():
    target = ReplayedTarget()
    with served(target) as endpoint:
        with pytest.raises(TargetError, match=r"connection broke|no answer|cannot connect"):
            endpoint.get("/metrics")
        target.take(Entry(START_UNIX, "exposition", "a 1\n"))
        assert endpoint.get("/metrics") == "a 1\n"
        target.take(Entry(START_UNIX, "event", "answered HTTP 500", "error_answer"))
        with pytest.raises(ErrorAnswer, match="HTTP 503"):
            endpoint.get("/metrics")
        target.take(Entry(START_UNIX, "event", "not a page", "bad_answer"))
        assert endpoint.get("/metrics") == "?not a page"
        target.take(Entry(START_UNIX, "exposition", "a 2\n"))
        target.take(Entry(START_UNIX, "event", "no records", "no_step_records"))
        assert endpoint.get("/metrics") == "a 2\n"
        with pytest.raises(ErrorAnswer, match="HTTP 404"):
            endpoint.get("/debug/steps?since=0")


def test_step_records_of_another_version_are_left_out():
    target = ReplayedTarget()
    target.take(Entry(START_UNIX, "steps", '{"stallscope_steps":99}\n'))
    assert target.steps(0) is None
