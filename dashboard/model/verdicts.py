"""From a diagnosis to its summary. Loads every rule: not before the first paint."""

from dashboard.model.summary import NUM_FACTS, AccountView, DecisionStep, PartView, ProtocolRow, Summary, VerdictRow
from diagnose.case import Case
from diagnose.decision import Finding
from diagnose.diagnosis import Diagnosis
from diagnose.hypotheses.pool import bucket_text, occupancy
from diagnose.report.outline import accounts, headline, latency_text, part_rows, warnings
from diagnose.units import percent, printable
from diagnose.verdict import Stance, Verdict

_MARKS = {
    Verdict.CONFIRMED: "!!",
    Verdict.SUPPORTED: "!",
    Verdict.UNDETERMINED: "?",
    Verdict.REFUTED: "x",
    Verdict.NOT_APPLICABLE: "-",
}
_ORDER = {Stance.FOR: 0, Stance.AGAINST: 1, Stance.CONTEXT: 2}
_LEADING = {Verdict.CONFIRMED: Stance.FOR, Verdict.SUPPORTED: Stance.FOR, Verdict.REFUTED: Stance.AGAINST}
"""What speaks first for a verdict."""
_SIGNS = {Stance.FOR: "+", Stance.AGAINST: "-", Stance.CONTEXT: "."}


def summarise(diagnosis: Diagnosis, made_unix: float, start: float, end: float, *, trailing: bool) -> Summary:
    decision = diagnosis.decision
    return Summary(
        made_unix=made_unix,
        start=start,
        end=end,
        trailing=trailing,
        headline=printable(headline(diagnosis)),
        exit_code=int(diagnosis.exit_code),
        primary=diagnosis.primary or "",
        idle=diagnosis.idle,
        facts=facts(diagnosis),
        verdicts=tuple(_verdict_row(finding, diagnosis.primary) for finding in diagnosis.findings),
        decision=decision.kind.value,
        decision_text=printable(decision.summary),
        steps=tuple(DecisionStep(printable(step.text), printable(step.command)) for step in decision.steps),
        trade=printable(decision.trade),
        accounts=tuple(
            AccountView(
                name,
                account.total_seconds,
                account.basis,
                tuple(PartView(row.label, row.seconds, row.share) for row in part_rows(account)),
            )
            for name, account in accounts(diagnosis)
        ),
        protocol=tuple(
            ProtocolRow(m.name, m.done, printable(m.found), printable(m.command)) for m in diagnosis.protocol
        ),
        warnings=tuple(printable(text) for text in warnings(diagnosis)),
        has_baseline=diagnosis.case.baseline is not None,
    )


def facts(diagnosis: Diagnosis) -> tuple[str, ...]:
    """The five that matter most: what speaks for the primary or first supported cause, then the symptom, the pool, the queue."""
    if diagnosis.idle:
        return tuple(printable(text) for text in _load_facts(diagnosis.case))
    findings = {finding.name: finding for finding in diagnosis.findings}
    found: list[str] = []
    supported = (finding for finding in diagnosis.findings if finding.is_supported and not finding.benign)
    named = findings.get(diagnosis.primary or "") or next(supported, None)
    if named is not None:
        ordered = sorted(named.judgement.evidence, key=lambda item: _ORDER[item.stance])
        found += [f"{_SIGNS[item.stance]} {item.text}" for item in ordered]
    found = found[: NUM_FACTS - 2] + _symptom_facts(diagnosis.case) + found[NUM_FACTS - 2 :]
    for finding in diagnosis.findings:
        if finding is not named and finding.verdict is Verdict.UNDETERMINED:
            found += [f"? {finding.name} lacks {lack.measurement}" for lack in finding.judgement.missing[:1]]
    return tuple(printable(text) for text in found[:NUM_FACTS])


def _symptom_facts(case: Case) -> list[str]:
    median, tail = (latency_text(case.incident, "inter_token_latency", q) for q in (0.5, 0.99))
    found = [f". ITL p50 {_bare(median)}, p99 {tail}"]
    if case.baseline is not None:
        before = [latency_text(case.baseline, "inter_token_latency", q) for q in (0.5, 0.99)]
        found[0] += f"; baseline p50 {_bare(before[0])}, p99 {before[1]}"
    found += _load_facts(case)
    share = case.stall_share()
    if share is not None:
        found.append(f". stalls hold {percent(share)} of the streams' decode time")
    return found


def _bare(latency: str) -> str:
    """Without the number of samples, which the p99 beside it says."""
    return latency.partition("  (n=")[0]


def _load_facts(case: Case) -> list[str]:
    found = []
    pool = occupancy(case.signals)
    if pool is not None:
        found.append(f". blocks: {bucket_text(pool)}")
    waiting, running = case.signals.peak("waiting"), case.signals.peak("running")
    if waiting is not None and running is not None:
        found.append(f". running peaked at {running:.0f}, waiting at {waiting:.0f}")
    return found


def _verdict_row(finding: Finding, primary: str | None) -> VerdictRow:
    judgement = finding.judgement
    evidence = tuple(printable(f"{_SIGNS[item.stance]} {item.text}") for item in judgement.evidence)
    missing = tuple((printable(lack.measurement), printable(lack.command)) for lack in judgement.missing)
    if finding.error is not None:
        text = printable(f"the rule failed: {finding.error}")
    elif finding.verdict is Verdict.UNDETERMINED and missing:
        text = f"lacks {missing[0][0]}"
    else:
        sign = _SIGNS[_LEADING.get(finding.verdict, Stance.CONTEXT)]
        text = next((item[2:] for item in evidence if item[0] == sign), evidence[0][2:] if evidence else "")
    return VerdictRow(
        finding.name,
        finding.verdict.value,
        _MARKS[finding.verdict],
        text,
        evidence,
        missing,
        finding.benign,
        finding.name == primary,
    )
