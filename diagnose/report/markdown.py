"""The Diagnosis as Markdown, for an incident document. Whatever came from the target is escaped."""

import re

from diagnose.decision import Finding
from diagnose.diagnosis import Diagnosis
from diagnose.report import outline
from diagnose.report.roofline_lines import TITLE, roofline_lines
from diagnose.units import percent, printable, seconds
from diagnose.verdict import Stance

_STANCES = {Stance.FOR: "for", Stance.AGAINST: "against", Stance.CONTEXT: "context"}
# Within words an underscore marks nothing; names of metrics stay readable.
_SPECIAL = re.compile(r"[\\`*|<\[~&]|(?<!\w)_|_(?!\w)|^\s*(?:[#>+-](?=\s)|\d+[.)](?=\s))")


def render(diagnosis: Diagnosis) -> str:
    """The whole document, with all evidence."""
    blocks = [
        *_header(diagnosis),
        *_symptom(diagnosis),
        *_replicas(diagnosis),
        *_accounts(diagnosis),
        *_roofline(diagnosis),
        *_verdicts(diagnosis),
        *_protocol(diagnosis),
        *_decision(diagnosis),
    ]
    return "\n\n".join(blocks)


def escape(value: str) -> str:
    """Text that Markdown shows as it is, also within a table."""
    return _SPECIAL.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", printable(value))


def code(value: str) -> str:
    """Inline code that holds any text; not for tables, in which a pipe ends even code."""
    value = printable(value)
    ticks = "`" * (_longest_run(value) + 1)
    pad = " " if value.startswith("`") or value.endswith("`") else ""
    return f"{ticks}{pad}{value}{pad}{ticks}"


def fence(command: str, indent: int = 0) -> str:
    command = printable(command)
    marks = "`" * max(3, _longest_run(command) + 1)
    return "\n".join(" " * indent + line for line in (f"{marks}sh", command, marks))


def _longest_run(value: str) -> int:
    return max((len(run) for run in re.findall("`+", value)), default=0)


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _header(diagnosis: Diagnosis) -> list[str]:
    case = diagnosis.case
    about = f"{', '.join(code(fact) for fact in outline.about(diagnosis))}: {outline.extent(case.incident)}"
    if case.baseline is not None:
        about += f"; baseline: {outline.extent(case.baseline)}"
    blocks = [f"# {escape(outline.headline(diagnosis))}", about]
    if sources := outline.sources(case.incident):
        blocks.append(f"Read: {escape(sources)}")
    warnings = outline.warnings(diagnosis)
    return [*blocks, "\n".join(f"- **Warning:** {escape(text)}" for text in warnings)] if warnings else blocks


def _symptom(diagnosis: Diagnosis) -> list[str]:
    rows = outline.symptom_rows(diagnosis)
    if diagnosis.case.baseline is None:
        shown = table(["", "now"], [[row.label, escape(row.now)] for row in rows])
    else:
        shown = table(["", "now", "baseline"], [[row.label, escape(row.now), escape(row.before)] for row in rows])
    return ["## Symptom", shown]


def _replicas(diagnosis: Diagnosis) -> list[str]:
    rows, total = outline.replica_rows(diagnosis)
    if not rows:
        return []
    cells = [[escape(row.name), row.running, row.waiting, row.tokens, row.gap] for row in rows]
    return [f"## {outline.replica_title(len(rows), total)}", table(list(outline.REPLICA_HEADER), cells)]


def _accounts(diagnosis: Diagnosis) -> list[str]:
    blocks = ["## Where a token's time goes"]
    accounts = outline.accounts(diagnosis)
    if not accounts:
        return [*blocks, escape(outline.NO_ACCOUNT)]
    for name, account in accounts:
        blocks.append(
            f"{escape(outline.account_sentence(name, account))} ({escape(outline.account_group(name, account))})"
        )
    _, p99 = accounts[-1]
    estimated = bool(p99.bounds)
    header = ["part of p99", "time", "share", *(["between"] if estimated else [])]
    rows = [
        [row.label, seconds(row.seconds), percent(row.share)]
        + ([outline.bounds_text(row.bounds) if row.bounds is not None else ""] if estimated else [])
        for row in outline.part_rows(p99)
    ]
    blocks.append(table(header, rows))
    limits = outline.account_limits(p99)
    return [*blocks, "\n".join(f"- {escape(text)}" for text in limits)] if limits else blocks


def _roofline(diagnosis: Diagnosis) -> list[str]:
    lines = roofline_lines(diagnosis)
    return [f"## {TITLE}", "\n".join(f"- {escape(line)}" for line in lines)] if lines else []


def _verdicts(diagnosis: Diagnosis) -> list[str]:
    blocks: list[str] = []
    for title, group in outline.verdict_groups(diagnosis):
        blocks.append(f"## {title}")
        for finding in group:
            blocks += _finding(finding)
    failed = "\n".join(f"- {escape(text)}" for text in outline.failed_rules(diagnosis))
    unchecked = [block for finding in outline.unchecked(diagnosis) for block in _finding(finding)]
    said = [*([failed] if failed else []), *unchecked] or [f"{outline.ALL_CHECKED.capitalize()}."]
    return [*blocks, f"## {outline.NOT_CHECKED}", *said]


def _finding(finding: Finding) -> list[str]:
    blocks = [f"### {code(finding.name)}: {finding.verdict.value}"]
    lines = [
        f"- *{_STANCES[item.stance]}*: {escape(item.text)} ({escape(outline.evidence_origin(item))})"
        for item in finding.judgement.evidence
    ]
    lines += [
        f"- *lacks* {escape(missing.measurement)}: {escape(missing.decides)}\n\n{fence(missing.command, 2)}"
        for missing in finding.judgement.missing
    ]
    return [*blocks, "\n".join(lines)] if lines else blocks


def _protocol(diagnosis: Diagnosis) -> list[str]:
    items = []
    for item in diagnosis.protocol:
        line = f"- [{'x' if item.done else ' '}] **{item.name}**: {escape(item.found)}"
        items.append(line if item.done else f"{line}\n\n{fence(item.command, 2)}")
    return ["## Protocol: the four measurements", "\n".join(items)]


def _decision(diagnosis: Diagnosis) -> list[str]:
    decision = diagnosis.decision
    blocks = [f"## Decision: {decision.kind.value}", escape(decision.summary)]
    steps = [
        f"{number}. {escape(step.text)}" + (f"\n\n{fence(step.command, 3)}" if step.command else "")
        for number, step in enumerate(decision.steps, 1)
    ]
    if steps:
        blocks.append("\n".join(steps))
    if decision.trade:
        blocks.append(f"Trade: {escape(decision.trade)}.")
    return blocks
