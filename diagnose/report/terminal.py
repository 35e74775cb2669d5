"""The Diagnosis as a page for a terminal, 80 columns upward, readable without colour."""

from collections.abc import Iterable
from math import inf

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from diagnose.account import HOST_PARTS, PARTS, Account
from diagnose.case import Window
from diagnose.decision import DecisionKind, Finding
from diagnose.diagnosis import Diagnosis
from diagnose.hypotheses.registry import NOT_CHECKED
from diagnose.stats import Bounds
from diagnose.units import percent, seconds
from diagnose.verdict import Evidence, Stance, Verdict

_STYLES = {
    Verdict.SUPPORTED: "bold yellow",
    Verdict.CONFIRMED: "bold red",
    Verdict.UNDETERMINED: "cyan",
    Verdict.REFUTED: "green",
    Verdict.NOT_APPLICABLE: "dim",
}
_MARKS = {Stance.FOR: "+", Stance.AGAINST: "-", Stance.CONTEXT: "."}
_BAR = 24
_PART_NAMES = {
    "decode_floor": "decode (floor)",
    "prefill": "co-scheduled prefill",
    "recompute": "recompute",
    "cpu_steal": "core taken away",
    "preempted": "preempted",
    "deferred": "deferred",
    "other": "other",
}


def render(diagnosis: Diagnosis, console: Console, *, verbose: bool = False) -> None:
    """The whole page. `verbose` adds sources, sample counts and the evidence of refuted hypotheses."""
    _header(diagnosis, console)
    _symptom(diagnosis, console)
    _accounts(diagnosis, console)
    _verdicts(diagnosis, console, verbose)
    _protocol(diagnosis, console)
    _decision(diagnosis, console)


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
        part = f": {percent(share)} of the excess of the slow gaps" if share and diagnosis.case.itl_moved() else ""
        benign = " (benign)" if named.benign else ""
        return f"{named.name} is {named.verdict.value}{benign}{part}"
    supported = [f.name for f in diagnosis.findings if f.is_supported]
    if supported:
        return f"{', '.join(supported)}: supported, none of them primary"
    if diagnosis.decision.kind is DecisionKind.NONE:
        return "nothing wrong in this window"
    return "undetermined: no hypothesis is supported by what was measured"


def _header(diagnosis: Diagnosis, console: Console) -> None:
    case, signals = diagnosis.case, diagnosis.case.signals
    length = "window length unknown" if signals.length_seconds is None else f"{signals.length_seconds:.1f} s"
    model = signals.info.get("model", "")
    console.print(Text(f"{case.target}  {signals.dialect} {signals.info.get('version', '')}  {model}", style="dim"))
    console.print(Text(f"{length}, {signals.num_scrapes} scrapes, {len(signals.steps)} step records", style="dim"))
    console.print()
    console.print(Text(headline(diagnosis), style="bold"))
    for warning in diagnosis.warnings:
        console.print(Padding(Text(f"! {warning}", style="yellow"), (0, 0, 0, 2)))


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold underline"))


def _symptom(diagnosis: Diagnosis, console: Console) -> None:
    case = diagnosis.case
    base = case.baseline
    _section(console, "Symptom")
    if base is not None:
        console.print(Text(f"  {'':<12}{'now':<30}{'baseline':<30}", style="dim"))
    rows = [
        ("ITL", "inter_token_latency", (0.5, 0.95, 0.99)),
        ("TTFT", "time_to_first_token", (0.5, 0.95)),
        ("queue", "queue_time", (0.5,)),
    ]
    for label, metric, quantiles in rows:
        for q in quantiles:
            name = f"{label} p{q * 100:g}"
            now = _latency(case.incident, metric, q)
            before = "" if base is None else _latency(base, metric, q)
            console.print(Text(f"  {name:<12}{now:<30}{before:<30}".rstrip()))
    share = case.stall_share()
    if share is not None:
        factor = case.policy.slow_gap_factor
        tokens = case.analysis.stalled_tokens_share(factor)
        now = f"{percent(share)} of time, {percent(tokens)} of tokens"
        before = ""
        if base is not None and base.analysis.gaps:
            before = f"{percent(base.analysis.stall_share(factor))} of time"
        console.print(Text(f"  {'stalls':<12}{now:<30}{before:<30}".rstrip()))


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


def _accounts(diagnosis: Diagnosis, console: Console) -> None:
    _section(console, "Where a token's time goes")
    p50, p99 = diagnosis.account_p50, diagnosis.account_p99
    if p50 is None or p99 is None:
        text = "no account: it needs step records with enough pure decode steps (see the protocol below)"
        console.print(Padding(Text(text), (0, 0, 0, 2)))
        return
    _account(console, "p50", f"mean of {p50.num_gaps} gaps around {seconds(p50.quantile_seconds)}", p50)
    _account(console, "p99", f"mean of {p99.num_gaps} gaps from {seconds(p99.quantile_seconds)} up", p99)


def _account(console: Console, name: str, group: str, account: Account) -> None:
    terms = " + ".join(f"{seconds(value)} {label}" for label, value in _grouped(account) if value > 0)
    console.print(Padding(Text(f"{name} ITL {seconds(account.total_seconds)} = {terms}"), (0, 0, 0, 2)))
    console.print(Padding(Text(f"({group}; {account.basis})", style="dim"), (0, 0, 0, 2)))
    if name != "p99":
        return
    for label, value in _grouped(account):
        share = value / account.total_seconds if account.total_seconds > 0 else 0.0
        bar = "#" * round(share * _BAR)
        console.print(Text(f"    {label:<22}{seconds(value):>8}  {bar:<{_BAR}} {percent(share):>5}"))


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


def _verdicts(diagnosis: Diagnosis, console: Console, verbose: bool) -> None:
    for title, verdicts in _GROUPS:
        group = [f for f in diagnosis.findings if f.verdict in verdicts and f.error is None]
        if group:
            _section(console, title)
            for finding in group:
                _finding(console, finding, brief=finding.verdict is Verdict.REFUTED and not verbose, verbose=verbose)
    _section(console, "Not checked")
    for finding in diagnosis.findings:
        if finding.error is not None:
            console.print(Padding(Text(f"{finding.name}: the rule failed: {finding.error}", style="red"), (0, 0, 0, 2)))
    console.print(Padding(Text(f"no rule in this version: {', '.join(NOT_CHECKED)}", style="dim"), (0, 0, 0, 2)))


def _finding(console: Console, finding: Finding, *, brief: bool, verbose: bool) -> None:
    console.print(Padding(Text(finding.name, style=_STYLES[finding.verdict]), (0, 0, 0, 2)))
    evidence: Iterable[Evidence] = finding.judgement.evidence
    if brief:
        # The fact that refutes it: the last one against.
        against = [item for item in finding.judgement.evidence if item.stance is Stance.AGAINST]
        evidence = against[-1:] or finding.judgement.evidence[-1:]
    for item in evidence:
        text = f"{_MARKS[item.stance]} {item.text}"
        if verbose:
            samples = "" if item.samples is None else f", n={item.samples}"
            compared = f", against {item.compared_with}" if item.compared_with else ""
            text += f" [{item.source or 'derived'}{samples}{compared}]"
        console.print(Padding(Text(text), (0, 0, 0, 4)))
    for missing in finding.judgement.missing:
        console.print(Padding(Text(f"? lacks {missing.measurement}: {missing.decides}"), (0, 0, 0, 4)))
        console.print(Padding(Text(f"$ {missing.command}", style="dim"), (0, 0, 0, 6)))


def _protocol(diagnosis: Diagnosis, console: Console) -> None:
    _section(console, "Protocol: the four measurements")
    for item in diagnosis.protocol:
        console.print(Padding(Text(f"[{'x' if item.done else ' '}] {item.name}: {item.found}"), (0, 0, 0, 2)))
        if not item.done:
            console.print(Padding(Text(f"$ {item.command}", style="dim"), (0, 0, 0, 6)))


def _decision(diagnosis: Diagnosis, console: Console) -> None:
    decision = diagnosis.decision
    _section(console, f"Decision: {decision.kind.value}")
    console.print(Padding(Text(decision.summary), (0, 0, 0, 2)))
    for number, step in enumerate(decision.steps, 1):
        console.print(Padding(Text(f"{number}. {step}"), (0, 0, 0, 2)))
    if decision.trade:
        console.print(Padding(Text(f"Trade: {decision.trade}."), (0, 0, 0, 2)))
