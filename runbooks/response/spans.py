"""An incident as OpenTelemetry spans: one for the whole run, one child per step, built from the journal's times.

Ids follow from the incident, so that spans that are sent again, because an answer got lost, are the same spans.
"""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from diagnose.units import printable
from probes.otlp import SCOPE, SpanSender, make_resource, span_identifier
from runbooks.response.journal import Incident, StepRow
from runbooks.response.moves import NOT_UNDONE

Attributes = dict[str, str | int | bool | list[str]]
_SAYS = ("headline", "decision", "text", "outcome", "status", "helped", "done", "recording")
"""Of a step's result; a whole diagnosis is no attribute."""


class OtlpExport:
    """Headers, timeout and compression come from OTEL_EXPORTER_OTLP_*."""

    def __init__(self, endpoint: str, instance: str) -> None:
        self._resource = make_resource(_version(), instance)
        self._sender = SpanSender(endpoint)

    def export(self, incident: Incident) -> None:
        """Raises DeliveryFailed."""
        self._sender.send(incident_spans(incident, self._resource))

    def close(self) -> None:
        self._sender.close()


def _version() -> str:
    try:
        return version("stallscope")
    except PackageNotFoundError:
        return "0+source"  # run from a checkout that is not installed


def incident_spans(incident: Incident, resource: Resource) -> list[ReadableSpan]:
    """The run first. A closed incident; its notes, answer and resolved alerts are events of the run."""
    names = (repr(incident.opened), str(incident.incident_id), incident.runbook, incident.target)
    trace_id = span_identifier(16, *names)
    run = _context(trace_id, span_identifier(8, *names))
    failed = (incident.outcome or "").startswith(NOT_UNDONE)
    whole = ReadableSpan(
        name=f"runbook {incident.runbook}",
        context=run,
        resource=resource,
        attributes=_run_attributes(incident),
        events=[Event(printable(name), timestamp=_ns(at)) for name, at in _moments(incident)],
        status=Status(StatusCode.ERROR, incident.outcome) if failed else Status(),
        start_time=_ns(incident.opened),
        end_time=_ns(incident.closed or incident.opened),
        instrumentation_scope=SCOPE,
    )
    steps = [
        _step(step, run, _context(trace_id, span_identifier(8, *names, str(step.step_id))), resource)
        for step in incident.steps
        if step.kind != "note"
    ]
    return [whole, *steps]


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, False, TraceFlags(TraceFlags.SAMPLED))


def _run_attributes(incident: Incident) -> Attributes:
    return {
        "stallscope.incident.id": incident.incident_id,
        "stallscope.incident.outcome": printable(incident.outcome or ""),
        "stallscope.incident.resolved": incident.is_resolved,
        "stallscope.runbook": incident.runbook,
        "stallscope.target": incident.target,
        "stallscope.alerts": sorted({printable(alert.name) for alert in incident.alerts}),
        "stallscope.plan_only": incident.plan_only,
    }


def _moments(incident: Incident) -> Iterator[tuple[str, float]]:
    for alert in incident.alerts:
        if alert.resolved is not None:
            yield f"resolved: {alert.name}", alert.resolved
    for step in incident.steps:
        if step.kind == "note":
            yield step.intent["text"], step.began
    if incident.answer is not None:
        yield (
            f"{'approved' if incident.answer.approved else 'rejected'} by {incident.answer.who}",
            incident.answer.given,
        )


def _step(step: StepRow, run: SpanContext, context: SpanContext, resource: Resource) -> ReadableSpan:
    ended = step.began if step.ended is None else max(step.began, step.ended)
    failed = step.result.get("status") in ("failed", "unknown") or step.result.get("done") is False
    return ReadableSpan(
        name=step.kind,
        context=context,
        parent=run,
        resource=resource,
        attributes=_step_attributes(step),
        status=Status(StatusCode.ERROR, printable(str(step.result.get("text", "")))) if failed else Status(),
        start_time=_ns(step.began),
        end_time=_ns(ended),
        instrumentation_scope=SCOPE,
    )


def _step_attributes(step: StepRow) -> Attributes:
    said: dict[str, Any] = {"why": step.intent.get("why"), **{name: step.result.get(name) for name in _SAYS}}
    return {
        f"stallscope.step.{name}": value if isinstance(value, bool) else printable(str(value))
        for name, value in said.items()
        if value not in (None, "")
    }


def _ns(unix: float) -> int:
    return round(unix * 1e9)
