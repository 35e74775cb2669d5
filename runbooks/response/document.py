"""The document of an incident: what was seen, what was done, what came of it, and what is still unknown."""

from datetime import UTC, datetime
from typing import Any

from diagnose.report.document import document
from diagnose.report.markup import element
from diagnose.units import printable
from runbooks.response.journal import Incident, StepRow

_NAMES = {
    "look": "Looked",
    "decide": "Decided",
    "ask": "Asked",
    "act": "Acted",
    "verify": "Verified",
    "undo": "Undone",
    "note": "Note",
}
Section = tuple[str, list[str]]


def sections(incident: Incident) -> list[Section]:
    """Title and lines. Plain text."""
    look = _result(incident, "look")
    diagnosis = look.get("diagnosis") or {}
    return [
        ("Outcome", [_printable(incident.outcome or "under way")]),
        ("Alerts", [_alert(alert.name, alert.labels, alert.starts_at, alert.resolved) for alert in incident.alerts]),
        ("Timeline", _timeline(incident)),
        ("Evidence", _evidence(look, diagnosis)),
        ("Account of a slow token", _account(diagnosis)),
        ("Still unknown", _unknown(look, diagnosis)),
        ("Next", [_printable(step) for step in look.get("steps", [])]),
    ]


def to_markdown(incident: Incident) -> str:
    lines = [f"# Incident {incident.incident_id}: {incident.runbook} on {incident.target}", ""]
    for title, items in sections(incident):
        if items:
            lines += [f"## {title}", "", *(f"- {item}" for item in items), ""]
    return "\n".join(lines)


def to_html(incident: Incident) -> str:
    title = f"Incident {incident.incident_id}: {incident.runbook} on {incident.target}"
    parts = [
        element("section", element("h2", name), element("ul", *(element("li", item) for item in items)))
        for name, items in sections(incident)
        if items
    ]
    return document(title, element("header", element("h1", title)), element("main", *parts))


def head_fields(incident: Incident) -> dict[str, object]:
    return {
        "id": incident.incident_id,
        "runbook": incident.runbook,
        "target": incident.target,
        "opened_unix": incident.opened,
        "closed_unix": incident.closed,
        "outcome": incident.outcome,
        "plan_only": incident.plan_only,
    }


def incident_fields(incident: Incident) -> dict[str, object]:
    answer = incident.answer
    return {
        **head_fields(incident),
        "alerts": [
            {
                "name": alert.name,
                "fingerprint": alert.fingerprint,
                "labels": alert.labels,
                "annotations": alert.annotations,
                "starts_at": alert.starts_at,
                "received_unix": alert.received,
                "resolved_unix": alert.resolved,
            }
            for alert in incident.alerts
        ],
        "steps": [
            {
                "kind": step.kind,
                "began_unix": step.began,
                "ended_unix": step.ended,
                "intent": step.intent,
                "result": step.result,
            }
            for step in incident.steps
        ],
        "answer": None
        if answer is None
        else {"approved": answer.approved, "who": answer.who, "given_unix": answer.given},
    }


def _result(incident: Incident, kind: str) -> dict[str, Any]:
    step = incident.last(kind)
    return {} if step is None else step.result


def _alert(name: str, labels: dict[str, str], starts_at: str, resolved: float | None) -> str:
    others = ", ".join(f"{key}={value}" for key, value in sorted(labels.items()) if key != "alertname")
    end = "firing" if resolved is None else f"resolved {_time(resolved)}"
    return _printable(f"{name} ({others}) since {starts_at}; {end}")


def _timeline(incident: Incident) -> list[str]:
    lines = [(incident.opened, "Opened")]
    lines += [(step.began, _step(step)) for step in incident.steps]
    if incident.answer is not None:
        word = "Approved" if incident.answer.approved else "Rejected"
        lines.append((incident.answer.given, f"{word} by {incident.answer.who}"))
    lines += [(a.resolved, f"Resolved: {a.name}") for a in incident.alerts if a.resolved is not None]
    if incident.closed is not None:
        lines.append((incident.closed, "Closed"))
    return [f"{_time(at)} {_printable(text)}" for at, text in sorted(lines, key=lambda line: line[0])]


def _step(step: StepRow) -> str:
    result = step.result
    said = result.get("headline") or result.get("text") or result.get("outcome") or step.intent.get("text", "")
    if step.kind == "act" and "status" in result:
        said = f"{step.intent.get('text', '')}: {result['status']}: {said}"
    if step.ended is None:
        said = f"{said} (began, and has not ended)".strip()
    why = f" because {step.intent['why']}" if step.intent.get("why") else ""
    return f"{_NAMES[step.kind]}{why}: {said}"


def _evidence(look: dict[str, Any], diagnosis: dict[str, Any]) -> list[str]:
    lines = []
    for name, verdict in diagnosis.get("verdicts", {}).items():
        if verdict["verdict"] in ("supported", "confirmed"):
            told = "; ".join(item["text"] for item in verdict["evidence"])
            lines.append(_printable(f"{name} is {verdict['verdict']}: {told}"))
    lines += [_printable(f"warning: {text}") for text in look.get("warnings", [])]
    if look.get("recording"):
        lines.append(_printable(f"the look is kept: stallscope diagnose {look['recording']}"))
    return lines or [_printable(look["summary"])] if look else []


def _account(diagnosis: dict[str, Any]) -> list[str]:
    account = (diagnosis.get("account") or {}).get("p99")
    if not account:
        return []
    parts = sorted(account["parts"].items(), key=lambda part: -part[1])
    told = " + ".join(f"{value * 1e3:.1f} {name}" for name, value in parts if value * 1e3 >= 0.05)
    return [f"p99 {account['total_seconds'] * 1e3:.1f} ms = {told} ({account['basis']})"]


def _unknown(look: dict[str, Any], diagnosis: dict[str, Any]) -> list[str]:
    lines = [
        _printable(f"{name}: {item['measurement']}: {item['command']}")
        for name, verdict in diagnosis.get("verdicts", {}).items()
        if verdict["verdict"] == "undetermined"
        for item in verdict["missing"][:1]
    ]
    if look.get("decision") in ("contain", "experiment"):
        lines.append("the cause is not confirmed: only a controlled comparison would do that (`stallscope experiment`)")
    return lines


def _time(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _printable(text: str) -> str:
    return printable(" ".join(text.split()))
