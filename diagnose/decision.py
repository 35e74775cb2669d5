"""What to do next (the lesson's decision rule): contain, measure, experiment, change or nothing."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from diagnose.case import Case
from diagnose.chunking import budget_trade, typical_prompt
from diagnose.hypotheses.base import (
    command_live,
    command_trace,
    only_traced,
    set_knob,
    set_while_serving,
    start_flag,
)
from diagnose.hypotheses.pool import bucket_text, occupancy
from diagnose.protocol import Measurement
from diagnose.units import percent
from diagnose.verdict import Judgement, Stance, Verdict


class DecisionKind(StrEnum):
    NONE = "none"
    MEASURE = "measure"
    EXPERIMENT = "experiment"
    CONTAIN = "contain"
    CHANGE = "change"


class Step(NamedTuple):
    """One thing to do, in words, with the command that does it where there is one."""

    text: str
    command: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.command}" if self.command else self.text


@dataclass(frozen=True, slots=True)
class Decision:
    kind: DecisionKind
    summary: str
    steps: tuple[Step, ...] = ()
    """In order, ready to run."""
    trade: str = ""
    """What the step costs, and what stays open."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A judged hypothesis."""

    name: str
    benign: bool
    causes_latency: bool
    judgement: Judgement
    error: str | None = None
    """Set when the rule itself failed; its verdict is then undetermined."""

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict

    @property
    def is_supported(self) -> bool:
        return self.verdict in (Verdict.SUPPORTED, Verdict.CONFIRMED)


def has_regression(case: Case) -> bool:
    """A symptom that calls for an explanation: stalls, a shifted median, or an objective that may be breached."""
    return bool(case.itl_moved()) or bool(case.breaches())


def is_suspected(finding: Finding) -> bool:
    """Open, with measured evidence for it and none against: that is not nothing wrong, whatever the latency shows."""
    stances = {item.stance for item in finding.judgement.evidence}
    return finding.verdict is Verdict.UNDETERMINED and Stance.FOR in stances and Stance.AGAINST not in stances


def decide(case: Case, findings: list[Finding], primary: str | None, protocol: tuple[Measurement, ...]) -> Decision:
    supported = {f.name: f for f in findings if f.is_supported}
    if "hard_failure" in supported:
        return _contain(case, primary)
    if "engine_hung" in supported:
        return _restart(case, "the engine holds work and does not advance: bounded containment before full profiling")
    causes = [f for f in supported.values() if not f.benign]
    if any(f.verdict is Verdict.CONFIRMED for f in causes) and primary is not None:
        return Decision(
            DecisionKind.CHANGE, f"{primary} is confirmed: apply the change that the comparison tested, bounded"
        )
    if causes:
        return _experiment(case, primary or causes[0].name)
    undetermined = [f for f in findings if f.verdict is Verdict.UNDETERMINED and f.causes_latency]
    if hung := [f for f in undetermined if f.name == "engine_hung" and is_suspected(f)]:
        return _settle(hung[0])
    if has_regression(case) or (undetermined and case.itl_moved() is None) or any(map(is_suspected, undetermined)):
        return _measure(case, protocol)
    return _nothing(case, findings)


def _contain(case: Case, primary: str | None) -> Decision:
    budget = case.signals.last("max_batched_tokens")
    fates = {event.kind for event in case.events} & {"gone", "engine_dead"}
    if fates:
        what = "the target is gone" if "gone" in fates else "the engine is dead"
        return _restart(case, f"{what}: bounded containment before full profiling")
    if budget is not None and primary == "prefill_interference" and set_while_serving(case):
        return Decision(
            DecisionKind.CONTAIN,
            f"an objective is breached: halve the token budget ({budget:.0f} -> {budget / 2:.0f}) for 15 minutes, then verify",
            (
                Step("lower the token budget", set_knob(case, "max_batched_tokens", budget / 2)),
                Step("verify within 2 minutes", command_live(case, "--window 30s" + _slo_option(case))),
                Step("undo", set_knob(case, "max_batched_tokens", budget)),
            ),
            "shorter stalls against a later first token for long prompts; the cause stays open until it is compared",
        )
    return Decision(
        DecisionKind.CONTAIN,
        "a hard failure is verified: lower the load on this target by a bounded amount before full profiling",
        (
            Step("shed or reroute a quarter of the arrivals for 15 minutes (or lower max sequences by a quarter)"),
            Step("verify", command_live(case, "--window 30s" + _slo_option(case))),
            Step("undo: give the arrivals back"),
        ),
        "containment is no cure: the cause stays open",
    )


def _restart(case: Case, summary: str) -> Decision:
    return Decision(
        DecisionKind.CONTAIN,
        summary,
        (
            Step("take the target out of the load balancer"),
            Step("before the restart, keep its log, exit code or thread stacks (py-spy dump), and this recording"),
            Step("restart it with its last known good configuration"),
            Step("verify", f"curl -fsS {case.address}/health && {command_live(case, '--window 30s')}"),
            Step("undo: put it back behind the load balancer only after the verification"),
        ),
        "containment restores service; the cause stays open",
    )


def _experiment(case: Case, cause: str) -> Decision:
    if cause == "prefill_interference":
        return _budget_experiment(case, cause)
    change = _CHANGES.get(cause, "one knob changed")
    steps = [
        Step("record the first arm", f"stallscope record {case.address} --for 60s -o before.rec"),
        Step("change that one knob; keep arrivals, prompts, cache warmth and precision", _set_sequences(case, cause)),
        Step(
            "measure the second arm against the first",
            f"stallscope diagnose {case.address} --window 60s --baseline before.rec",
        ),
        Step("undo: change it back, and repeat in random order", _set_sequences(case, cause, undo=True)),
    ]
    return Decision(
        DecisionKind.EXPERIMENT,
        f"{cause} is supported, not confirmed: compare the present setting with {change}",
        tuple(steps),
        "nothing but a controlled comparison confirms a cause",
    )


_CHANGES = {
    "bandwidth_saturation": "a decode batch a quarter smaller (max sequences)",
    "scheduler_contention": "half the concurrent requests, the same prompts",
    "kv_exhaustion": "max sequences lowered until active blocks stay under 85 % of the pool",
    "cache_thrashing": "as many KV blocks as the working set, or half of the tenants at a time",
    "queue_overload": "one more replica, or arrivals limited to the measured completion rate",
    "sequence_cap": "a sequence cap a quarter higher",
    "admission_stall": "the first waiting request aborted",
    "preemption_storm": "max sequences lowered by a quarter",
    "kv_leak": "a restarted engine under the same load",
    "compute_saturation": "arrivals lowered by a quarter",
    "speculation_loss": "speculation off",
    "transfer_stall": "prefill on the decode instance for prompts under its token budget",
    "replica_imbalance": "routing by outstanding tokens",
    "client_artifact": "the same request from beside the server, without the proxies between",
    "device_degraded": "the same load on another GPU of the kind",
    "cache_prefix_broken": "prompts whose shared part comes first, byte for byte",
    "collective_stall": "the same load on a group of devices under one switch, or with one rank fewer",
    "frontend_bottleneck": "one more API server process, the same load",
}
"""What the second arm of a cause's comparison has otherwise."""
_SEQUENCES = {"bandwidth_saturation": 0.75, "kv_exhaustion": 0.75, "preemption_storm": 0.75, "sequence_cap": 1.25}
"""Causes whose one knob is the number of sequences -> times the present one."""


def _set_sequences(case: Case, cause: str, *, undo: bool = False) -> str:
    """Empty for a cause whose knob is another one."""
    present, factor = case.signals.last("max_sequences"), _SEQUENCES.get(cause)
    if factor is None:
        return ""
    value = None if not present else present if undo else max(1.0, present * factor)
    return set_knob(case, "max_sequences", value)


def _budget_experiment(case: Case, cause: str) -> Decision:
    budget = case.signals.last("max_batched_tokens")
    smaller = None if not budget else max(16, int(budget / 4))
    name, compared = "budget-a", "the present token budget with a quarter of it"
    if budget and smaller:
        name, compared = f"budget-{budget:.0f}", f"token budget {budget:.0f} with {smaller}"
    return Decision(
        DecisionKind.EXPERIMENT,
        f"{cause} is supported, not confirmed: compare {compared} under the same load",
        (
            Step("record the first arm", f"stallscope record {case.address} --for 60s -o {name}.rec"),
            Step("change the one knob", set_knob(case, "max_batched_tokens", smaller)),
            Step(
                "measure the second arm against the first",
                f"stallscope diagnose {case.address} --window 60s --baseline {name}.rec",
            ),
            Step("undo", set_knob(case, "max_batched_tokens", budget)),
            Step(
                "one pair shows a direction; six pairs in random order can confirm it, on an engine of its own under "
                "a load that you choose",
                _confirm(case, budget, smaller, cause),
            ),
        ),
        "a smaller chunk shortens the stalls and delays the first token: read ITL and TTFT side by side"
        + (_predicted_steps(case, int(budget), smaller) if budget and smaller else ""),
    )


def _confirm(case: Case, budget: float | None, smaller: float | None, cause: str) -> str:
    load = f"--hypothesis {cause} --load rate=0.5,prompt=64,output=200"
    if set_while_serving(case) and budget and smaller:
        knob = f"max_batched_tokens={budget:.0f},{smaller:.0f}"
        return f"stallscope experiment {case.address} --knob {knob} --admin-token-file TOKEN_FILE {load} --apply"
    flag = start_flag(case, "max_batched_tokens") or "BUDGET_OPTION"
    first, second = (
        f"'START_COMMAND --port {{port}} {flag} {'N' if value is None else f'{value:.0f}'}'"
        for value in (budget, smaller)
    )
    return f"stallscope experiment --launch-a {first} --launch-b {second} {load}"


def _predicted_steps(case: Case, budget: int, smaller: int) -> str:
    """What both budgets do to the window's mean prompt; nothing where that is not known."""
    prompt = typical_prompt(case.analysis, case.policy)
    trade = budget_trade(prompt, (budget, smaller)) if prompt is not None else None
    return f"; {trade}" if trade else ""


def _settle(hang: Finding) -> Decision:
    """An engine that may stand still has no steps to profile: only whether it does is worth a measurement."""
    return Decision(
        DecisionKind.MEASURE,
        "requests are inside and nothing comes out: find out whether the engine hangs before anything else is measured",
        tuple(Step(lack.measurement, lack.command) for lack in hang.judgement.missing),
        "nothing is restarted before it is certain: running requests are lost",
    )


def _measure(case: Case, protocol: tuple[Measurement, ...]) -> Decision:
    if only_traced(case) and not case.signals.profiles:
        return Decision(
            DecisionKind.MEASURE,
            "no profile is complete, and nothing else was given: nothing was judged",
            (
                Step("record all ranks again, with CPU and CUDA activities", command_trace(case)),
                Step("or watch the server itself, which needs no profiler", command_live(case)),
            ),
            "a profile that lacks something looks fast, so that none of it is used",
        )
    missing = [m for m in protocol if not m.done]
    return Decision(
        DecisionKind.MEASURE,
        "the evidence decides nothing yet: take the missing measurements before any configuration is changed",
        tuple(Step(m.name, m.command) for m in missing) or (Step("watch longer", command_live(case, "--window 120s")),),
        "no configuration change is justified by what was measured",
    )


def _nothing(case: Case, findings: list[Finding]) -> Decision:
    refuted = [f.name for f in findings if f.verdict is Verdict.REFUTED]
    pool = occupancy(case.signals)
    total, reserved = case.signals.last("device_memory_total"), case.signals.last("device_memory_reserved")
    note = ""
    if pool is not None and total and reserved is not None and reserved / total >= case.policy.memory_high:
        note = f"; device memory at {percent(reserved / total)} is the configured pool ({bucket_text(pool)})"
    looked = f"looked at and refuted: {', '.join(refuted)}" if refuted else "no hypothesis had anything to explain"
    return Decision(DecisionKind.NONE, f"nothing to do: {looked}{note}")


def _slo_option(case: Case) -> str:
    return f" --slo {','.join(o.text for o in case.objectives)}" if case.objectives else ""
