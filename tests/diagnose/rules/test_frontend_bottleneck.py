"""Each condition of frontend_bottleneck, from both sides."""

from typing import Any

import pytest

from diagnose.hypotheses.frontend_bottleneck import FrontendBottleneck
from diagnose.signals import Signals
from probes.host_profile import HostProfile, ThreadUse
from probes.stack_patterns import Activity, Role
from tests.builders import make_signals
from tests.diagnose.rules.alone import judged, says

RULE = FrontendBottleneck()
OPEN = "?host"


def thread(role: Role, run: float | None, delay: float | None = None, name: str = "t", **doing: float) -> ThreadUse:
    activities = {Activity[activity.upper()]: share for activity, share in doing.items()}
    return ThreadUse(pid=1, tid=7, name=name, role=role, run_share=run, delay_share=delay, activities=activities)


def frontend(run: float | None, delay: float | None = None, **fields: Any) -> ThreadUse:
    return thread(Role.FRONTEND, run, delay, **fields)


def engine(waiting: float | None) -> ThreadUse:
    """None: its stacks were not sampled."""
    doing: dict[str, Any] = {} if waiting is None else {"waiting": waiting, "forward": 1 - waiting}
    return thread(Role.ENGINE, 0.5, **doing)


def host(*threads: ThreadUse) -> Signals:
    return make_signals(host=HostProfile(pid=1, seconds=20.0, threads=threads))


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (make_signals(), "undetermined ?what"),
        (host(), "undetermined ?what"),
        (host(engine(0.5)), "undetermined ?what"),
        (host(frontend(None, 0.9), engine(0.5)), "undetermined ?what"),
        (host(frontend(0.0), engine(0.5)), "refuted -0"),
        (host(frontend(0.8), engine(0.3)), "supported +0.8 +0.3"),
        (host(frontend(0.5, 0.3), engine(0.3)), "supported +0.8 +0.3"),
        (host(frontend(0.79), engine(0.3)), f"undetermined -0.79 +0.3 {OPEN}"),
        (host(frontend(0.8), engine(0.29)), f"undetermined +0.8 -0.29 {OPEN}"),
        (host(frontend(0.79), engine(0.29)), f"undetermined -0.79 -0.29 {OPEN}"),
        (host(frontend(0.8), engine(0.1)), f"undetermined +0.8 -0.1 {OPEN}"),
        (host(frontend(0.8), engine(0.09)), "refuted +0.8 -0.09"),
        (host(frontend(0.5), engine(0.3)), f"undetermined -0.5 +0.3 {OPEN}"),
        (host(frontend(0.49), engine(0.3)), "refuted -0.49"),
        (host(frontend(0.8)), "undetermined +0.8 ?stacks"),
        (host(frontend(0.8), engine(None)), "undetermined +0.8 ?stacks"),
        (host(frontend(0.1), frontend(0.8), frontend(0.2), engine(0.3)), "supported +0.8 +0.3"),
        (host(frontend(0.8), engine(0.3), engine(0.5)), "supported +0.8 +0.3"),
        (host(frontend(0.8), engine(0.09), engine(0.5)), "refuted +0.8 -0.09"),
        (host(frontend(0.8), engine(None), engine(0.5)), "supported +0.8 +0.5"),
    ],
)
def test_a_busy_frontend_and_an_engine_that_waits(signals, expected):
    assert says(RULE, signals) == expected


@pytest.mark.parametrize(
    ("busiest", "told"),
    [
        (
            frontend(0.9, tokenising=0.3, serialising=0.4, detokenising=0.01, scheduling=0.009),
            "t, is on a core or waits for one 90 % of the time: serialising 40 %, tokenising 30 %, detokenising 1 %",
        ),
        (
            frontend(0.9, tokenising=0.3, serialising=0.4, detokenising=0.1, scheduling=0.02),
            "t, is on a core or waits for one 90 % of the time: serialising 40 %, tokenising 30 %, detokenising 10 %",
        ),
        (frontend(0.9, waiting=0.5), "t, is on a core or waits for one 90 % of the time"),
        (frontend(0.9, name=""), "7, is on a core or waits for one 90 % of the time"),
    ],
)
def test_the_busiest_thread_is_named_with_what_it_does(busiest, told):
    text = judged(RULE, host(busiest, engine(0.3))).evidence[0].text
    assert text == f"the busiest frontend thread, {told}"


def test_stacks_without_a_known_frontend_are_called_so():
    assert "no sampled stack is of a frontend" in judged(RULE, host(engine(0.5))).missing[0].measurement
    assert judged(RULE, make_signals()).missing[0].measurement == "what the server's threads do"
