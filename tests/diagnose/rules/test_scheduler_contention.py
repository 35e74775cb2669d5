"""Each condition of scheduler_contention, from both sides."""

from dataclasses import replace
from typing import Any

import pytest

from diagnose.hypotheses.scheduler_contention import SchedulerContention
from diagnose.kernel_profile import KernelProfile
from diagnose.observation import SPIN_EVENT, STACK_EVENT, Event
from diagnose.signals import Signals
from probes.host_profile import HostProfile, ThreadUse
from probes.stack_patterns import Activity, Role
from tests.builders import make_signals, make_steps
from tests.diagnose.rules.alone import events, excess, judged, says

RULE = SchedulerContention()
STEPS = tuple(make_steps(12))
OPEN = "?lock"


@pytest.mark.parametrize(
    ("share", "part", "expected"),
    [
        (0.3, 0.0, "supported +0.3 -0 =0"),
        (0.2999, 0.5, "supported -0.2999 +0.5 =0.5"),
        (0.2999, 0.4375, f"undetermined -0.2999 -0.4375 {OPEN} =0.4375"),
        (0.15, 0.4375, f"undetermined -0.15 -0.4375 {OPEN} =0.4375"),
        (0.15, 0.0, f"undetermined -0.15 -0 {OPEN} =0"),
        (0.1499, 0.4375, "refuted -0.1499 -0.4375 =0.4375"),
        (0.01, 0.0, "refuted -0.01 -0 =0"),
        (0.01, 0.5, "supported -0.01 +0.5 =0.5"),
        (0.3, None, "supported +0.3 -0 =0"),
    ],
)
def test_its_share_of_the_gaps_and_of_the_excess(share, part, expected):
    given = None if part is None else excess(schedule=part, prefill=0.25)
    assert says(RULE, make_signals(steps=STEPS), host_share=share, excess=given, itl_moved=True) == expected


def test_all_of_the_hosts_parts_count():
    given = excess(schedule=0.1, prepare=0.1, postprocess=0.1, idle=0.1, lock_wait=0.1)
    found = says(RULE, make_signals(steps=STEPS), host_share=0.2, excess=given, itl_moved=True)
    assert found == "supported -0.2 +0.5 =0.5"


@pytest.mark.parametrize(
    ("share", "baseline", "moved", "expected"),
    [
        (0.3, False, False, "supported +0.3 =0.25"),
        (0.3, False, None, "supported +0.3 =0.25"),
        (0.2999, False, False, "refuted -0.2999 =0.25"),
        (0.3, True, False, "refuted +0.3 - =0.25"),
        (0.2999, True, False, "refuted -0.2999 =0.25"),
        (0.3, True, True, "supported +0.3 -0.25 =0.25"),
    ],
)
def test_a_host_that_was_always_late_is_a_cost_and_no_change(share, baseline, moved, expected):
    before = make_signals() if baseline else None
    given = {"host_share": share, "excess": excess(idle=0.25), "itl_moved": moved}
    assert says(RULE, make_signals(steps=STEPS), before, **given) == expected


def test_parts_that_the_steps_do_not_show_are_not_named():
    whole = judged(RULE, make_signals(steps=STEPS), host_share=0.1).evidence[0].text
    assert [name for name in ("schedule", "prepare", "postprocess", "idle", "lock_wait") if f"{name} " in whole] == [
        "schedule",
        "prepare",
        "postprocess",
        "idle",
        "lock_wait",
    ]
    bare = [r._replace(schedule_ns=None, prepare_ns=None, lock_wait_ns=None, postprocess_ns=None) for r in STEPS]
    last = bare[-1]._replace(schedule_ns=5)
    text = judged(RULE, make_signals(steps=(*bare[:-1], last)), host_share=0.1).evidence[0].text
    assert "schedule " in text
    assert "idle " in text
    assert "prepare" not in text
    assert "lock_wait" not in text


@pytest.mark.parametrize(("late", "sign"), [(0.5, " +0.5"), (0.4999, " .0.4999"), (0.0, " .0"), (None, "")])
def test_a_trace_shows_what_the_device_idled_for(monkeypatch, late, sign):
    monkeypatch.setattr(
        "diagnose.hypotheses.scheduler_contention.late_launch_share",
        lambda profile: late if profile.name == "rank 0" else 0.75,
    )
    signals = make_signals(steps=STEPS, profiles=(KernelProfile("rank 0"), KernelProfile("rank 1")))
    found = says(RULE, signals, host_share=0.3, excess=None, itl_moved=False)
    assert found == f"supported +0.3{sign} =0"


def spent(
    *, delay: float | None = None, gil: float | None = None, role: Role = Role.ENGINE, **doing: float
) -> HostProfile:
    """Of one thread."""
    activities = {Activity[name.upper()]: share for name, share in doing.items()}
    thread = ThreadUse(pid=1, tid=1, name="loop", role=role, delay_share=delay, gil_share=gil, activities=activities)
    return HostProfile(pid=1, seconds=20.0, threads=(thread,))


NONE = "?host"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (None, f"undetermined {NONE}"),
        (spent(), f"undetermined {NONE}"),
        (spent(scheduling=0.3), "supported +0.3"),
        (spent(scheduling=0.2, serialising=0.04, tokenising=0.03, detokenising=0.03), "supported +0.3"),
        (spent(scheduling=0.2999), f"undetermined -0.2999 {NONE}"),
        (spent(scheduling=0.1), f"undetermined -0.1 {NONE}"),
        (spent(scheduling=0.0999), "refuted -0.0999"),
        (spent(scheduling=0.1, forward=0.9), f"undetermined -0.1 {NONE}"),
        (spent(scheduling=0.5, role=Role.FRONTEND), f"undetermined {NONE}"),
        (spent(delay=0.1), f"undetermined +0.1 {NONE}"),
        (spent(delay=0.0999), f"undetermined .0.0999 {NONE}"),
        (spent(gil=0.5), f"undetermined .0.5 {NONE}"),
        (spent(gil=0.0), f"undetermined .0 {NONE}"),
        (spent(delay=0.1, gil=0.5, scheduling=0.3), "supported +0.1 .0.5 +0.3"),
    ],
)
def test_the_threads_of_the_server(host, expected):
    assert says(RULE, make_signals(host=host)) == expected


def test_of_several_loops_the_one_with_most_host_work_counts():
    one, other = spent(scheduling=0.3), spent(scheduling=0.1, serialising=0.05)
    both = replace(one, threads=(*one.threads, *other.threads))
    found = judged(RULE, make_signals(host=both)).evidence[0]
    assert found.value == pytest.approx(0.3)
    assert "scheduling 30 %, serialising 5 %" in found.text
    without = replace(one, threads=(*one.threads, *spent().threads))
    assert says(RULE, make_signals(host=without)) == "supported +0.3"


def test_threads_are_named_by_what_they_hold():
    engine = judged(RULE, make_signals(host=spent(delay=0.2))).evidence[0].text
    other = judged(RULE, make_signals(host=spent(delay=0.2, role=Role.OTHER))).evidence[0].text
    assert engine.startswith("the engine loop was ready")
    assert other.startswith("a thread of the server was ready")
    holders = [ThreadUse(pid=1, tid=i, name="" if i == 3 else f"t{i}", gil_share=i / 10) for i in range(5)]
    text = judged(RULE, make_signals(host=HostProfile(pid=1, seconds=20.0, threads=tuple(holders)))).evidence[0].text
    assert text == "the interpreter lock was held 100 % of the time: t4 40 %, 3 30 %, t2 20 %"


def test_stacks_that_were_pasted_are_told():
    told = events(*[STACK_EVENT] * 5, SPIN_EVENT, "leak")
    assert says(RULE, events=told) == f"undetermined - . . . . {NONE}"
    assert [e.text for e in judged(RULE, events=(Event(0, STACK_EVENT, "one"),)).evidence] == ["one"]


def timed(schedule: float | None = None, lock: float | None = None, *, host: Any = None, **sums: float) -> Signals:
    """Sums of seconds over sixteen steps each."""
    named = {"schedule": schedule, "lock_wait": lock, **sums}
    histograms = {name: {s / 16: 16} if s else {} for name, s in named.items() if s is not None}
    return make_signals(histograms=histograms, host=host)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (timed(0.3, step_decode=1), "supported +0.3 =0.3"),
        (timed(0.25, 0.0625, step_decode=1), "supported +0.3125 =0.3125"),
        (timed(0.2999, step_decode=1), "undetermined -0.2999 ?step =0.2999"),
        (timed(0.125, 0.125, step_decode=1), "undetermined -0.25 ?step =0.25"),
        (timed(0.1, step_decode=1), "undetermined -0.1 ?step =0.1"),
        (timed(0.0999, step_decode=1), "refuted -0.0999 =0.0999"),
        (timed(0.5, step_decode=1, step_mixed=0.5, step_prefill=0.5), "undetermined -0.25 ?step =0.25"),
        (timed(0.5), f"undetermined {NONE}"),
        (timed(0.5, step_decode=0), f"undetermined {NONE}"),
        (timed(None, 0.5, step_decode=1), f"undetermined {NONE}"),
        (timed(0, step_decode=1), "refuted -0 =0"),
        # Steps beside their forward passes.
        (timed(step_decode=1, forward_decode=0.6875), "supported +0.3125 =0.3125"),
        (timed(step_decode=1, forward_decode=0.7001), f"undetermined -0.2999 {NONE}"),
        (timed(step_decode=1, forward_decode=0.75), f"undetermined -0.25 {NONE}"),
        (timed(step_decode=1, forward_decode=0.9001), "refuted -0.0999 =0.0999"),
        (timed(step_decode=1, forward_decode=0.875), f"undetermined -0.125 {NONE}"),
        (timed(step_decode=1, forward_decode=2), "refuted -0 =0"),
        (timed(step_decode=1, forward_decode=0.9375, step_mixed=1, forward_mixed=0.4375), "supported +0.3125 =0.3125"),
        (timed(step_mixed=1, forward_mixed=0.5), "supported +0.5 =0.5"),
        (timed(step_decode=1, forward_mixed=0.5), f"undetermined {NONE}"),
        (timed(step_decode=0, forward_decode=0), f"undetermined {NONE}"),
        (timed(step_decode=1, forward_decode=0.75, host=spent(scheduling=0.3)), "supported +0.3 -0.25"),
        (timed(step_decode=1, forward_decode=0.75, host=spent(scheduling=0.05)), "refuted -0.05 -0.25"),
    ],
)
def test_histograms(signals, expected):
    assert says(RULE, signals) == expected


@pytest.mark.parametrize("kind", ["decode", "mixed"])
def test_what_is_no_forward_pass_is_told_by_the_kind_of_its_steps(kind):
    signals = timed(**{f"step_{kind}": 1.6, f"forward_{kind}": 0.8})
    assert judged(RULE, signals).evidence[0].text == (
        f"50 % of the steps' time is not their forward pass ({kind} 50 ms each)"
    )


def test_two_kinds_of_steps_are_told_apart():
    signals = timed(step_decode=1.6, forward_decode=0.8, step_mixed=3.2, forward_mixed=3.2)
    assert "(decode 50 ms each, mixed 0 ms each)" in judged(RULE, signals).evidence[0].text


@pytest.mark.parametrize(
    ("host", "lock", "expected"),
    [
        (0.1875, 0.125, "supported +0.3125 =0.3125"),
        (0.125, 0.125, "undetermined -0.25 ?step =0.25"),
        (3.0, 3.0, "supported +1 =1"),
        (0.01, 0.01, "refuted -0.02 =0.02"),
        (0.01, None, "supported +0.5 =0.5"),
        (None, 0.01, "supported +0.5 =0.5"),
    ],
)
def test_the_engines_own_sums_say_more_than_scheduling_and_lock(host, lock, expected):
    sums = {"stall_host_seconds": host, "stall_lock_seconds": lock}
    signals = timed(0.5, step_decode=1)
    signals.counters = make_signals(counters={name: s for name, s in sums.items() if s is not None}).counters
    assert says(RULE, signals) == expected
