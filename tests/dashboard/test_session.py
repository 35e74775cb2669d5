"""The dashboard without a screen, against real sockets: feeds, back-off, judge, marks, exports."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dashboard.bundle import bundle_path, write_bundle
from dashboard.judge import MAX_TRAILING_PAGES, window_entries
from dashboard.model.target import Phase
from dashboard.model.view import Page
from dashboard.options import Options
from dashboard.poll import next_wait
from dashboard.session import SMALL_FLEET, Session
from probes.recording import Entry, read_recording
from tests.builders import make_steps, with_prefill
from tests.dashboard.views import DATA
from tests.diagnose.fake_target import FakeEngine, FakeTarget, raw, serving

RECORDING = str(DATA / "interference.rec")


@contextmanager
def running(*sources: str, **options: object) -> Iterator[Session]:
    session = Session(sources, Options(**({"interval": 0.05} | options)))  # type: ignore[arg-type]
    session.start()
    try:
        yield session
    finally:
        session.close()


def until(session: Session, done: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen"
        session.tick()
        time.sleep(0.01)


def engine() -> FakeEngine:
    return FakeEngine(make_steps(4000, with_prefill(10, 256)), per_scrape=10)


class TestLive:
    def test_samples_steps_and_requests_arrive(self):
        with engine().serving() as target, running(target.url) as session:
            shown = session.view.target
            until(session, lambda: len(shown.history) > 5 and len(shown.steps) > 20)
            assert shown.dialect == "stallscope"
            assert shown.history.at("decode_rate", time.time()) is not None
            session.view.page = Page.REQUESTS
            until(session, lambda: shown.requests is not None)
            assert shown.requests is not None
            assert "404" in shown.requests.problem, "this target lists none, which is said"

    def test_one_request_at_a_time_and_no_burst_after_a_slow_one(self):
        fake = engine()

        def slow() -> str:
            time.sleep(0.2)
            return fake.metrics()

        with serving(slow, steps=fake.steps) as target, running(target.url, interval=0.05) as session:
            until(session, lambda: len(session.view.target.history) >= 4)
            pages = sum(path.startswith("/metrics") for path in target.asked)
            assert pages <= len(session.view.target.history) + 1

    def test_a_large_fleet_reads_step_records_of_the_target_that_is_shown(self):
        with ExitStack() as stack:
            targets = [stack.enter_context(engine().serving()) for _ in range(SMALL_FLEET + 1)]
            session = stack.enter_context(running(*[target.url for target in targets]))
            first, last = session.view.targets[0], session.view.targets[-1]
            until(session, lambda: len(first.steps) > 20 and len(last.history) > 10)
            assert len(last.steps) <= 10, "at most what was asked for before the first tick"
            job = session.job(len(targets) - 1)
            assert job is None or not job.with_steps
            read = len(last.steps)
            opened = time.time()
            session.open(len(targets) - 1)
            until(session, lambda: len(last.steps) >= read + 30)
            ids = [record.step_id for record in last.steps][read:]
            assert ids == list(range(ids[0], ids[0] + len(ids)))
            assert ids[0] > 50, "what was made while nobody looked is left out"
            job = session.job(session.view.current)
            if job is not None and job.with_steps:
                assert job.end - job.start >= 2.0, "not while they cover too little"
            until(session, lambda: (job := session.job(session.view.current)) is not None and job.with_steps)
            job = session.job(session.view.current)
            assert job is not None and job.with_steps and job.start >= opened

    def test_a_hanging_target_does_not_hold_up_the_others(self):
        with engine().serving() as good, serving(None) as bad:
            bad.metrics = bad.hang
            with running(bad.url, good.url) as session:
                until(session, lambda: len(session.view.targets[1].history) > 5)
                assert len(session.view.targets[0].history) == 0, "it has not answered all the while"

    def test_lost_and_found_again_with_the_time_since(self, monkeypatch: pytest.MonkeyPatch):
        """That it is gone is judged at once, however long the pause after a diagnosis is."""
        monkeypatch.setattr("dashboard.session._PAUSE_PER_COST", 1e6)
        fake = engine()
        target = FakeTarget(fake.metrics, fake.steps).start()
        port = target.port
        with running(target.url) as session:
            shown = session.view.target
            until(session, lambda: len(shown.history) > 3)
            target.stop()
            until(session, lambda: shown.phase(time.time()) is Phase.LOST and "refused" in shown.problem)
            gone = shown.lost_for(time.time())
            assert gone is not None
            assert gone > 0
            until(session, lambda: shown.summary is not None and shown.summary.primary == "hard_failure", 60)
            again = FakeTarget(fake.metrics, fake.steps, port=port).start()
            try:
                until(session, lambda: shown.phase(time.time()) is not Phase.LOST)
            finally:
                again.stop()

    @pytest.mark.parametrize(
        ("answer", "phase", "words"),
        [
            ("<html>", Phase.NOT_METRICS, "not a metrics page"),
            ("other_metric 1\n", Phase.NOT_METRICS, "no engine this version knows"),
            (raw("503 Unavailable", "loading"), Phase.NOT_METRICS, "503"),
        ],
    )
    def test_what_is_no_metrics_endpoint_is_named(self, answer, phase, words):
        with serving(answer) as target, running(target.url) as session:
            until(session, lambda: session.view.target.refusal is not None)
            refusal = session.view.target.refusal
            assert refusal is not None
            assert words in refusal.text
            assert session.view.target.phase(time.time()) is phase

    def test_is_diagnosed_while_it_is_watched(self):
        with engine().serving() as target, running(target.url) as session:
            until(session, lambda: session.view.target.summary is not None)
            summary = session.view.target.summary
            assert summary is not None
            assert summary.trailing
            assert len(summary.facts) == 5

    def test_records_what_it_shows(self, tmp_path: Path):
        path = tmp_path / "live.rec"
        with engine().serving() as target, running(target.url, record=path) as session:
            until(session, lambda: len(session.view.target.history) > 3)
        recorded = read_recording(path.read_bytes())
        assert recorded.target == target.url
        assert sum(entry.kind == "exposition" for entry in recorded.entries) > 3

    def test_a_full_disk_is_said_and_the_watch_goes_on(self, monkeypatch: pytest.MonkeyPatch):
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("dashboard.model.spool.Spool.append", full)
        with engine().serving() as target, running(target.url) as session:
            until(session, lambda: len(session.view.target.history) > 3)
            assert "No space left" in session.view.target.write_problem


@pytest.mark.parametrize(
    ("interval", "took", "failures", "wait"),
    [
        (1.0, 0.1, 0, 0.9),
        (1.0, 0.9, 0, 1 / 3),
        (1.0, 1.2, 0, 0.8),
        (1.0, 0.0, 2, 4.0),
        (1.0, 0.0, 9, 10.0),
        (30.0, 0.0, 3, 30.0),
    ],
)
def test_waits_double_with_failures_up_to_ten_seconds(interval: float, took: float, failures: int, wait: float):
    assert next_wait(interval, took, failures) == pytest.approx(wait)


def test_a_window_leaves_out_steps_of_before_it_and_thins_pages_evenly():
    entries = [Entry(0.0, "exposition", ""), Entry(0.0, "steps", "before")]
    for number in range(1, 100):
        entries += [Entry(float(number), "exposition", ""), Entry(float(number), "steps", f"{number}")]
    kept = window_entries(entries, most_pages=MAX_TRAILING_PAGES)
    pages = [entry.unix for entry in kept if entry.kind == "exposition"]
    assert len(pages) == MAX_TRAILING_PAGES
    assert (pages[0], pages[-1]) == (0.0, 99.0)
    assert [entry.body for entry in kept if entry.kind == "steps"] == [str(n) for n in range(1, 100)]


@pytest.fixture(scope="module")
def replay() -> Iterator[Session]:
    with running(RECORDING) as session:
        until(session, lambda: session.view.target.summary is not None)
        yield session


class TestReplay:
    def test_says_what_diagnose_says_of_the_file(self, replay: Session):
        summary = replay.view.target.summary
        assert summary is not None
        assert summary.primary == "prefill_interference"
        assert replay.view.target.address == "http://127.0.0.1:8000"
        assert "http://127.0.0.1:8000" in summary.next_command

    def test_marks_diagnose_exactly_those_windows(self, replay: Session):
        target = replay.view.target
        first, last = target.history.first, target.history.last
        assert first is not None and last is not None
        for which, start, end in (("baseline", first, first + 10.5), ("incident", first + 10, last)):
            replay.seek_to(start)
            assert "begins" in replay.mark(which)
            replay.seek_to(end)
            assert "marked" in replay.mark(which)
        until(replay, lambda: not target.diagnosing)
        summary = target.summary
        assert summary is not None
        assert summary.start == pytest.approx(first + 10)
        assert summary.end == pytest.approx(last)
        assert summary.has_baseline
        assert not summary.trailing
        replay.clear_marks()
        replay.view.playhead.follow()
        until(replay, lambda: target.summary is not None and not target.diagnosing)

    def test_scrubbing_shows_the_steps_of_that_time(self, replay: Session):
        view = replay.view
        view.page = Page.STEPS
        everything = len(view.steps())
        replay.seek(-15)
        replay.tick()
        earlier = view.steps()
        assert 0 < len(earlier) < everything
        assert all((view.target.unix_of(record.end_ns) or 0) <= view.at for record in earlier)
        view.page = Page.OVERVIEW
        view.playhead.follow()

    def test_stepping_goes_from_sample_to_sample(self, replay: Session):
        view = replay.view
        replay.step(forward=False)
        replay.step(forward=False)
        before = view.at
        replay.step(forward=True)
        assert view.at > before
        view.playhead.follow()

    def test_the_bundle_is_whole_and_diagnoses_the_same(self, replay: Session, tmp_path: Path):
        job = replay.job(0)
        assert job is not None
        written = write_bundle(bundle_path(tmp_path, 0.0), job, replay.options.rules, "<svg/>")
        folder = tmp_path / "stallscope-incident-19700101-000000"
        assert {path.name for path in folder.iterdir()} == set(written)
        assert json.loads((folder / "diagnosis.json").read_text())["primary"] == "prefill_interference"
        assert read_recording((folder / "incident.rec").read_bytes()).target == "http://127.0.0.1:8000"
        assert bundle_path(tmp_path, 0.0).name.endswith("-1"), "nothing is overwritten"


@pytest.mark.parametrize("name", ["missing.rec", "vllm-0.32.0-decode-01.prom"])
def test_a_file_that_cannot_be_replayed_is_a_named_refusal(name: str):
    with running(str(DATA / name)) as session:
        until(session, lambda: session.loaded[0])
        refusal = session.view.target.refusal
        assert refusal is not None
        assert name in refusal.text
