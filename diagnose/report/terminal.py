"""The Diagnosis as a page for a terminal, 80 columns upward, readable without colour."""

from math import inf

from diagnose.account import HOST_PARTS, PARTS, Account
from diagnose.case import Window
from diagnose.decision import DecisionKind, Finding
from diagnose.diagnosis import Diagnosis
from diagnose.hypotheses.registry import NOT_CHECKED
from diagnose.report.page import Page
from diagnose.stats import Bounds
from diagnose.units import percent, seconds
from diagnose.verdict import Stance, Verdict

_STYLES = {
    Verdict.SUPPORTED: "warn",
    Verdict.CONFIRMED: "bad",
    Verdict.UNDETERMINED: "open",
    Verdict.REFUTED: "good",
    Verdict.NOT_APPLICABLE: "dim",
}
_MARKS = {Stance.FOR: "+", Stance.AGAINST: "-", Stance.CONTEXT: "."}
_BAR = 24
_PART_NAMES = {
    "decode_floor": "decode (floor)",
    "prefill": "co-scheduled prefill",
    "recompute": "recompute",
    "off_cpu": "thread off its core",
    "preempted": "preempted",
    "deferred": "deferred",
    "other": "other",
}


def render(diagnosis: Diagnosis, page: Page, *, verbose: bool = False) -> str:
    """The whole page. `verbose` adds sources, sample counts and all evidence of refuted hypotheses."""
    _header(diagnosis, page)
    _symptom(diagnosis, page)
    _accounts(diagnosis, page)
    _verdicts(diagnosis, page, verbose)
    _protocol(diagnosis, page)
    _decision(diagnosis, page)
    return str(page)


def headline(diagnosis: Diagnosis) -> str:
    """The answer in one line."""
    if diagnosis.idle:
        length = diagnosis.case.signals.length_seconds
        over = f" in {length:.0f} s" if length else ""
        return f"{diagnosis.case.target}: idle: no token was computed{over} and nothing waits; there is nothing to diagnose"
    findings = {finding.name: finding for finding in diagnosis.findings}
    named = findings.get(diagnosis.primary or "")
    if named is not None:
        share = named.judgement.share_of_excess
        # Without step records there is no excess to share: the rules then compare with the time of the steps.
        whole = "the excess of the slow gaps" if diagnosis.excess is not None else "the time of the steps"
        part = f": {percent(share)} of {whole}" if share and diagnosis.case.itl_moved() else ""
        benign = " (benign)" if named.benign else ""
        return f"{named.name} is {named.verdict.value}{benign}{part}"
    supported = [f.name for f in diagnosis.findings if f.is_supported]
    if supported:
        return f"{', '.join(supported)}: supported, none of them primary"
    if diagnosis.decision.kind is DecisionKind.NONE:
        return "nothing wrong in this window"
    return "undetermined: no hypothesis is supported by what was measured"


def _header(diagnosis: Diagnosis, page: Page) -> None:
    case, signals = diagnosis.case, diagnosis.case.signals
    length = "window length unknown" if signals.length_seconds is None else f"{signals.length_seconds:.1f} s"
    about = [case.target, signals.dialect, signals.info.get("version", ""), signals.info.get("model", "")]
    page.line("  ".join(filter(None, about)), style="dim")
    page.line(f"{length}, {signals.num_scrapes} scrapes, {len(signals.steps)} step records", style="dim")
    page.line()
    page.line(headline(diagnosis), style="bold")
    for warning in diagnosis.warnings:
        page.line(f"! {warning}", indent=2, hanging=2, style="warn")


def _symptom(diagnosis: Diagnosis, page: Page) -> None:
    case, base = diagnosis.case, diagnosis.case.baseline
    page.section("Symptom")
    rows = [
        ("ITL", "inter_token_latency", (0.5, 0.95, 0.99)),
        ("TTFT", "time_to_first_token", (0.5, 0.95)),
        ("queue", "queue_time", (0.5,)),
    ]
    if base is not None:
        page.raw(f"  {'':<11}{'now':<31}baseline", style="dim")
    for label, metric, quantiles in rows:
        for q in quantiles:
            before = "" if base is None else _latency(base, metric, q)
            page.raw(f"  {f'{label} p{q * 100:g}':<11}{_latency(case.incident, metric, q):<31}{before}".rstrip())
    share, factor = case.stall_share(), case.policy.slow_gap_factor
    if share is not None:
        now = f"{percent(share)} of time, {percent(case.analysis.stalled_tokens_share(factor))} of tokens"
        measured = base is not None and base.analysis.gaps
        before = f"{percent(base.analysis.stall_share(factor))} of time" if base is not None and measured else ""
        page.raw(f"  {'stalls':<11}{now:<31}{before}".rstrip())


def _latency(window: Window, metric: str, q: float) -> str:
    found = window.latency(metric, q)
    if found is None:
        return "not observed"
    bounds, samples, _ = found
    return f"{bounds_text(bounds)}  (n={samples})"


def bounds_text(bounds: Bounds) -> str:
    """`41 ms` when exact, else the bucket: `(100 ms, 150 ms]`."""
    if bounds.exact:
        return seconds(bounds.low)
    high = "inf" if bounds.high == inf else seconds(bounds.high)
    return f"({seconds(bounds.low)}, {high}]"


def _accounts(diagnosis: Diagnosis, page: Page) -> None:
    page.section("Where a token's time goes")
    p50, p99 = diagnosis.account_p50, diagnosis.account_p99
    if p50 is None or p99 is None:
        page.line("no account: it needs step records with enough pure decode steps (see the protocol below)", indent=2)
        return
    _account(page, "p50", f"mean of {p50.num_gaps} gaps around {seconds(p50.quantile_seconds)}", p50)
    _account(page, "p99", f"mean of {p99.num_gaps} gaps from {seconds(p99.quantile_seconds)} up", p99)
    for label, value in _grouped(p99):
        share = value / p99.total_seconds if p99.total_seconds > 0 else 0.0
        page.raw(f"    {label:<22}{seconds(value):>8}  {'#' * round(share * _BAR):<{_BAR}} {percent(share):>5}")


def _account(page: Page, name: str, group: str, account: Account) -> None:
    terms = " + ".join(f"{seconds(value)} {label}" for label, value in _grouped(account) if value > 0)
    page.line(f"{name} ITL {seconds(account.total_seconds)} = {terms}", indent=2, hanging=4)
    page.line(f"({group}; {account.basis})", indent=4, style="dim")


def _grouped(account: Account) -> list[tuple[str, float]]:
    """Parts for people: the host's parts in one line, zero parts left out, other always shown."""
    host = sum(account.parts[name] for name in HOST_PARTS)
    rows = [(_PART_NAMES[name], account.parts[name]) for name in PARTS if name in _PART_NAMES and name != "other"]
    rows = [(label, value) for label, value in rows if value > 0]
    return [*rows, ("host and lock", host), ("other", account.parts["other"])]


_GROUPS = (
    ("Supported", (Verdict.CONFIRMED, Verdict.SUPPORTED)),
    ("Undetermined", (Verdict.UNDETERMINED,)),
    ("Refuted (checked)", (Verdict.REFUTED,)),
    ("Not applicable", (Verdict.NOT_APPLICABLE,)),
)


def _verdicts(diagnosis: Diagnosis, page: Page, verbose: bool) -> None:
    for title, verdicts in _GROUPS:
        group = [f for f in diagnosis.findings if f.verdict in verdicts and f.error is None]
        if group:
            page.section(title)
            for finding in group:
                _finding(page, finding, brief=finding.verdict is Verdict.REFUTED and not verbose, verbose=verbose)
    page.section("Not checked")
    for finding in diagnosis.findings:
        if finding.error is not None:
            page.line(f"{finding.name}: the rule failed: {finding.error}", indent=2, hanging=2, style="bad")
    page.line(f"no rule in this version: {', '.join(NOT_CHECKED)}", indent=2, style="dim")


def _finding(page: Page, finding: Finding, *, brief: bool, verbose: bool) -> None:
    page.line(finding.name, indent=2, style=_STYLES[finding.verdict])
    evidence = finding.judgement.evidence
    if brief:
        # What refutes it; the rest is one --verbose away.
        evidence = tuple(item for item in evidence if item.stance is Stance.AGAINST)[-3:]
    for item in evidence:
        text = f"{_MARKS[item.stance]} {item.text}"
        if verbose:
            samples = "" if item.samples is None else f", n={item.samples}"
            compared = f", against {item.compared_with}" if item.compared_with else ""
            text += f" [{item.source or 'derived'}{samples}{compared}]"
        page.line(text, indent=4, hanging=2)
    for missing in finding.judgement.missing:
        page.line(f"? lacks {missing.measurement}: {missing.decides}", indent=4, hanging=2)
        page.command(missing.command, indent=6)


def _protocol(diagnosis: Diagnosis, page: Page) -> None:
    page.section("Protocol: the four measurements")
    for item in diagnosis.protocol:
        page.line(f"[{'x' if item.done else ' '}] {item.name}: {item.found}", indent=2, hanging=4)
        if not item.done:
            page.command(item.command, indent=6)


def _decision(diagnosis: Diagnosis, page: Page) -> None:
    decision = diagnosis.decision
    page.section(f"Decision: {decision.kind.value}")
    page.line(decision.summary, indent=2)
    for number, step in enumerate(decision.steps, 1):
        page.line(f"{number}. {step.text}", indent=2, hanging=3)
        if step.command:
            page.command(step.command, indent=5)
    if decision.trade:
        page.line(f"Trade: {decision.trade}.", indent=2)
