"""Traffic of others is read off a target's own counters; what it does not count is not known, never zero."""

import pytest

from probes.recording import Entry
from runbooks.experiments import served as served_module
from runbooks.experiments.client import Stream, Traffic
from runbooks.experiments.served import Served, read_page, served_between, served_since, share_of_others
from tests.builders import Engine, make_steps
from tests.diagnose.fake_target import serving


def traffic(requests: int, tokens_each: int, *, aborted: int = 0) -> Traffic:
    whole = [Stream(0.0, sent=0.0, output_tokens=tokens_each) for _ in range(requests)]
    return Traffic(0.0, [*whole, *(Stream(0.0, sent=0.0, tokens=[0.1] * 5) for _ in range(aborted)), Stream(9.0)], [])


@pytest.mark.parametrize(
    ("served", "share"),
    [
        (Served(12, 200), 0.0),
        (Served(12, 210), 0.0),
        (Served(24, 210), 0.5),
        (Served(12, 840), 0.75),
        (Served(10, 180), 0.0),
        (Served(None, 420), 0.5),
        (Served(None, None), None),
        (Served(0, None), 0.0),
    ],
    ids=["fewer", "ours", "requests", "long streams", "late", "tokens only", "unknown", "nothing"],
)
def test_what_was_not_asked_for_here_is_of_others(served, share):
    """Ten requests of 20 tokens, and two that were aborted after five."""
    assert share_of_others(traffic(10, 20, aborted=2), served) == share


def test_two_pages_say_what_was_served_between_them():
    engine = Engine()
    engine.run(make_steps(50))
    before = Entry(100.0, "exposition", engine.page())
    engine.run(make_steps(50))
    after = Entry(130.0, "exposition", engine.page())
    served = served_between("http://h:1", before, after)
    assert served.tokens is not None and served.tokens > 0
    nothing = Served(None, None)
    assert served_between("http://h:1", before, None) == nothing
    assert served_between("http://h:1", before, before) == nothing
    assert (
        served_between("http://h:1", Entry(1.0, "exposition", "up 1\n"), Entry(2.0, "exposition", "up 1\n")) == nothing
    )


def test_a_target_without_a_page_says_nothing():
    with serving("up 1\n") as target:
        url = target.url
    assert read_page(url) is None


def test_aborted_requests_are_waited_for(monkeypatch):
    """The target books them a step later: until then they would be missed here, and be others' in the next block."""
    finished = iter([5, 5, 5, 8, 9])
    monkeypatch.setattr(served_module, "_SETTLE_SECONDS", 0.0)
    with serving(lambda: f'stallscope_requests_finished_total{{reason="abort"}} {next(finished)}\n') as target:
        before = read_page(target.url)
        served = served_since(target.url, before, 3)
    assert served == Served(3, None)
