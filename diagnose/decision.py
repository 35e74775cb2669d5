"""What to do next (the lesson's decision rule): contain, measure, experiment, change or nothing."""

from dataclasses import dataclass
from enum import StrEnum

from diagnose.case import Case
from diagnose.hypotheses.base import command_live
from diagnose.hypotheses.pool import bucket_text, occupancy
from diagnose.protocol import Measurement
from diagnose.units import percent
from diagnose.verdict import Judgement, Verdict


class DecisionKind(StrEnum):
    NONE = "none"
    MEASURE = "measure"
    EXPERIMENT = "experiment"
    CONTAIN = "contain"
    CHANGE = "change"


@dataclass(frozen=True, slots=True)
class Decision:
    kind: DecisionKind
    summary: str
    steps: tuple[str, ...] = ()
    """Commands and checks in order, ready to run."""
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


def decide(case: Case, findings: list[Finding], primary: str | None, protocol: tuple[Measurement, ...]) -> Decision:
    supported = {f.name: f for f in findings if f.is_supported}
    if "hard_failure" in supported:
        return _contain(case, primary)
    causes = [f for f in supported.values() if not f.benign]
    if any(f.verdict is Verdict.CONFIRMED for f in causes) and primary is not None:
        return Decision(
            DecisionKind.CHANGE, f"{primary} is confirmed: apply the change that the comparison tested, bounded"
        )
    if causes:
        return _experiment(case, primary or causes[0].name)
    undetermined = [f for f in findings if f.verdict is Verdict.UNDETERMINED and f.causes_latency]
    if has_regression(case) or (undetermined and case.itl_moved() is None):
        return _measure(case, protocol)
    return _nothing(case, findings)


def _contain(case: Case, primary: str | None) -> Decision:
    budget = case.signals.last("max_batched_tokens")
    dead = any(event.kind in ("gone", "engine_dead") for event in case.events)
    if dead:
        steps = (
            "take the target out of the load balancer, then restart it with its last known good configuration",
            "keep its log, exit code and the recording of this window before the restart",
            f"verify: curl -fsS {case.target}/health && {command_live(case, '--window 30s')}",
            "undo: put it back behind the load balancer only after the verification",
        )
        return Decision(
            DecisionKind.CONTAIN,
            "the target is gone: bounded containment before full profiling",
            steps,
            "containment restores service; the cause stays open",
        )
    if budget is not None and primary == "prefill_interference":
        return Decision(
            DecisionKind.CONTAIN,
            f"an objective is breached: halve the token budget ({budget:.0f} -> {budget / 2:.0f}) for 15 minutes, then verify",
            (
                _set_budget(case, budget / 2),
                f"verify within 2 minutes: {command_live(case, '--window 30s' + _slo_option(case))}",
                f"undo: {_set_budget(case, budget)}",
            ),
            "shorter stalls against a later first token for long prompts; the cause stays open until it is compared",
        )
    return Decision(
        DecisionKind.CONTAIN,
        "a hard failure is verified: lower the load on this target by a bounded amount before full profiling",
        (
            "shed or reroute a quarter of the arrivals for 15 minutes (or lower max sequences by a quarter)",
            f"verify: {command_live(case, '--window 30s' + _slo_option(case))}",
            "undo: give the arrivals back",
        ),
        "containment is no cure: the cause stays open",
    )


def _experiment(case: Case, cause: str) -> Decision:
    if cause == "prefill_interference":
        budget = case.signals.last("max_batched_tokens") or 512
        smaller = max(16, int(budget / 4))
        return Decision(
            DecisionKind.EXPERIMENT,
            f"{cause} is supported, not confirmed: compare token budget {budget:.0f} with {smaller} under the same load",
            (
                f"stallscope record {case.target} --for 60s -o budget-{budget:.0f}.rec",
                _set_budget(case, smaller),
                f"stallscope diagnose {case.target} --window 60s --baseline budget-{budget:.0f}.rec",
                f"undo: {_set_budget(case, budget)}",
                "repeat in random order; one pair shows a direction, six pairs can show p < 0.05",
            ),
            "a smaller chunk shortens the stalls and delays the first token: read ITL and TTFT side by side",
        )
    knobs = {
        "bandwidth_saturation": "a decode batch a quarter smaller (max sequences)",
        "scheduler_contention": "half the concurrent requests, the same prompts",
        "kv_exhaustion": "max sequences lowered until active blocks stay under 85 % of the pool",
        "cache_thrashing": "as many KV blocks as the working set, or half of the tenants at a time",
        "queue_overload": "one more replica, or arrivals limited to the measured completion rate",
    }
    return Decision(
        DecisionKind.EXPERIMENT,
        f"{cause} is supported, not confirmed: compare the present setting with {knobs.get(cause, 'one knob changed')}",
        (
            f"stallscope record {case.target} --for 60s -o before.rec",
            "change that one knob; keep arrivals, prompts, cache warmth and precision",
            f"stallscope diagnose {case.target} --window 60s --baseline before.rec",
            "change it back and repeat in random order",
        ),
        "nothing but a controlled comparison confirms a cause",
    )


def _measure(case: Case, protocol: tuple[Measurement, ...]) -> Decision:
    missing = [m for m in protocol if not m.done]
    return Decision(
        DecisionKind.MEASURE,
        "the evidence decides nothing yet: take the missing measurements before any configuration is changed",
        tuple(f"{m.name}: {m.command}" for m in missing) or (command_live(case, "--window 120s"),),
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


def _set_budget(case: Case, budget: float) -> str:
    return (
        f'curl -fsS -X POST {case.target}/admin/limits -H "Authorization: Bearer $(cat TOKEN_FILE)" '
        f"-d '{{\"max_batched_tokens\": {int(budget)}}}'"
    )


def _slo_option(case: Case) -> str:
    return f" --slo {','.join(o.text for o in case.objectives)}" if case.objectives else ""
