"""From observations to a Diagnosis: judge every hypothesis, rank the causes, decide."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diagnose.account import Account
from diagnose.account_estimate import estimate_account
from diagnose.case import Case, Excess, make_window
from diagnose.conditions import build_mismatches, differing_load, differing_settings
from diagnose.decision import Decision, DecisionKind, Finding, decide
from diagnose.errors import ExitCode
from diagnose.hypotheses.base import Hypothesis, command_live
from diagnose.hypotheses.registry import HYPOTHESES
from diagnose.observation import Event
from diagnose.policy import DEFAULT_POLICY, Policy
from diagnose.protocol import Measurement, checklist
from diagnose.signals import Signals
from diagnose.slo import Objective, Reported, reported_by_clients
from diagnose.units import percent
from diagnose.verdict import Argument, Judgement, Stance, Verdict


@dataclass(frozen=True, slots=True)
class Diagnosis:
    case: Case
    findings: tuple[Finding, ...]
    primary: str | None
    account_p50: Account | None
    account_p99: Account | None
    excess: Excess | None
    protocol: tuple[Measurement, ...]
    decision: Decision
    warnings: tuple[str, ...]
    idle: bool

    @property
    def exit_code(self) -> ExitCode:
        supported = [f for f in self.findings if f.is_supported and not f.benign]
        if any(f.name == "hard_failure" for f in supported):
            return ExitCode.HARD_FAILURE
        if self.idle:
            return ExitCode.INSUFFICIENT
        if supported:
            return ExitCode.CAUSE_SUPPORTED
        if self.decision.kind is DecisionKind.NONE:
            return ExitCode.NOTHING_WRONG
        return ExitCode.INSUFFICIENT


def diagnose(
    target: str,
    incident: Signals,
    baseline: Signals | None = None,
    *,
    is_live: bool = False,
    arguments: str | None = None,
    events: Sequence[Event] = (),
    objectives: Sequence[Objective] = (),
    reported: Sequence[Reported] = (),
    warnings: Sequence[str] = (),
    policy: Policy = DEFAULT_POLICY,
    hypotheses: Sequence[Hypothesis] = HYPOTHESES,
) -> Diagnosis:
    case = Case(
        target=target,
        is_live=is_live,
        arguments=arguments,
        incident=make_window(incident, policy),
        baseline=None if baseline is None else make_window(baseline, policy),
        policy=policy,
        events=tuple(events),
        objectives=tuple(objectives),
        reported=tuple(reported) or reported_by_clients(incident, policy),
    )
    findings = [_judge(hypothesis, case) for hypothesis in hypotheses]
    excess = case.excess()
    primary = choose_primary(findings, case, excess)
    protocol = checklist(case)
    broken = any(f.name == "hard_failure" and f.is_supported for f in findings)
    return Diagnosis(
        case=case,
        findings=tuple(sorted(findings, key=_rank)),
        primary=primary,
        account_p50=case.analysis.account_p50() or estimate_account(incident, 0.5, policy),
        account_p99=case.analysis.account_p99() or estimate_account(incident, 0.99, policy),
        excess=excess,
        protocol=protocol,
        decision=decide(case, findings, primary, protocol),
        warnings=(*warnings, *_window_warnings(case, excess)),
        idle=is_idle(case) and not broken,
    )


def _judge(hypothesis: Hypothesis, case: Case) -> Finding:
    argument = Argument(case.signals.coverage())
    error: str | None = None
    try:
        judgement = hypothesis.judge(case, argument)
    except Exception as failure:  # noqa: BLE001 - one broken rule must not silence the others; it is reported by name
        error = f"{type(failure).__name__}: {failure}"
        judgement = Judgement(Verdict.UNDETERMINED, tuple(argument.evidence))
    if hypothesis.causes_latency and judgement.verdict is Verdict.SUPPORTED and _is_moment(case.signals):
        argument.lacks("a second scrape", "what holds at one moment may be gone at the next", command_live(case))
        judgement = argument.conclude(Verdict.UNDETERMINED)
    if judgement.verdict is Verdict.REFUTED and _rests_on_moments(judgement, case):
        unseen = percent(case.signals.unseen_share)
        argument.lacks("scrapes of the whole window", f"no gauge tells of the {unseen} without one", command_live(case))
        judgement = argument.conclude(Verdict.UNDETERMINED)
    return Finding(hypothesis.name, hypothesis.benign, hypothesis.causes_latency, judgement, error)


def _is_moment(signals: Signals) -> bool:
    """One scrape and nothing that covers a time: no cause is supported by that."""
    return signals.num_scrapes == 1 and signals.length_seconds is None and not signals.steps and not signals.profiles


def _rests_on_moments(judgement: Judgement, case: Case) -> bool:
    """Whether scrapes are missing and nothing but gauges speaks against: counters and records cover what no scrape saw."""
    signals = case.signals
    against = {item.source for item in judgement.evidence if item.stance is Stance.AGAINST}
    seen_at_moments = against <= {gauge.source for gauge in signals.gauges.values()}
    return signals.unseen_share >= case.policy.unseen_share and not signals.steps and bool(against) and seen_at_moments


_ORDER = (Verdict.CONFIRMED, Verdict.SUPPORTED, Verdict.UNDETERMINED, Verdict.REFUTED, Verdict.NOT_APPLICABLE)


def _rank(finding: Finding) -> tuple[int, float]:
    return _ORDER.index(finding.verdict), -(finding.judgement.share_of_excess or 0.0)


def choose_primary(findings: Sequence[Finding], case: Case, excess: Excess | None) -> str | None:
    """The supported cause with the largest share of the excess; a dead target first; a benign one only if it stands alone.

    A queue that holds most of what requests lost leads whatever the account, which begins at the first token, says of their
    gaps. None when too much of the excess is unexplained, or when the best cause explains under a tenth of it. Where nothing can
    be apportioned (no step records, no histograms that would do) see `_without_account`.
    """
    if any(event.kind in ("gone", "engine_dead") for event in case.events):
        return "hard_failure"
    causes = _first_causes([f for f in findings if f.is_supported and f.causes_latency])
    outside = [
        f for f in causes if f.name in _OUTSIDE and (f.judgement.share_of_excess or 0.0) >= case.policy.dominant_share
    ]
    if outside:
        return outside[0].name
    before = [f for f in causes if f.name in _BEFORE]
    if len(before) == 1 and _waits_dominate(case, before[0].name, rivals=len(causes) > 1):
        return before[0].name
    if causes:
        if case.itl_moved() and excess is not None and excess.share("other") > case.policy.incomplete_other_share:
            return None
        if excess is None:
            return _without_account(causes, case.policy)
        best = max(causes, key=lambda f: f.judgement.share_of_excess or 0.0)
        share = best.judgement.share_of_excess
        if case.itl_moved() and (share is None or share < case.policy.negligible_share):
            return None
        return best.name
    others = [f for f in findings if f.is_supported]
    if others:
        return next((f.name for f in others if not f.benign), others[0].name if not case.itl_moved() else None)
    return None


_OUTSIDE = frozenset({"frontend_bottleneck"})
"""Causes that delay tokens after the engine's own stamp, which the account ends with. Their share is one of all lateness: from
half of it on nothing in the account can have more, complete or not."""

_BEFORE = frozenset({"admission_stall", "kv_exhaustion", "queue_overload", "sequence_cap"})
"""Causes that delay requests before their first token, where the account, which is one of gaps between tokens, begins."""


_ONE_TOKEN_AT_A_TIME = frozenset({"kv_exhaustion", "queue_overload", "sequence_cap"})
"""Of the same, those whose line moves on as fast as tokens are made."""


def _waits_dominate(case: Case, cause: str, *, rivals: bool) -> bool:
    """Whether most of what a request lost against the baseline is its wait in the queue, and not its slower tokens.

    `rivals`: other causes are supported, so that a wait behind slower tokens may be their doing.
    """
    lost = case.lost_against_baseline()
    if lost is None or lost.waiting < case.policy.noticeable_queue_seconds:
        return False
    share = lost.own_waiting_share if rivals and cause in _ONE_TOKEN_AT_A_TIME else lost.waiting_share
    return share >= case.policy.dominant_share


_CONSEQUENCES: Mapping[str, frozenset[str]] = {
    "preemption_storm": frozenset({"kv_exhaustion"}),
    "queue_overload": frozenset({"kv_exhaustion", "sequence_cap", "admission_stall"}),
}
"""What other causes end in: with one of those supported as well, it follows from that one."""


def _first_causes(causes: Sequence[Finding]) -> list[Finding]:
    """Those that do not follow from another one of them."""
    names = {f.name for f in causes}
    return [f for f in causes if names.isdisjoint(_CONSEQUENCES.get(f.name, frozenset()))]


def _without_account(causes: Sequence[Finding], policy: Policy) -> str | None:
    """Nothing apportions the excess, so that what a rule calls its share is one of the time. From half of it on no other cause
    can have more. A smaller one leaves most to others: the only cause without a share leads then, and of several none does."""
    measured = [f for f in causes if f.judgement.share_of_excess is not None]
    best = max(measured, key=lambda f: f.judgement.share_of_excess or 0.0, default=None)
    if best is not None and (best.judgement.share_of_excess or 0.0) >= policy.dominant_share:
        return best.name
    first = [f.name for f in _first_causes(causes) if f not in measured]
    if not first:
        return best.name if best is not None else None
    return first[0] if len(first) == 1 else None


def is_idle(case: Case) -> bool:
    """Nothing was computed and nothing was there to compute. Counters decide; gauges only confirm. Where the probes themselves
    failed, their counters that stand still say nothing."""
    if case.signals.worked is not False or case.signals.delta("probe_errors"):
        return False
    return not (case.signals.peak("running") or case.signals.peak("waiting"))


def changes_since_baseline(case: Case) -> list[str]:
    """Version, model, configuration and load that differ from the baseline's: looked at before any cause."""
    if case.baseline is None:
        return []
    build = [f"{m.name} {m.first} -> {m.second}" for m in build_mismatches(case.baseline, case.incident)]
    load = differing_load(case.baseline, case.incident, case.policy)
    changed = [*build, *differing_settings(case.baseline, case.incident, case.policy), *load]
    return [f"changed since the baseline: {'; '.join(changed)}"] if changed else []


def _window_warnings(case: Case, excess: Excess | None) -> list[str]:
    signals, policy = case.signals, case.policy
    warnings = changes_since_baseline(case)
    if signals.steps_lost:
        warnings.append(
            f"{signals.steps_lost} step records were overwritten before they were read: gaps across them are left out"
        )
    if signals.restarted:
        warnings.append(
            "the engine restarted in the window: counters were joined across the reset, rates are lower bounds"
        )
    if signals.length_seconds is None and signals.num_scrapes >= 2:
        warnings.append("the window's length is unknown: only ratios of counters are used, no rate")
    warnings += _event_warnings(case)
    if faults := signals.delta("probe_errors"):
        warnings.append(
            f"{faults:.0f} faults inside the engine's probes in the window: what they measure may be incomplete"
        )
    gaps = case.analysis.num_gaps
    if 0 < gaps < policy.min_p99_gaps:
        warnings.append(f"only {gaps} inter-token gaps: p99 rests on {max(1, round(gaps * 0.01))} of them")
    overbooked = case.analysis.overbooked_share()
    if overbooked >= policy.overbooked_share:
        warnings.append(
            f"the step records book {percent(overbooked)} more time than went by: their parts overlap, and were shrunk to fit"
        )
    model = case.analysis.model
    if model is not None and model.slowdown >= policy.contended_slowdown:
        warnings.append(
            f"the machine is contended: the engine's thread runs {percent(1 / model.slowdown)} of the time in plain decode steps"
        )
    if excess is not None and case.itl_moved():
        if excess.share("other") > policy.incomplete_other_share:
            warnings.append(f"the account is incomplete: {percent(excess.share('other'))} of the excess is unexplained")
        if excess.share("off_cpu") > policy.incomplete_other_share:
            warnings.append(
                f"{percent(excess.share('off_cpu'))} of the excess passed while the engine's thread had no core: look for other "
                "processes on this machine, and for threads of the server that hold the interpreter lock"
            )
    return warnings


_EVENT_TEXTS = {
    "unreachable": ("scrape failed", "scrapes failed"),
    "error_answer": ("scrape was answered with an error", "scrapes were answered with an error"),
    "bad_answer": ("answer was no metrics page", "answers were no metrics page"),
    "no_step_records": ("read of step records failed", "reads of step records failed"),
}


def _event_warnings(case: Case) -> list[str]:
    """What went wrong on the way to the evidence, by kind."""
    warnings: list[str] = []
    for kind, (one, several) in _EVENT_TEXTS.items():
        found = [event.detail for event in case.events if event.kind == kind]
        if found:
            text = f"{one}:" if len(found) == 1 else f"{several}, the first with:"
            warnings.append(f"{len(found)} {text} {found[0]}")
    return warnings
