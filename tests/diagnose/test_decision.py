"""What to do next: the lesson's decision rule, and which cause leads."""

from dataclasses import replace

import pytest

from diagnose.case import Case
from diagnose.decision import DecisionKind, Finding, decide
from diagnose.diagnosis import choose_primary, diagnose
from diagnose.errors import SourceError
from diagnose.hypotheses.base import Hypothesis
from diagnose.hypotheses.registry import HYPOTHESES
from diagnose.observation import Event
from diagnose.signals import Signals
from diagnose.slo import parse_slo
from diagnose.units import binary_bytes, parse_duration, percent, printable, seconds
from diagnose.verdict import Argument, Judgement, Verdict
from probes.records import DeviceTime
from tests.builders import Engine, Machine, make_signals, make_steps, watch, with_prefill
from tests.diagnose import cases
from tests.diagnose.cases import look, texts, verdict
from tests.requirements import covers


def found(
    name: str, verdict: Verdict, share: float | None = None, *, benign: bool = False, latency: bool = True
) -> Finding:
    return Finding(name, benign, latency, Judgement(verdict, share_of_excess=share))


def test_nothing_wrong_says_what_was_looked_at():
    diagnosis = look(cases.quiet(), cases.quiet())
    assert diagnosis.exit_code == 0
    assert diagnosis.decision.kind == "none"
    assert "looked at and refuted" in diagnosis.decision.summary
    assert "kv_exhaustion" in diagnosis.decision.summary


@pytest.mark.parametrize(
    ("situation", "knob"),
    [
        (lambda: look(cases.interference()), "compare token budget 2048 with 512"),
        (lambda: look(cases.long_contexts(), cases.short_contexts()), "decode batch a quarter smaller"),
        (lambda: look(cases.slow_host()), "half the concurrent requests"),
        (lambda: look(cases.exhaustion()), "max sequences lowered"),
        (lambda: look(cases.queue()), "one more replica"),
    ],
)
def test_a_supported_cause_asks_for_one_comparison_of_one_knob(situation, knob):
    diagnosis = situation()
    assert diagnosis.exit_code == 1
    assert diagnosis.decision.kind == "experiment"
    assert "supported, not confirmed" in diagnosis.decision.summary
    assert knob in diagnosis.decision.summary
    assert any(step.command.startswith(f"stallscope record {cases.TARGET} ") for step in diagnosis.decision.steps)
    assert diagnosis.decision.trade


def test_a_dead_target_is_contained_and_its_traces_kept():
    diagnosis = look(cases.interference(), events=(Event(0, "gone", "it is gone"),))
    assert diagnosis.primary == "hard_failure", "whatever else is supported"
    text = " ".join(map(str, diagnosis.decision.steps))
    assert "out of the load balancer" in text
    assert "before the restart" in text
    assert "verify: curl" in text
    assert "undo:" in text


@covers("S5.4", "S5.6")
def test_the_protocol_says_what_is_done_and_how_to_get_the_rest():
    rich = {m.name: m for m in look(cases.interference()).protocol}
    assert [m.done for m in rich.values()] == [True, True, True, False], "one window is no controlled comparison"
    assert "does not include reclaimable" in rich["block buckets"].found
    assert "mixed steps recorded" in rich["step durations by kind"].found
    timed = watch(make_steps(40, device_ns=DeviceTime(gemm=3, attention_decode=1)))
    assert "device time: gemm 75 %, attention_decode 25 %" in look(timed).protocol[1].found
    poor = diagnose("t", make_signals()).protocol
    assert not any(m.done for m in poor)
    assert all(m.command for m in poor)
    histograms = diagnose("t", make_signals(histograms={"step_decode": {0.01: 5}, "schedule": {0.001: 5}})).protocol
    assert "only step duration histograms (decode)" in histograms[1].found
    assert histograms[2].done


class Confirmed(Hypothesis):
    """Stands for a controlled comparison."""

    name = "prefill_interference"

    def judge(self, case: Case, argument: Argument) -> Judgement:
        return argument.conclude(Verdict.CONFIRMED, 0.9)


def test_a_confirmed_cause_asks_for_a_change():
    others = [hypothesis for hypothesis in HYPOTHESES if hypothesis.name != "prefill_interference"]
    case = look(cases.interference()).case
    diagnosis = diagnose("t", case.signals, hypotheses=[Confirmed(), *others])
    assert diagnosis.decision.kind == "change"
    assert diagnosis.exit_code == 1


def test_the_largest_share_of_the_excess_leads():
    case = look(cases.interference()).case
    excess = case.excess()
    findings = [
        found("a", Verdict.SUPPORTED, 0.3),
        found("b", Verdict.SUPPORTED, 0.6),
        found("c", Verdict.REFUTED, 0.9),
    ]
    assert choose_primary(findings, case, excess) == "b"
    assert choose_primary([found("a", Verdict.SUPPORTED, 0.05)], case, excess) is None, "a twentieth explains nothing"
    assert choose_primary([found("a", Verdict.SUPPORTED)], case, excess) is None
    assert choose_primary([found("a", Verdict.UNDETERMINED, 0.9)], case, excess) is None


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({"prefill_interference": 0.13, "kv_exhaustion": None, "preemption_storm": None}, "kv_exhaustion"),
        ({"prefill_interference": 0.6, "kv_exhaustion": None}, "prefill_interference"),
        ({"prefill_interference": 0.13}, "prefill_interference"),
        ({"prefill_interference": 0.13, "kv_exhaustion": None, "transfer_stall": None}, None),
        ({"kv_exhaustion": None, "queue_overload": None}, "kv_exhaustion"),
        ({"sequence_cap": None, "queue_overload": None}, "sequence_cap"),
        ({"kv_exhaustion": None, "transfer_stall": None}, None),
    ],
)
def test_without_an_account_a_small_share_does_not_beat_what_was_not_measured(shares, expected):
    case = diagnose("t", make_signals()).case
    assert case.excess() is None
    findings = [found(name, Verdict.SUPPORTED, share) for name, share in shares.items()]
    assert choose_primary(findings, case, None) == expected


def test_a_benign_cause_leads_only_when_it_stands_alone():
    benign = found("expected_reservation", Verdict.SUPPORTED, benign=True, latency=False)
    calm, stalled = look(cases.quiet()).case, look(cases.interference()).case
    assert choose_primary([benign], calm, calm.excess()) == "expected_reservation"
    assert choose_primary([benign], stalled, stalled.excess()) is None, "it explains no stall"
    breach = found("hard_failure", Verdict.SUPPORTED, latency=False)
    assert choose_primary([benign, breach], calm, calm.excess()) == "hard_failure"


def test_an_incomplete_account_names_no_primary():
    """A third of the stalls' time is booked nowhere: whatever is supported may be the smaller half of the truth."""
    unbooked = Machine(unbooked_us=12_000)
    diagnosis = look(watch(make_steps(300, with_prefill(5, 1000), unbooked)))
    assert diagnosis.primary is None
    assert any("the account is incomplete" in warning for warning in diagnosis.warnings)


def test_what_lies_outside_of_an_incomplete_account_is_named_where_it_has_most():
    """The front end delays each token by many gaps: what the engine's own account cannot explain is less."""
    unbooked = make_steps(300, with_prefill(5, 1000), Machine(unbooked_us=12_000))
    assert look(watch(unbooked, engine=Engine(front_end_seconds=0.4))).primary == "frontend_bottleneck"
    interfered = make_steps(300, with_prefill(5, 1500))
    little = look(watch(interfered, engine=Engine(front_end_seconds=0.001)))
    assert little.primary == "prefill_interference"


def test_a_front_end_that_adds_the_smaller_part_does_not_lead():
    case = look(cases.interference()).case
    findings = [
        found("frontend_bottleneck", Verdict.SUPPORTED, 0.4),
        found("prefill_interference", Verdict.SUPPORTED, 0.9),
    ]
    assert choose_primary(findings, case, case.excess()) == "prefill_interference"
    findings[0] = found("frontend_bottleneck", Verdict.SUPPORTED, 0.5)
    assert choose_primary(findings, case, case.excess()) == "frontend_bottleneck"


def test_on_a_contended_machine_a_late_front_end_may_only_lack_a_core():
    steps = make_steps(300, machine=Machine(slowdown=1.5))
    diagnosis = look(watch(steps, engine=Engine(front_end_seconds=0.4)))
    assert verdict(diagnosis, "frontend_bottleneck") == "undetermined"
    assert "a front end without one is as late" in texts(diagnosis, "frontend_bottleneck")
    assert "--pid PID" in texts(diagnosis, "frontend_bottleneck")


def test_time_off_the_core_is_said():
    disturbed = with_prefill(5, 1000)
    steps = make_steps(300, lambda i: replace(disturbed(i), disturbed_us=60_000 if i % 20 == 4 else 0))
    diagnosis = look(watch(steps))
    assert any("the engine's thread had no core" in warning for warning in diagnosis.warnings)


@pytest.mark.parametrize("slowdown", [1.0, 2.0])
def test_a_contended_machine_is_said_and_changes_no_verdict(slowdown):
    steps = make_steps(300, with_prefill(5, 1500), Machine(slowdown=slowdown, noise=0.05))
    diagnosis = look(watch(steps))
    assert diagnosis.primary == "prefill_interference"
    assert any("contended" in warning for warning in diagnosis.warnings) == (slowdown > 1)


def test_lost_records_and_overlapping_parts_are_said():
    steps = make_steps(100, with_prefill(5, 1500), schedule_ns=100_000_000)
    observation = watch(steps)
    observation.steps_lost = 7
    warnings = " ".join(look(observation).warnings)
    assert "7 step records were overwritten" in warnings
    assert "more time than went by" in warnings
    assert "only" not in " ".join(look(cases.interference()).warnings)


def test_few_gaps_are_said():
    assert any("p99 rests on 1 of them" in w for w in look(watch(make_steps(20))).warnings)


def test_a_missing_window_length_is_said():
    diagnosis = diagnose("t", make_signals(length_seconds=None, counters={"tokens_decode": 5}))
    assert any("length is unknown" in warning for warning in diagnosis.warnings)


def test_decide_experiments_without_a_primary():
    case = look(cases.interference()).case
    decision = decide(case, [found("kv_exhaustion", Verdict.SUPPORTED)], None, ())
    assert decision.kind is DecisionKind.EXPERIMENT
    assert "kv_exhaustion" in decision.summary


def test_everything_measured_and_still_open_asks_for_a_longer_window():
    case = look(cases.interference()).case
    decision = decide(case, [found("a", Verdict.UNDETERMINED)], None, ())
    assert decision.kind is DecisionKind.MEASURE
    assert [step.command for step in decision.steps] == [f"stallscope diagnose {cases.TARGET} --window 120s"]


def test_files_get_commands_for_the_live_server():
    """What a file's diagnosis lacks is measured on the server, whose address it does not know: never on the file."""
    diagnosis = diagnose("incident.prom", make_signals(counters={"tokens_prefill": 5}), is_live=False)
    assert "stallscope record http://HOST:PORT" in cases.texts(diagnosis, "prefill_interference")
    assert verdict(diagnosis, "prefill_interference") == "undetermined"
    commands = [m.command for f in diagnosis.findings for m in f.judgement.missing]
    commands += [*map(str, diagnosis.decision.steps), *(m.command for m in diagnosis.protocol)]
    assert not [command for command in commands if "incident.prom" in command]


# ---- what people type and read


def test_objectives():
    first, second = parse_slo("itl_p99=200ms, ttft_p99.9=2s")
    assert (first.metric, first.quantile, first.limit_seconds) == ("inter_token_latency", 0.99, 0.2)
    assert second.quantile == pytest.approx(0.999)
    for wrong in (
        "",
        ",",
        "itl=200ms",
        "itl_p0=1s",
        "itl_p100=1s",
        "itl_p99",
        "itl_p99=fast",
        "itl_p99=200",
        "foo_p99=1s",
    ):
        with pytest.raises(SourceError, match=r"itl_p99=200ms|not a duration"):
            parse_slo(wrong)


@pytest.mark.parametrize(
    ("text", "value"), [("20s", 20), ("200ms", 0.2), ("1.5m", 90), ("2min", 120), ("1h", 3600), ("5us", 5e-6)]
)
def test_durations_in(text, value):
    assert parse_duration(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "20", "s", "-1s", "1e3s", "nan s", "20 seconds"])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="is not a duration; write 20s"):
        parse_duration(text)


def test_figures_out():
    assert [seconds(v) for v in (0, 5e-5, 0.0384, 0.0096, 0.5, 2.154, 12.34, 3600)] == [
        "0 ms", "50 us", "38 ms", "9.6 ms", "500 ms", "2.15 s", "12.3 s", "60 min",
    ]  # fmt: skip
    assert [binary_bytes(v) for v in (5, 2048, 3 << 20, 1.9 * (1 << 30), 5 << 40)] == [
        "5 B", "2 KiB", "3 MiB", "1.90 GiB", "5.00 TiB",
    ]  # fmt: skip
    assert [percent(v) for v in (0, 0.004, 0.5, 1)] == ["0 %", "0.4 %", "50 %", "100 %"]
    assert printable("a\x1b[31mb\nc é") == "a?[31mb?c é"


def served(gap: float, wait: float | None) -> Signals:
    """A hundred requests with a hundred tokens each."""
    waits = {} if wait is None else {"queue_time": {wait: 100}}
    return make_signals(counters={"tokens_decode": 10_000}, histograms={"inter_token_latency": {gap: 9_900}, **waits})


@pytest.mark.parametrize(
    ("before", "now", "leads"),
    [
        (served(0.01, 0.0), served(0.02, 0.98), False),  # 0.98 s in the queue, 1 s by slower tokens
        (served(0.01, 0.0), served(0.02, 1.02), True),
        (served(0.01, 1.0), served(0.02, 1.98), False),
        (served(0.01, 1.0), served(0.02, 2.02), True),
        (served(0.01, 0.0), served(0.01, 0.09), False),  # nobody feels it
        (served(0.01, 0.0), served(0.01, 0.11), True),
        (served(0.02, 0.0), served(0.01, 0.11), True),
        (served(0.01, None), served(0.02, 9.0), False),
        (served(0.01, 0.0), served(0.02, None), False),
        (None, served(0.02, 9.0), False),
    ],
)
def test_a_queue_that_holds_most_of_what_requests_lost_leads(before, now, leads):
    """The account is one of gaps between tokens: it says nothing of the time before the first."""
    case = diagnose("t", now, before).case
    findings = [found("prefill_interference", Verdict.SUPPORTED, 0.9), found("admission_stall", Verdict.SUPPORTED)]
    assert choose_primary(findings, case, None) == ("admission_stall" if leads else "prefill_interference")
    assert choose_primary(findings[:1], case, None) == "prefill_interference"


@pytest.mark.parametrize("cause", ["sequence_cap", "kv_exhaustion", "queue_overload"])
@pytest.mark.parametrize(
    ("gap", "wait", "leads"),
    [
        (0.01, 0.11, True),
        (
            0.015,
            1.49,
            False,
        ),  # tokens 1.5 times as slow: 0.99 s of the wait are the queue's own, of 1.99 s that were lost
        (0.015, 1.51, True),
        (0.02, 300.0, False),  # half of the wait, however long it is, and half a second more
        (0.005, 0.11, True),
    ],
)
def test_of_a_wait_that_ends_as_fast_as_tokens_are_made_slower_tokens_have_their_part(cause, gap, wait, leads):
    case = diagnose("t", served(gap, wait), served(0.01, 0.0)).case
    findings = [found("prefill_interference", Verdict.SUPPORTED, 0.9), found(cause, Verdict.SUPPORTED)]
    assert choose_primary(findings, case, None) == (cause if leads else "prefill_interference")
    assert choose_primary(findings[1:], case, None) == cause, "nothing else is known to have made tokens slower"


def test_of_two_queues_neither_leads_for_being_one():
    case = diagnose("t", served(0.02, 9.0), served(0.01, 0.0)).case
    findings = [found(name, Verdict.SUPPORTED) for name in ("sequence_cap", "kv_exhaustion", "transfer_stall")]
    assert choose_primary(findings, case, None) is None
