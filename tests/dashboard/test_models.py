"""History, levels, digest, spool, playhead and tables: what the pages are drawn from."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.feed import Connecting, updates
from dashboard.model.digest import Digest
from dashboard.model.history import History, Point
from dashboard.model.levels import LevelReader, growth, histogram_growth
from dashboard.model.request_times import RequestTimes
from dashboard.model.requests import parse_requests
from dashboard.model.spool import Spool
from dashboard.model.target import Mark, Phase, Refusal, Target
from dashboard.model.update import Update
from dashboard.model.view import SPEEDS, Playhead, Table
from diagnose.dialects.registry import recognise
from diagnose.dialects.stallscope import STALLSCOPE
from diagnose.exposition import ExpositionParser
from diagnose.observation import observe
from probes.recording import Entry
from tests.builders import START_UNIX, Engine, build_signals, make_steps
from tests.dashboard.views import engine_entries, recording


def history_of(*points: tuple[float, float], capacity: int = 1000) -> History:
    history = History(capacity)
    for unix, value in points:
        history.append(Point(unix, {"running": value}))
    return history


class TestHistory:
    def test_is_bounded_and_keeps_the_newest(self):
        history = history_of(*((float(i), float(i)) for i in range(1000)), capacity=100)
        assert 100 <= len(history) <= 125
        assert history.last == 999.0
        assert history.at("running", 999.0) == 999.0
        assert history.at("running", 10.0) is None, "forgotten"

    def test_refuses_a_clock_that_was_set_back(self):
        history = history_of((10.0, 1.0))
        assert not history.append(Point(9.0, {"running": 5.0}))
        assert len(history) == 1

    def test_absent_is_none_and_not_zero(self):
        history = History(10)
        history.append(Point(1.0, {"up": 1.0}))
        assert history.at("running", 1.0) is None
        assert history.between("running", 0, 2) == []

    def test_a_value_holds_for_the_usual_distance_and_then_is_a_gap(self):
        history = history_of(*((float(i), 1.0) for i in range(11)), (40.0, 2.0))
        bins = history.bins("running", 40.0, 40.0, 40)
        assert bins[5] == 1.0
        assert bins[30] is None, "nothing was known for 20 s"
        assert bins[-1] == 2.0

    @given(
        st.lists(
            st.tuples(st.floats(0.0, 3.0), st.one_of(st.none(), st.floats(0, 100, width=32)), st.floats(-30.0, 3.0)),
            min_size=1, max_size=40,
        ),
        st.integers(1, 25),
        st.booleans(),
    )  # fmt: skip
    def test_bins_of_frame_after_frame_are_those_of_a_single_look(
        self, moves: list[tuple[float, float | None, float]], count: int, mean: bool
    ):
        """What is remembered between frames changes nothing, wherever the playhead is."""
        history, points, unix = History(1000), [], 100.0
        for later, value, playhead in moves:
            unix += later
            points.append(Point(unix, {} if value is None else {"running": value}))
            history.append(points[-1])
            fresh = History(1000)
            for point in points:
                fresh.append(point)
            end = unix + playhead
            assert history.bins("running", end, 20.0, count, mean=mean) == fresh.bins(
                "running", end, 20.0, count, mean=mean
            )

    @given(st.floats(100.0, 200.0), st.integers(2, 200))
    def test_bins_do_not_change_while_time_moves_within_one(self, end: float, count: int):
        history = history_of(*((float(i), float(i % 7)) for i in range(100)))
        width = 60.0 / count
        edge = (end // width) * width
        first, later = (history.bins("running", edge + width * share, 60.0, count) for share in (0.1, 0.8))
        assert first[:-1] == later[:-1], "only the bin that is being filled may change"

    @given(st.lists(st.floats(0, 100), max_size=50), st.floats(0, 120))
    def test_at_is_the_newest_not_after(self, times: list[float], unix: float):
        history = history_of(*((time, time) for time in sorted(times)))
        expected = max((time for time in times if time <= unix), default=None)
        found = history.at("running", unix)
        assert found == (None if expected is None else pytest.approx(expected, rel=1e-6))


class TestLevels:
    def test_agree_with_the_windows_of_the_diagnosis(self):
        """Two ways to read the same pages: deltas, gauges and quantiles of a real recording must be equal."""
        entries = [entry for entry in recording("interference.rec") if entry.kind == "exposition"]
        signals = build_signals(observe("t", [entries[0], entries[-1]]))
        reader, parser = LevelReader((STALLSCOPE,)), ExpositionParser()
        first, last = (reader.read(entry.unix, parser.parse(entry.body)) for entry in (entries[0], entries[-1]))
        gained = growth(first.counters, last.counters, restarted=False)
        assert gained
        assert gained == {name: signals.counters[name].delta for name in gained}
        levels = {name: value for name, value in last.gauges.items() if name != "waiting_transfer"}  # of a pair only
        assert {name: signals.gauges[name].last for name in levels} == levels
        for name, cumulative in last.histograms.items():
            window = histogram_growth(first.histograms[name], cumulative, restarted=False)
            assert window is not None
            known = signals.histograms[name]
            assert (window.bounds, window.counts) == (known.bounds, known.counts)
            assert window.sum == pytest.approx(known.sum)

    @pytest.mark.parametrize("name", ["thrash.rec", "vllm-pressure.rec"])
    def test_what_is_remembered_between_pages_changes_nothing(self, name: str):
        parser = ExpositionParser()
        reader: LevelReader | None = None
        for entry in recording(name):
            if entry.kind == "exposition":
                page = parser.parse(entry.body)
                dialects = recognise(name, page)
                reader = reader or LevelReader(dialects)
                read = reader.read(entry.unix, page)
                assert read == LevelReader(dialects).read(entry.unix, page)
                assert read.histograms

    def test_buckets_that_a_page_drops_or_adds_are_not_mixed_up(self):
        def page(*counts: tuple[str, int]) -> str:
            family = "stallscope_time_to_first_token_seconds"
            buckets = "".join(f'{family}_bucket{{le="{le}"}} {count}\n' for le, count in counts)
            return f"# TYPE {family} histogram\n{buckets}{family}_sum 1.5\n{family}_count {counts[-1][1]}\n"

        reader, parser = LevelReader((STALLSCOPE,)), ExpositionParser()
        for counts in (
            [("1", 1), ("+Inf", 2)],
            [("0.5", 1), ("1", 3), ("+Inf", 4)],
            [("1", 5), ("+Inf", 6)],
            [("1", 7)],
        ):
            found = reader.read(0.0, parser.parse(page(*counts))).histograms.get("time_to_first_token")
            if counts[-1][0] != "+Inf":
                assert found is None, "a histogram without its last bucket is none"
            else:
                assert found is not None
                assert found.bounds == tuple(float(le) for le, _ in counts)
                assert found.counts == tuple(count for _, count in counts)

    def test_series_that_appear_later_are_found(self):
        engine, reader, parser = Engine(), LevelReader((STALLSCOPE,)), ExpositionParser()
        reader.read(0.0, parser.parse(engine.page()))
        levels = reader.read(1.0, parser.parse(engine.page(waiting_by_reason={"kv_blocks": 3})))
        assert levels.waiting_reasons == {"kv_blocks": 3.0}
        assert levels.gauges["waiting_blocks"] == 3.0

    def test_a_counter_that_fell_began_again(self):
        assert growth({"a": 10.0}, {"a": 4.0}, restarted=False) == {"a": 4.0}
        assert growth({"a": 10.0}, {"a": 14.0}, restarted=True) == {"a": 14.0}
        assert growth({}, {"a": 14.0}, restarted=False) == {}, "one page has no growth"


def digested(entries: list[Entry]) -> list[Update]:
    return [update for update in updates("t", entries) if not isinstance(update, Connecting)]


class TestDigest:
    def test_rates_are_what_went_by(self):
        points = [update.point.values for update in digested(engine_entries(10, prefill=False))]
        assert "decode_rate" not in points[0], "one page has no rate"
        decoded = sum(record.emitted_tokens or 0 for record in make_steps(20, seed=1))
        assert points[1]["decode_rate"] == pytest.approx(decoded, rel=0.2)
        assert points[5]["active"] == 40.0

    def test_gap_quantiles_come_exact_from_step_records(self):
        updates_ = digested(engine_entries(5, prefill=False))
        records = [record for update in updates_ for record in update.steps]
        gaps = sorted((b.emit_ns - a.emit_ns) / 1e9 for a, b in pairwise(records) if b.num_regular_gaps)
        assert gaps[0] <= updates_[-1].point.values["itl_p50"] <= gaps[-1]
        assert updates_[-1].point.values["itl_p50"] in gaps

    def test_without_step_records_they_are_bucket_edges_and_that_is_said(self):
        pages = [entry for entry in engine_entries(5) if entry.kind == "exposition"]
        last = digested(pages)[-1]
        assert "step records" in last.missing
        assert last.point.values["itl_p99"] in (0.02, 0.03, 0.05)

    def test_a_restart_is_seen_and_joins_nothing(self):
        first, second = Engine(), Engine(start_unix=START_UNIX + 50, engine_id="engine-2")
        first.run(make_steps(500))
        second.run(make_steps(10))
        digest, parser = Digest((STALLSCOPE,)), ExpositionParser()
        digest.scraped(100.0, parser.parse(first.page()), None, ())
        update = digest.scraped(101.0, parser.parse(second.page()), None, ())
        assert update.restarted
        emitted = sum(record.emitted_tokens or 0 for record in make_steps(10))
        assert update.point.values["decode_rate"] == emitted

    def test_failures_are_points_without_values(self):
        update = Digest((STALLSCOPE,)).failed(5.0, "connection refused", unreachable=True)
        assert update.point.values == {"up": 0.0}
        assert update.problem == "connection refused"


class TestSpool:
    def test_gives_back_what_was_written(self):
        spool = Spool(segment_bytes=2000)
        entries = engine_entries(12)
        for entry in entries:
            spool.append(entry)
        assert spool.between(START_UNIX, START_UNIX + 100) == entries
        assert spool.between(START_UNIX + 3, START_UNIX + 4) == [e for e in entries if 3 <= e.unix - START_UNIX <= 4]
        spool.close()

    def test_the_oldest_goes_first_at_the_limit(self):
        spool = Spool(max_bytes=40_000, segment_bytes=10_000)
        for number in range(60):
            spool.append(Entry(float(number), "exposition", Engine().page()))
        kept = spool.between(0, 100)
        assert 1 < len(kept) < 30
        assert kept[-1].unix == 59.0
        spool.close()


class TestPlayhead:
    def test_pause_play_and_join_the_newest(self):
        head = Playhead()
        head.toggle(100.0)
        assert (head.at, head.playing) == (100.0, False)
        head.seek(-30, first=0.0, end=100.0)
        head.faster(1)
        head.toggle(100.0)
        head.advance(10.0, end=110.0, stops=False)
        assert head.at == 90.0, "twice the speed"
        head.advance(20.0, end=120.0, stops=False)
        assert head.follows, "it caught up"

    def test_a_recording_stops_at_its_end(self):
        head = Playhead(at=95.0, playing=True)
        head.advance(10.0, end=100.0, stops=True)
        assert (head.at, head.playing) == (100.0, False)

    @given(st.lists(st.integers(-3, 3)))
    def test_speed_stays_in_its_range(self, turns: list[int]):
        head = Playhead()
        for turn in turns:
            head.faster(turn)
        assert head.speed in SPEEDS

    @given(st.floats(-1e6, 1e6), st.floats(0, 50))
    def test_a_seek_stays_within_what_there_is(self, by: float, start: float):
        head = Playhead(at=start)
        head.seek(by, first=0.0, end=50.0)
        assert head.at is not None
        assert 0.0 <= head.at <= 50.0


@given(st.integers(0, 30), st.lists(st.integers(-12, 12), max_size=20), st.integers(1, 10))
def test_the_selected_row_is_always_on_screen(count: int, moves: list[int], height: int):
    table = Table()
    for move in moves:
        table.move(move, count)
        shown = table.scroll(height, count)
        assert len(shown) <= height
        assert not count or table.selected in shown


class TestPhase:
    def make(self) -> Target:
        return Target("http://t", 1.0, History(1000))

    def fed(self, values: dict[str, float], until: int = 20) -> Target:
        target = self.make()
        for at in range(until):
            target.apply(Update(Point(float(at), {"up": 1.0} | values)))
        return target

    def test_from_connecting_to_lost(self):
        target = self.make()
        assert target.phase(0.0) is Phase.CONNECTING
        target.refusal = Refusal(0.0, "refused", answered=False)
        assert target.phase(0.0) is Phase.UNREACHABLE
        target.refusal = Refusal(0.0, "html", answered=True)
        assert target.phase(0.0) is Phase.NOT_METRICS
        target.apply(Update(Point(1.0, {"up": 1.0, "decode_rate": 5.0})))
        assert target.phase(1.5) is Phase.LIVE
        assert target.phase(9.0) is Phase.STALE, "no answer and no failure for long"
        target.apply(Update(Point(9.5, {"up": 0.0}), problem="refused"))
        assert target.phase(10.0) is Phase.LOST
        assert target.lost_for(10.0) == 9.0

    def test_idle_needs_counters_that_stand_still_and_nobody_in_it(self):
        still = {"decode_rate": 0.0, "prefill_rate": 0.0}
        assert self.fed(still | {"running": 0.0, "waiting": 0.0}).phase(19.0) is Phase.IDLE
        assert self.fed(still | {"running": 2.0}).phase(19.0) is Phase.LIVE, "work that does not advance is not idle"
        assert self.fed({"running": 0.0}).phase(19.0) is Phase.LIVE, "no counter says so"

    def test_a_phase_of_the_past(self):
        target = self.fed({"decode_rate": 1.0})
        target.apply(Update(Point(25.0, {"up": 0.0}), problem="refused"))
        assert target.phase(26.0) is Phase.LOST
        assert target.phase(26.0, at=10.0) is Phase.LIVE


def test_marks_may_be_set_backwards():
    assert Mark(20.0).closed_at(10.0) == Mark(10.0, 20.0)


REQUEST = (
    '{"total": 1, "requests": [{"request_id": "r1", "state": "%s", "reason": null, "deferred_steps": 0, "age_seconds": %s,'
    ' "prompt_tokens": 10, "computed_tokens": %s, "output_tokens": 0, "blocks": 1, "preemptions": 0}]}'
)


class TestRequests:
    def test_time_is_booked_to_what_a_request_was_doing(self):
        times = RequestTimes()
        for state, age, computed in (
            ("waiting", 1.0, 0),
            ("waiting", 3.0, 0),
            ("running", 4.0, 5),
            ("running", 9.0, 10),
        ):
            answer = parse_requests(0.0, REQUEST % (state, age, computed))
            times.note(answer)
        assert times.text(answer.rows[0]) == "wait 2.00 s  prefill 1.00 s  decode 5.00 s  unseen 1.00 s"
        assert times.waited(answer.rows[0]) == 2.0

    @pytest.mark.parametrize("body", ["", "[]", '{"requests": [{}], "total": 1}', "<html>", '{"requests": 3}'])
    def test_other_answers_are_named_and_not_raised(self, body: str):
        assert "cannot be read" in parse_requests(0.0, body).problem
