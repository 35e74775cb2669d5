"""Each condition of hard_failure, from both sides."""

from typing import Any

import pytest

from diagnose.hypotheses.hard_failure import HardFailure
from diagnose.observation import Event
from diagnose.signals import Signals
from tests.builders import make_signals
from tests.diagnose.rules.alone import events, judged, says

RULE = HardFailure()


def counted(total: float | None = 0, **fields: Any) -> Signals:
    return make_signals(counters={} if total is None else {"failures": total}, **fields)


@pytest.mark.parametrize(
    ("signals", "told", "expected"),
    [
        (counted(), (), "refuted -"),
        (counted(None), (), "undetermined ?engine"),
        (counted(num_scrapes=0), (), "undetermined - ?answer"),
        (counted(None, num_scrapes=0), (), "undetermined ?engine"),
        (counted(num_scrapes=1), (), "refuted -"),
        (counted(1, failures={"oom": 1}), (), "supported +1"),
        (counted(3, failures={"oom": 1, "aborted": 2, "none": 0}), (), "supported +1 +2"),
        (counted(0, failures={"oom": 0}), (), "refuted -"),
        (counted(), events("gone"), "supported +"),
        (counted(), events("engine_dead"), "supported + ."),
        (counted(), events("out_of_memory"), "refuted . -"),
        (counted(), events("heartbeat"), "refuted -"),
        (counted(), events("unreachable"), "undetermined .1 ?scrapes"),
        (counted(), events("bad_answer", "error_answer"), "undetermined .2 ?scrapes"),
        (counted(), events("unreachable", "gone"), "supported +"),
        (counted(num_scrapes=0), events("unreachable"), "undetermined .1 - ?scrapes ?answer"),
        (counted(restarted=True, running_before_restart=1), (), "supported +1"),
        (counted(restarted=True, running_before_restart=0), (), "refuted . -"),
        (counted(restarted=False, running_before_restart=1), (), "refuted -"),
    ],
)
def test_facts(signals, told, expected):
    assert says(RULE, signals, events=told) == expected


def test_a_log_tells_each_kind_once_in_the_order_of_time():
    told = (
        Event(3, "leak", "third"),
        Event(2, "preempted", "second"),
        Event(1, "device_error", "first"),
        Event(4, "preempted", "fourth"),
        Event(0, "stack", "no matter"),
    )
    found = [item.text for item in judged(RULE, counted(), events=told).evidence]
    assert found[:3] == ["first device_error: first", "then preempted: second", "then leak: third"]
    assert len(found) == 4


def timeout(rank: int | None, number: int = 5, ran: int | None = None) -> Event:
    at = "" if rank is None else f"[Rank {rank}] Watchdog caught collective operation timeout: SeqNum={number}"
    return Event(0, "collective_timeout", at + ("" if ran is None else f" ran for {ran} milliseconds"))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([timeout(0), timeout(1)], "refuted . -"),
        ([timeout(0, 5), timeout(1, 6)], "refuted . .0 -"),
        ([timeout(0, 6), timeout(1, 5), timeout(2, 7)], "refuted . .1 -"),
        ([timeout(3, 5)], "refuted . -"),
        ([timeout(None)], "refuted . -"),
        ([timeout(None, ran=1000)], "refuted . .1 -"),
        ([timeout(0, 6, ran=1000), timeout(1, 5, ran=3000)], "refuted . .3 .1 -"),
    ],
)
def test_of_the_ranks_that_time_out_the_one_with_the_lowest_number_is_behind(told, expected):
    assert says(RULE, counted(), events=tuple(told)) == expected


def test_the_ranks_are_named_with_their_numbers_and_the_longest_wait():
    told = (timeout(0, 6, ran=1000), timeout(1, 5, ran=3000), timeout(2, 7, ran=2000))
    texts = [item.text for item in judged(RULE, counted(), events=told).evidence]
    assert texts[1].startswith("it began 3.00 s before the message")
    assert texts[2].startswith("rank 1 is behind, at collective 5 while others are at 7")


def test_collectives_of_other_messages_are_not_ranked():
    told = (Event(0, "leak", timeout(0, 5, ran=1000).detail), Event(1, "leak", timeout(1, 6).detail))
    assert says(RULE, counted(), events=told) == "refuted . -"


@pytest.mark.parametrize(
    ("slo", "gaps", "expected"),
    [
        # 0.045 s lie in the bucket (30, 50] ms
        ("itl_p99=29ms", {0.045: 100}, "supported +0.03"),
        ("itl_p99=30ms", {0.045: 100}, "supported +0.03"),
        ("itl_p99=30ms", {0.045: 99}, "undetermined ?samples"),
        ("itl_p95=30ms", {0.045: 20}, "supported +0.03"),
        ("itl_p99=31ms", {0.045: 100}, "undetermined ?finer"),
        ("itl_p99=49ms", {0.045: 100}, "undetermined ?finer"),
        ("itl_p99=50ms", {0.045: 100}, "refuted -"),
        ("itl_p99=50ms", {}, "undetermined ?samples"),
        ("ttft_p99=50ms,itl_p99=29ms", {0.045: 100}, "supported +0.03 ?samples"),
    ],
)
def test_objectives(slo, gaps, expected):
    signals = counted(histograms={"inter_token_latency": gaps})
    assert says(RULE, signals, slo=slo) == expected


def test_a_breach_of_few_samples_names_how_many_it_takes():
    signals = counted(histograms={"inter_token_latency": {0.045: 99}})
    asked = judged(RULE, signals, slo="itl_p99=30ms").missing[0]
    assert asked.measurement == "at least 100 samples for itl_p99=30ms (found 99)"
