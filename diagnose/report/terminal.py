"""The Diagnosis as a page for a terminal, 80 columns upward, readable without colour."""

from diagnose.decision import Finding
from diagnose.diagnosis import Diagnosis
from diagnose.report import outline
from diagnose.report.page import Page
from diagnose.report.roofline_lines import TITLE, roofline_lines
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


def render(diagnosis: Diagnosis, page: Page, *, verbose: bool = False) -> str:
    """The whole page. `verbose` adds sources, sample counts and all evidence of refuted hypotheses."""
    _header(diagnosis, page)
    _symptom(diagnosis, page)
    _replicas(diagnosis, page)
    _accounts(diagnosis, page)
    _roofline(diagnosis, page)
    _verdicts(diagnosis, page, verbose)
    _protocol(diagnosis, page)
    _decision(diagnosis, page)
    return str(page)


def _header(diagnosis: Diagnosis, page: Page) -> None:
    page.line("  ".join(outline.about(diagnosis)), style="dim")
    page.line(outline.extent(diagnosis.case.incident), style="dim")
    if sources := outline.sources(diagnosis.case.incident):
        page.line(f"read: {sources}", hanging=6, style="dim")
    page.line()
    page.line(outline.headline(diagnosis), style="bold")
    for warning in outline.warnings(diagnosis):
        page.line(f"! {warning}", indent=2, hanging=2, style="warn")


def _symptom(diagnosis: Diagnosis, page: Page) -> None:
    page.section("Symptom")
    if diagnosis.case.baseline is not None:
        page.raw(f"  {'':<11}{'now':<31}baseline", style="dim")
    for row in outline.symptom_rows(diagnosis):
        page.raw(f"  {row.label:<11}{row.now:<31}{row.before}".rstrip())


def _replicas(diagnosis: Diagnosis, page: Page) -> None:
    rows, total = outline.replica_rows(diagnosis)
    if not rows:
        return
    page.section(outline.replica_title(len(rows), total))
    table = [outline.REPLICA_HEADER, *((row.name, row.running, row.waiting, row.tokens, row.gap) for row in rows)]
    width = max(len(cells[0]) for cells in table)
    for name, *numbers in table:
        page.raw(f"  {name:<{width}}" + "".join(f"{number:>10}" for number in numbers))


def _accounts(diagnosis: Diagnosis, page: Page) -> None:
    page.section("Where a token's time goes")
    accounts = outline.accounts(diagnosis)
    if not accounts:
        page.line(outline.NO_ACCOUNT, indent=2)
        return
    for name, account in accounts:
        page.line(outline.account_sentence(name, account), indent=2, hanging=4)
        page.line(f"({outline.account_group(name, account)})", indent=4, hanging=1, style="dim")
    _, p99 = accounts[-1]
    for row in outline.part_rows(p99):
        # An estimate's bounds say more than the length of a bar that they make doubtful.
        about = "#" * round(row.share * _BAR) if row.bounds is None else f"{outline.bounds_text(row.bounds)}"
        page.raw(f"    {row.label:<22}{seconds(row.seconds):>8}  {about:<{_BAR}} {percent(row.share):>5}")
    for text in outline.account_limits(p99):
        page.line(f"? {text}", indent=4, hanging=2)


def _roofline(diagnosis: Diagnosis, page: Page) -> None:
    if lines := roofline_lines(diagnosis):
        page.section(TITLE)
        for line in lines:
            page.line(line, indent=2, hanging=2)


def _verdicts(diagnosis: Diagnosis, page: Page, verbose: bool) -> None:
    for title, group in outline.verdict_groups(diagnosis):
        page.section(title)
        for finding in group:
            _finding(page, finding, brief=finding.verdict is Verdict.REFUTED and not verbose, verbose=verbose)
    page.section(outline.NOT_CHECKED)
    failed, unchecked = outline.failed_rules(diagnosis), outline.unchecked(diagnosis)
    for text in failed:
        page.line(text, indent=2, hanging=2, style="bad")
    if outline.only_an_unused_profile(diagnosis) and not verbose:
        page.line(f"{outline.NOTHING_JUDGED} {', '.join(finding.name for finding in unchecked)}", indent=2)
        unchecked = []
    for finding in unchecked:
        _finding(page, finding, brief=False, verbose=verbose)
    if not failed and not outline.unchecked(diagnosis):
        page.line(outline.ALL_CHECKED, indent=2, style="dim")


def _finding(page: Page, finding: Finding, *, brief: bool, verbose: bool) -> None:
    page.line(finding.name, indent=2, style=_STYLES[finding.verdict])
    evidence = finding.judgement.evidence
    if brief:
        # What refutes it; the rest is one --verbose away.
        evidence = tuple(item for item in evidence if item.stance is Stance.AGAINST)[-3:]
    for item in evidence:
        origin = f" [{outline.evidence_origin(item)}]" if verbose else outline.count_of_quantile(item)
        page.line(f"{_MARKS[item.stance]} {item.text}{origin}", indent=4, hanging=2)
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
