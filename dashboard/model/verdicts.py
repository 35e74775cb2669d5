"""A diagnosis as the dashboard shows it: the answer, five facts, the account, the protocol, the next command. Plain data."""

from dataclasses import dataclass

from diagnose.case import Case
from diagnose.decision import Finding
from diagnose.diagnosis import Diagnosis
from diagnose.errors import ExitCode
from diagnose.hypotheses.pool import bucket_text, occupancy
from diagnose.report.outline import PartRow, accounts, headline, latency_text, part_rows, symptom_rows, warnings
from diagnose.units import percent, printable
from diagnose.verdict import Stance, Verdict

NUM_FACTS = 5
_MARKS = {
    Verdict.CONFIRMED: "!!",
    Verdict.SUPPORTED: "!",
    Verdict.UNDETERMINED: "?",
    Verdict.REFUTED: "x",
    Verdict.NOT_APPLICABLE: "-",
}
_SIGNS = {Stance.FOR: "+", Stance.AGAINST: "-", Stance.CONTEXT: "."}


@dataclass(frozen=True, slots=True)
class VerdictRow:
    name: str
    verdict: str
    mark: str
    """One or two characters, so that the list reads without colours."""
    text: str
    """Its first piece of evidence, or what it lacks."""
    evidence: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]
    """Measurement that would decide, and its command."""
    benign: bool
    primary: bool


@dataclass(frozen=True, slots=True)
class ProtocolRow:
    name: str
    done: bool
    found: str
    command: str


@dataclass(frozen=True, slots=True)
class DecisionStep:
    text: str
    command: str

    @property
    def changes_target(self) -> bool:
        """Whether its command does something to the target other than read."""
        return " -X POST" in self.command or " -X DELETE" in self.command


@dataclass(frozen=True, slots=True)
class AccountView:
    name: str
    total_seconds: float
    basis: str
    parts: tuple[PartRow, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one diagnosis of one window."""

    made_unix: float
    start: float
    end: float
    trailing: bool
    """Of the latest seconds; otherwise of the window that a person marked."""
    headline: str
    exit_code: int
    primary: str
    idle: bool
    facts: tuple[str, ...]
    verdicts: tuple[VerdictRow, ...]
    decision: str
    decision_text: str
    steps: tuple[DecisionStep, ...]
    trade: str
    accounts: tuple[AccountView, ...]
    protocol: tuple[ProtocolRow, ...]
    warnings: tuple[str, ...]
    symptoms: tuple[tuple[str, str, str], ...]
    has_baseline: bool

    @property
    def next_command(self) -> str:
        """The first command that the decision, or else the protocol, asks for."""
        for step in self.steps:
            if step.command:
                return step.command
        return next((row.command for row in self.protocol if not row.done), "")

    @property
    def severity(self) -> int:
        """0 nothing wrong .. 3 hard failure: for ordering targets."""
        order = {ExitCode.NOTHING_WRONG: 0, ExitCode.INSUFFICIENT: 1, ExitCode.CAUSE_SUPPORTED: 2}
        return order.get(ExitCode(self.exit_code), 3) if not self.idle else 0


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
            AccountView(name, account.total_seconds, account.basis, tuple(part_rows(account)))
            for name, account in accounts(diagnosis)
        ),
        protocol=tuple(
            ProtocolRow(m.name, m.done, printable(m.found), printable(m.command)) for m in diagnosis.protocol
        ),
        warnings=tuple(printable(text) for text in warnings(diagnosis)),
        symptoms=tuple((row.label, row.now, row.before) for row in symptom_rows(diagnosis)),
        has_baseline=diagnosis.case.baseline is not None,
    )


def facts(diagnosis: Diagnosis) -> tuple[str, ...]:
    """The five that matter most: what speaks for the primary cause, then the symptom, then the pool and the queue."""
    findings = {finding.name: finding for finding in diagnosis.findings}
    found: list[str] = []
    named = findings.get(diagnosis.primary or "")
    if named is not None:
        ordered = sorted(named.judgement.evidence, key=lambda item: item.stance is Stance.CONTEXT)
        found += [f"{_SIGNS[item.stance]} {item.text}" for item in ordered]
    found = found[: NUM_FACTS - 2] + _symptom_facts(diagnosis.case) + found[NUM_FACTS - 2 :]
    for finding in diagnosis.findings:
        if finding is not named and finding.verdict is Verdict.UNDETERMINED:
            found += [f"? {finding.name} lacks {lack.measurement}" for lack in finding.judgement.missing[:1]]
    return tuple(printable(text) for text in found[:NUM_FACTS])


def _symptom_facts(case: Case) -> list[str]:
    median, tail = (latency_text(case.incident, "inter_token_latency", q) for q in (0.5, 0.99))
    found = [f". ITL p50 {median}, p99 {tail}"]
    if case.baseline is not None:
        before = [latency_text(case.baseline, "inter_token_latency", q) for q in (0.5, 0.99)]
        found[0] += f"; baseline p50 {before[0]}, p99 {before[1]}"
    pool = occupancy(case.signals)
    if pool is not None:
        found.append(f". blocks: {bucket_text(pool)}")
    waiting, running = case.signals.peak("waiting"), case.signals.peak("running")
    if waiting is not None and running is not None:
        found.append(f". running peaked at {running:.0f}, waiting at {waiting:.0f}")
    share = case.stall_share()
    if share is not None:
        found.append(f". stalls hold {percent(share)} of the streams' decode time")
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
        text = evidence[0][2:] if evidence else ""
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
