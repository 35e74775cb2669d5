"""Targets that refuse, hang, lie and break off: one line that names the target, and nothing made up."""

import socket
from collections.abc import Iterator

import pytest

from diagnose.errors import SourceError, TargetError
from diagnose.observation import GONE_AFTER_FAILURES
from diagnose.sources import http
from diagnose.sources.clock import SystemClock
from diagnose.sources.http import Endpoint
from diagnose.sources.live import Watch, first_page
from probes.recording import Entry
from tests.builders import Engine, make_steps
from tests.diagnose.fake_target import Answer, FakeClock, FakeEngine, FakeTarget, kept_open, raw, serving


def refused() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def reason(url: str, timeout: float = 5.0) -> str:
    """What `get` says, and that it is one line which names the target."""
    with pytest.raises(TargetError) as caught:
        Endpoint(url, timeout).get("/metrics")
    text = str(caught.value)
    assert text.startswith(f"{url}/metrics: ")
    assert "\n" not in text
    assert caught.value.exit_code == 2
    return text.removeprefix(f"{url}/metrics: ")


def answered(answer) -> str:
    with serving(answer) as target:
        return reason(target.url)


def test_refused():
    assert reason(refused()) == "connection refused: nothing listens there"


def test_unknown_host():
    assert reason("http://no-such-host.invalid:8000") == "the host name does not resolve"


@pytest.mark.parametrize("status", ["404 Not Found", "500 Internal Server Error", "401 Unauthorized", "503 Busy"])
def test_an_error_status_is_named_with_what_the_server_says(status):
    assert answered(raw(status, "out of order\nsorry")) == f"answered HTTP {status[:3]} (out of order sorry)"
    assert answered(raw(status)) == f"answered HTTP {status[:3]}"


def test_an_error_body_cannot_steer_the_terminal():
    assert "\x1b" not in answered(raw("500 No", "\x1b[2Jgone"))


def test_a_redirect_loop_is_given_up():
    assert answered(raw("302 Found", "", "Location: /metrics")) == "it redirects in circles, or more than 3 times"


def test_one_redirect_is_followed():
    with serving("a 1\n") as target, serving(raw("307 Moved", "", f"Location: {target.url}/metrics")) as front:
        assert Endpoint(front.url).get("/metrics") == "a 1\n"


def test_a_hanging_server_is_given_up():
    with serving(lambda: target.hang()) as target:
        assert reason(target.url, timeout=0.05) == "no answer within 0.05 s"


def test_a_drip_of_bytes_does_not_hold_the_watch_for_ever(monkeypatch):
    """Each byte comes in time; the answer as a whole does not."""
    now = iter(range(100))
    monkeypatch.setattr("diagnose.sources.http.time.monotonic", lambda: float(next(now)))
    drip = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 50 + b"0\r\n\r\n"
    with serving(drip) as target:
        assert reason(target.url) == "the answer was not complete within 5 s"


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CUT = {
    "before a word": None,
    "in the status line": b"HTTP/1",
    "before the announced length": raw("200 OK", "a 1\n", length=100),
    "in a chunk": CHUNKED + b"64\r\na 1\n",
    "between chunks": CHUNKED + b"4\r\na 1\n\r\n",
    "in broken gzip": raw("200 OK", "no gzip", "Content-Encoding: gzip"),
    "by nonsense": b"SSH-2.0-OpenSSH\r\n",
}


@pytest.mark.parametrize("answer", CUT.values(), ids=CUT.keys())
def test_half_an_answer_is_none(answer):
    assert answered(answer) == "the connection broke in the middle of the answer"


def test_a_closed_idle_connection_is_no_failure():
    """Servers close connections that idle for some seconds: the next scrape asks once more on a new one."""
    answers = iter([kept_open(), None, kept_open(), None, None])
    with serving(lambda: next(answers)) as target:
        endpoint = Endpoint(target.url)
        assert endpoint.get("/metrics") == endpoint.get("/metrics")
        with pytest.raises(TargetError, match="broke in the middle"):
            endpoint.get("/metrics")


def test_whole_answers_of_every_kind_are_read():
    chunked = CHUNKED + b"4\r\na 1\n\r\n4\r\nb 2\n\r\n0\r\n\r\n"
    unmeasured = b"HTTP/1.0 200 OK\r\n\r\na 1\nb 2\n"
    for answer in (chunked, unmeasured, "a 1\nb 2\n"):
        with serving(answer) as target:
            assert Endpoint(target.url).get("/metrics") == "a 1\nb 2\n"


def test_a_body_without_end_is_not_kept(monkeypatch):
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 1 << 20)
    assert "larger than 1 MiB: not a metrics page" in answered("a 1\n" * (1 << 19))


def test_the_connection_is_usable_after_a_failure(monkeypatch):
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 1000)
    answers: Iterator[Answer] = iter(["a 1\n" * 10_000, "a 1\n", raw("500 No"), "b 2\n"])
    with serving(lambda: next(answers)) as target:
        endpoint = Endpoint(target.url)
        for expected in (None, "a 1\n", None, "b 2\n"):
            if expected is None:
                with pytest.raises(TargetError):
                    endpoint.get("/metrics")
            else:
                assert endpoint.get("/metrics") == expected


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "127.0.0.1:8000", "http://x:port", "http://[::1", "http://x:99999"]
)
def test_what_is_no_target(url):
    with pytest.raises(SourceError):
        Endpoint(url)


def test_the_scrape_address_stands_for_the_server():
    assert Endpoint("http://h:1/metrics").url == "http://h:1"
    assert Endpoint("http://h:1/a/").url == "http://h:1/a"


# ---- the first page


def page_problem(answer) -> str:
    with serving(answer) as target, pytest.raises(TargetError) as caught:
        first_page(Endpoint(target.url))
    text = str(caught.value)
    assert text.startswith(target.url)
    assert "\n" not in text
    return text


def test_an_html_page_is_no_metrics_page():
    assert "not a metrics page: line 1" in page_problem("<!DOCTYPE html>\n<html></html>")


def test_an_empty_page_is_said_to_be_empty():
    assert "the page is empty" in page_problem("")


def test_an_unknown_engine_is_told_what_was_found():
    text = page_problem("acme_up 1\npython_info 1\n")
    assert "its metrics begin with acme, python" in text
    assert "it needs the metrics of an engine (stallscope, vllm" in text


def test_another_exporter_is_named():
    assert "a metrics page of node_exporter, which says nothing of an engine" in page_problem("node_load1 0.5\n")


# ---- watching


def kinds(entries: list[Entry]) -> list[str]:
    return [entry.event or entry.kind for entry in entries]


def run(target: FakeTarget, seconds=10.0, interval=2.0, clock=None, **hooks):
    return Watch(Endpoint(target.url, 1.0), clock or FakeClock(), **hooks).run(seconds, interval)


def test_a_watch_reads_pages_and_records_to_the_end_of_the_window():
    seen: list[Entry] = []
    progress: list[float] = []
    with FakeEngine(make_steps(200)).serving() as target:
        entries = run(target, on_entry=seen.append, on_progress=progress.append)
    assert kinds(entries) == ["exposition"] + ["exposition", "steps"] * 5
    assert seen == entries
    assert progress == [2, 4, 6, 8, 10]
    assert target.asked[1] == f"/debug/steps?since={2**62}", "the window's first step is found, not read"
    assert [path for path in target.asked if "since" in path][1:] == [
        f"/debug/steps?since={n}" for n in (20, 40, 60, 80, 100)
    ]


def test_scrapes_do_not_drift_and_are_not_made_up_for():
    """A scrape that takes 0.5 s delays no later one; one that takes 5 s costs the scrapes it covered, without a burst."""
    clock = FakeClock()
    took = iter([0, 0.5, 0.5, 5.0] + [0] * 9)

    def slow_page():
        clock.now += next(took)
        return Engine().page()

    with serving(slow_page) as target:
        run(target, seconds=12, interval=2, clock=clock)
    starts, now = [], 0.0
    for slept, spent in zip(clock.slept, [0.5, 0.5, 5.0] + [0] * 9, strict=False):
        now += slept
        starts.append(now)
        now += spent
    assert starts == [2, 4, 6, 11, 12]


def test_a_target_that_dies_is_gone():
    clock = FakeClock()
    with FakeEngine(make_steps(200)).serving() as target:
        clock.at(5, target.stop)
        entries = run(target, seconds=60, clock=clock)
    assert kinds(entries)[-4:] == ["unreachable"] * GONE_AFTER_FAILURES + ["gone"]
    assert clock.now == 10, "the watch ends when it is sure, not with the window"
    assert entries[-1].body.startswith(
        "the target answered at the start of the window and is gone now: http://127.0.0.1"
    )
    assert "refused" in entries[-1].body


def test_a_target_that_dies_at_the_very_end_is_still_found_out():
    clock = FakeClock()
    with FakeEngine(make_steps(200)).serving() as target:
        clock.at(10, target.stop)
        entries = run(target, seconds=10, clock=clock)
    assert kinds(entries)[-1] == "gone"
    assert clock.now == 14


def test_one_failed_scrape_is_an_event_and_the_watch_goes_on():
    clock, engine = FakeClock(), FakeEngine(make_steps(200))
    with engine.serving() as target:
        good = target.metrics
        clock.at(4, lambda: setattr(target, "metrics", lambda: raw("500 No", "busy")))
        clock.at(6, lambda: setattr(target, "metrics", good))
        entries = run(target, clock=clock)
    assert kinds(entries).count("error_answer") == 1
    assert "gone" not in kinds(entries)
    assert kinds(entries)[-1] == "steps"
    assert "HTTP 500 (busy)" in next(entry.body for entry in entries if entry.event)


def test_a_target_that_keeps_answering_with_errors_is_in_trouble_and_not_gone():
    """Something answers: that is no reason to call the process dead and to advise a restart."""
    clock, engine = FakeClock(), FakeEngine(make_steps(200))
    with engine.serving() as target:
        clock.at(4, lambda: setattr(target, "metrics", lambda: raw("503 No", "busy")))
        entries = run(target, clock=clock)
    assert kinds(entries).count("error_answer") == 4
    assert "gone" not in kinds(entries)


@pytest.mark.parametrize("answer", ["<html>proxy error</html>", "", "other_metric 1\n"])
def test_an_answer_that_is_no_page_any_more_is_an_event_not_an_exposition(answer):
    """A proxy's error page with status 200, or an empty one, does not end the diagnosis nor count as a scrape."""
    clock = FakeClock()
    with FakeEngine(make_steps(200)).serving() as target:
        good = target.metrics
        clock.at(4, lambda: setattr(target, "metrics", lambda: answer))
        clock.at(6, lambda: setattr(target, "metrics", good))
        entries = run(target, clock=clock)
    assert kinds(entries).count("bad_answer") == 1
    assert kinds(entries).count("exposition") == 5


def test_a_restarted_target_is_read_from_its_first_step():
    """Its count has passed the old one already: without the engine's id, steps 0 to 39 would be missed."""
    clock, old, new = FakeClock(), FakeEngine(make_steps(200)), FakeEngine(make_steps(200), per_scrape=60)
    new.engine.engine_id = "engine-2"
    with old.serving() as target:

        def restart():
            target.metrics, target.steps = new.metrics, new.steps

        clock.at(5, restart)
        entries = run(target, seconds=8, clock=clock)
    assert [path for path in target.asked if "since" in path][1:] == [
        f"/debug/steps?since={n}" for n in (20, 40, 60, 0, 60)
    ]
    assert kinds(entries)[-1] == "steps"
    assert "gone" not in kinds(entries)


def test_step_records_that_fail_are_a_lack_and_no_outage():
    """Pages are read all the while: the target is not gone because one endpoint is, and the next read catches up."""
    clock, engine = FakeClock(), FakeEngine(make_steps(200))
    with engine.serving() as target:
        good = target.steps
        clock.at(2, lambda: setattr(target, "steps", lambda since: raw("500 No")))
        clock.at(9, lambda: setattr(target, "steps", good))
        entries = run(target, clock=clock)
    assert kinds(entries).count("exposition") == 6
    assert kinds(entries).count("no_step_records") == 4
    assert "gone" not in kinds(entries)
    assert entries[-1].body.count("\n") == 101, "a header and all hundred steps"


@pytest.mark.parametrize("answer", [raw("404 Not Found"), "nonsense", '{"stallscope_steps":1}', "[" * 100_000])
def test_a_target_without_step_records_is_watched_without_them(answer):
    engine = FakeEngine([])
    with engine.serving() as target:
        target.steps = lambda since: answer
        entries = run(target)
    assert kinds(entries) == ["exposition", "no_step_records"] + ["exposition"] * 5


def test_a_target_that_cannot_be_read_at_the_start_is_an_error():
    with pytest.raises(TargetError, match="refused"):
        Watch(Endpoint(refused()), FakeClock()).run(10, 1)


def test_the_system_clock_runs():
    clock = SystemClock()
    before = clock.monotonic()
    clock.sleep(0)
    assert clock.monotonic() >= before
    assert clock.unix() > 1.6e9
