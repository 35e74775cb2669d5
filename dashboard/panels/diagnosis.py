"""The current diagnosis: the answer, five facts, decision and next command; the list of verdicts; the account."""

from dashboard.draw.bars import waterfall
from dashboard.draw.figures import age, clock
from dashboard.draw.spans import Line, Span, clip, section, wrap
from dashboard.model.summary import NUM_FACTS, Summary, VerdictRow
from dashboard.model.target import Mark, Target
from dashboard.model.view import View
from diagnose.units import seconds

VERDICT_ROLES = {
    "confirmed": "bad",
    "supported": "bad",
    "undetermined": "warn",
    "refuted": "good",
    "not_applicable": "dim",
}
_FACT_ROLES = {"+": "bad", "-": "good", "?": "warn", ".": ""}
_DECISION_ROLES = {"none": "good", "measure": "warn", "experiment": "warn", "contain": "bad", "change": "bad"}
ANSWER_LINES = NUM_FACTS + 4
"""Title, answer, facts, decision, command."""


def answer(view: View, width: int, height: int) -> list[Line]:
    """The verdict and its five facts in `height` lines, the most important first. Extra lines go to the decision."""
    summary = view.target.summary
    title, note = "diagnosis", diagnosis_note(view)
    if summary is None:
        text = "a diagnosis needs two scrapes" if not view.target.diagnosing else "the first diagnosis is being made"
        return section(title, [[Span(f" {text}", "dim")]], width, height, note)
    spare = max(0, height - ANSWER_LINES - 1)
    body: list[Line] = wrap(
        summary.headline, width - 2, 1 + min(1, spare), _headline_role(summary), lead=" ", indent=" "
    )
    spare -= len(body) - 1
    for text in summary.facts:
        lines = wrap(text, width - 1, 1 + min(1, spare), _FACT_ROLES.get(text[:1], ""), lead=" ", indent="   ")
        spare -= len(lines) - 1
        body += lines
    body += _decision(view, summary, width, height - 1 - len(body))
    return section(title, body, width, height, note)


def answer_lines(view: View, width: int) -> int:
    """How many lines `answer` takes to cut nothing off: two at most for each sentence."""
    summary = view.target.summary
    if summary is None:
        return ANSWER_LINES
    texts = [summary.headline, *summary.facts]
    spare = sum(len(wrap(text, width - 2, 2, indent="   ")) for text in texts)
    return 1 + spare + 2 + bool(next_command(view))


def _headline_role(summary: Summary) -> str:
    if summary.idle:
        return "dim"
    return ("good_strong", "warn_strong", "bad_strong", "bad_strong")[summary.severity]


def _decision(view: View, summary: Summary, width: int, room: int) -> list[Line]:
    """Decision on one line or as many as there are; the command always keeps the last one."""
    if room < 1 or summary.idle:
        return []
    command = next_command(view)
    kept = room - 1 if command else room
    head = f"-> {summary.decision}: {summary.decision_text}"
    role = _DECISION_ROLES.get(summary.decision, "")
    lines = wrap(head, width - 1, kept, role, lead=" ", indent="    ") if kept else []
    if command:
        lines.append(clip([Span(f" $ {command}", "command", "copy_command")], width))
    return lines


def next_command(view: View) -> str:
    """The command to copy; with --readonly only one that changes nothing."""
    summary = view.target.summary
    if summary is None:
        return ""
    if not view.readonly:
        return summary.next_command
    harmless = [step.command for step in summary.steps if step.command and not step.changes_target]
    return harmless[0] if harmless else next((row.command for row in summary.protocol if not row.done), "")


def diagnosis_note(view: View) -> str:
    """Which window was judged, and how long ago."""
    target, summary = view.target, view.target.summary
    if summary is None:
        return "diagnosing ..." if target.diagnosing else ""
    length = summary.end - summary.start
    if summary.trailing:
        window = f"{clock(summary.end)} last {length:.0f} s"
    elif target.incident is None:
        window = f"all {length:.0f} s"
    else:
        window = f"marked {clock(summary.start)}-{clock(summary.end)}"
    base = ", against the baseline" if summary.has_baseline else ""
    busy = " ..." if target.diagnosing else ""
    return f"{window}{base}{busy}"


def marks_line(target: Target) -> Line:
    """The marked windows in words."""
    line: Line = []
    if target.incident is not None:
        line.append(Span(f" incident {_mark(target.incident)} ", "incident"))
    if target.baseline is not None:
        line.append(Span(f" baseline {_mark(target.baseline)} ", "baseline"))
    elif target.baseline_file:
        line.append(Span(f" baseline {target.baseline_file} ", "baseline"))
    return line


def _mark(mark: Mark) -> str:
    if mark.end is None:
        return f"from {clock(mark.start)}, press the key again at its end"
    return f"{clock(mark.start)}-{clock(mark.end)} ({age(mark.end - mark.start)})"


def verdict_list(view: View, width: int, height: int) -> list[Line]:
    """Every hypothesis with its verdict; what was not judged is not listed as fine."""
    summary = view.target.summary
    if summary is None:
        return section("verdicts", [[Span(" none yet", "dim")]], width, height)
    counts = {name: sum(row.verdict == name for row in summary.verdicts) for name in VERDICT_ROLES}
    note = "  ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    return section("verdicts", [verdict_line(row) for row in summary.verdicts], width, height, note)


def verdict_line(row: VerdictRow) -> Line:
    role = "good" if row.benign and row.verdict == "supported" else VERDICT_ROLES[row.verdict]
    name = row.name + (" (benign)" if row.benign and row.verdict == "supported" else "")
    return [Span(f" {row.mark:<2} {name:<22} ", role), Span(row.text, "dim")]


def account(view: View, width: int, height: int) -> list[Line]:
    """Where the time of a slow token goes, at p99 and, with room for both, at p50."""
    summary = view.target.summary
    if summary is None or not summary.accounts:
        text = " no account: it needs step records, or histograms of gaps and of step durations by kind"
        return section("where a token's time goes", [[Span(text, "dim")]], width, height)
    slow = summary.accounts[-1]
    lines = waterfall(slow.parts, slow.total_seconds, width, height - 1)
    title = f"where a slow token's time goes: {slow.name} ITL {seconds(slow.total_seconds)}"
    return section(title, lines, width, height, slow.basis)
