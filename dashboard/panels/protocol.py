"""What is known and what is missing: the four measurements, the decision's steps, and every verdict with its evidence."""

from dataclasses import dataclass

from dashboard.draw.spans import Line, Span, clip, section, wrap
from dashboard.model.summary import Summary
from dashboard.model.view import View
from dashboard.panels.diagnosis import VERDICT_ROLES, diagnosis_note, verdict_line


@dataclass(frozen=True, slots=True)
class Item:
    """A row that can be selected."""

    head: Line
    details: tuple[tuple[str, str], ...]
    """(text, role), shown when it is selected."""
    command: str
    group: str


def items(view: View) -> list[Item]:
    """Measurements, then the decision's steps, then verdicts."""
    summary = view.target.summary
    if summary is None:
        return []
    found = [*_measurements(summary), *_steps(summary, view.readonly), *_verdicts(summary)]
    needle = view.search.casefold()
    return [item for item in found if not needle or needle in "".join(s.text for s in item.head).casefold()]


def _measurements(summary: Summary) -> list[Item]:
    return [
        Item(
            [
                Span(f" [{'x' if row.done else ' '}] ", "good" if row.done else "warn"),
                Span(f"{row.name:<27}", "title"),
                Span("done  " if row.done else "missing  ", "good" if row.done else "warn"),
                Span(row.found, "dim"),
            ],
            ((row.found, ""),),
            row.command,
            "protocol: the four measurements",
        )
        for row in summary.protocol
    ]


def _steps(summary: Summary, readonly: bool) -> list[Item]:
    group = f"decision: {summary.decision}"
    head: Line = [Span(f" {summary.decision_text}", "warn")]
    details = ((summary.trade, "dim"),) if summary.trade else ()
    found = [Item(head, details, "", group)]
    for number, step in enumerate(summary.steps, 1):
        hidden = readonly and step.changes_target
        note = "left out with --readonly" if hidden else step.command
        line: Line = [Span(f" {number}. ", "title"), Span(step.text, ""), Span(f"  {note}", "dim")]
        found.append(Item(line, (), "" if hidden else step.command, group))
    return found


def _verdicts(summary: Summary) -> list[Item]:
    found = []
    for row in summary.verdicts:
        role = VERDICT_ROLES[row.verdict]
        evidence = tuple((text, role if text[:1] in "+?" else "") for text in row.evidence)
        lacks = tuple((f"? lacks {what}", "warn") for what, _ in row.missing)
        command = next((command for _, command in row.missing if command), f"stallscope explain {row.name}")
        found.append(Item(verdict_line(row), (*evidence, *lacks), command, "verdicts"))
    return found


def selected_command(view: View) -> str:
    """Of the selected row; empty where it has none."""
    rows = items(view)
    return rows[min(view.table.selected, len(rows) - 1)].command if rows else ""


def draw(view: View, width: int, height: int) -> list[Line]:
    rows = items(view)
    if not rows:
        text = "nothing matches the filter" if view.search else "no diagnosis yet"
        return section("protocol", [[Span(f" {text}", "dim")]], width, height)
    table = view.table
    table.move(0, len(rows))
    lines: list[tuple[str, int | None]] = []
    group, selected_at = "", 0
    for place, item in enumerate(rows):
        if item.group != group:
            group = item.group
            lines.append((group, None))
        if place == table.selected:
            selected_at = len(lines)
        lines.append(("", place))
    return _window(view, rows, _expanded(rows, lines, table.selected, width), selected_at, width, height)


def _expanded(rows: list[Item], lines: list[tuple[str, int | None]], selected: int, width: int) -> list[Line | str]:
    """Titles as text, rows as lines; below the selected row its details and its command."""
    found: list[Line | str] = []
    for title, place in lines:
        if place is None:
            found.append(title)
            continue
        head = clip(rows[place].head, width)
        if place == selected:
            text = "".join(span.text for span in head)
            found.append([Span(f"{text:<{width}}"[:width], "selected")])
            for detail, role in rows[place].details:
                found += wrap(detail, width - 1, 3, role, lead="     ", indent="       ")
            if rows[place].command:
                found.append([Span(f"     $ {rows[place].command}", "command", "copy_command")])
        else:
            found.append([Span(span.text, span.role, f"select({place})") for span in head])
    return found


def _window(
    view: View, rows: list[Item], lines: list[Line | str], selected_at: int, width: int, height: int
) -> list[Line]:
    """The part around the selected row."""
    details = 1 + sum(1 for _ in rows[view.table.selected].details)
    top = max(0, min(selected_at - 2, len(lines) - height)) if selected_at + details >= height else 0
    shown: list[Line] = []
    for line in lines[top : top + height]:
        if isinstance(line, str):
            note = diagnosis_note(view) if line.startswith("protocol") else ""
            shown += section(line, [], width, 1, note)
        else:
            shown.append(clip(line, width))
    return shown
