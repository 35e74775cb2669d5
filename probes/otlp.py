"""OTLP/HTTP: the metric table as metrics, and one span per finished request, both read from the recorder by a thread.

Spans are built at the end, from the stamps of a request's trace: nothing is measured, allocated or sent while it runs. The
ring of traces is the queue, so that a receiver that is down costs no memory: what is overwritten meanwhile is counted.
Endpoint, headers, timeouts and compression come from OTEL_EXPORTER_OTLP_* unless they are given.
"""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import cast

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from probes.catalog import MetricKind
from probes.exports import ExportCounters
from probes.recorder import RequestTrace, RingRecorder
from probes.snapshot import Reading

SPANS_PER_BATCH = 128
ATTEMPTS_PER_BATCH = 5
"""A batch that a receiver refuses that often is given up, so that it does not hold back all others."""
RING, REFUSED, SHUTDOWN = "ring", "refused", "shutdown"
SCOPE = InstrumentationScope("stallscope")
_PROPAGATOR = TraceContextTextMapPropagator()


class DeliveryFailed(Exception):
    """The receiver did not take it; the text is what the SDK's exporter said of it."""


class _Reasons(logging.Handler):
    """An exporter of the SDK returns nothing but a failure and logs why. Here it is kept for the exception instead."""

    def __init__(self, exporter: type) -> None:
        super().__init__(logging.WARNING)
        self._first = ""
        logger = logging.getLogger(exporter.__module__)
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self._first = self._first or " ".join(record.getMessage().split())[:200]

    def take(self) -> str:
        """What was said first since the last call: later words are about retries."""
        text, self._first = self._first, ""
        return text or "no reason given"


_metric_reasons, _span_reasons = _Reasons(OTLPMetricExporter), _Reasons(OTLPSpanExporter)


def make_resource(version: str, engine_id: str) -> Resource:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win."""
    own = {"service.name": "stallscope", "service.version": version, "service.instance.id": engine_id}
    return Resource.create(own).merge(OTELResourceDetector().detect())


class MetricsExport:
    """All of the metric table, cumulative since the engine's start."""

    def __init__(
        self,
        readings: Callable[[], Iterable[Reading]],
        start_unix: float,
        resource: Resource,
        endpoint: str | None = None,
    ) -> None:
        """`endpoint` is the receiver's base URL; None: as the environment says."""
        self.counters = ExportCounters("otlp_metrics")
        self._readings = readings
        self._start_ns = int(start_unix * 1e9)
        self._resource = resource
        self._exporter = OTLPMetricExporter(endpoint=endpoint and f"{endpoint.rstrip('/')}/v1/metrics")

    def export(self) -> None:
        """Raises DeliveryFailed. A failure loses nothing but its point in time: the next one carries the sums."""
        now_ns = time.time_ns()
        metrics = [metric for reading in self._readings() if (metric := _metric(reading, self._start_ns, now_ns))]
        scope = ScopeMetrics(SCOPE, metrics, "")
        result = self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))
        if result is not MetricExportResult.SUCCESS:
            raise DeliveryFailed(_metric_reasons.take())
        self.counters.items += sum(len(metric.data.data_points) for metric in metrics)

    def close(self) -> None:
        self._exporter.shutdown()


def _metric(reading: Reading, start_ns: int, now_ns: int) -> Metric | None:
    """None where there is no series."""
    metric = reading.metric

    def attributes(labels: tuple[str, ...]) -> dict[str, str]:
        return dict(zip(reading.label_names, labels, strict=True))

    data: Sum | Gauge | HistogramData
    if metric.kind is MetricKind.HISTOGRAM:
        points = []
        for labels, histogram in reading.histograms.items():
            counts = list(histogram.counts)
            points.append(
                HistogramDataPoint(
                    attributes=attributes(labels),
                    start_time_unix_nano=start_ns,
                    time_unix_nano=now_ns,
                    count=sum(counts),
                    sum=histogram.sum_ns / 1e9,
                    bucket_counts=counts,
                    explicit_bounds=[bound / 1e9 for bound in histogram.bounds],
                    min=cast(float, None),  # optional on the wire, and not recorded
                    max=cast(float, None),
                )
            )
        data = HistogramData(points, AggregationTemporality.CUMULATIVE)
    else:
        numbers = [
            NumberDataPoint(attributes(labels), start_ns, now_ns, value) for labels, value in reading.numbers.items()
        ]
        if metric.kind is MetricKind.COUNTER:
            data = Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        else:
            data = Gauge(numbers)
    return Metric(metric.wire_name, metric.help, _unit(metric.name), data) if data.data_points else None


def _unit(name: str) -> str:
    """UCUM, from the name's base unit."""
    name = name.removesuffix("_total")
    rates = {"_bytes_per_second": "By/s", "_flops_per_second": "{operation}/s"}
    plain = {"_seconds": "s", "_bytes": "By", "_tokens": "{token}"}
    return next((unit for suffix, unit in (rates | plain).items() if name.endswith(suffix)), "1")


class SpanSender:
    """The SDK's exporter, with failures that say why."""

    def __init__(self, endpoint: str | None = None) -> None:
        """`endpoint` is the receiver's base URL; None: as the environment says."""
        self._exporter = OTLPSpanExporter(endpoint=endpoint and f"{endpoint.rstrip('/')}/v1/traces")

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """Raises DeliveryFailed."""
        if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise DeliveryFailed(_span_reasons.take())

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class SpansExport:
    """One span per finished request, in the order in which they finished."""

    def __init__(
        self,
        recorder: RingRecorder,
        model: str,
        engine_id: str,
        resource: Resource,
        endpoint: str | None = None,
    ) -> None:
        """`endpoint` is the receiver's base URL; None: as the environment says."""
        self.counters = ExportCounters("otlp_spans", lost=Counter({RING: 0, REFUSED: 0, SHUTDOWN: 0}))
        self._recorder = recorder
        self._model = model
        self._engine_id = engine_id
        self._resource = resource
        self._sender = SpanSender(endpoint)
        self._next = 0
        self._attempts = 0

    def export(self) -> None:
        """All that is new, batch by batch. Raises DeliveryFailed; the batch is tried again with the next call."""
        while True:
            found = self._recorder.traces_since(self._next, SPANS_PER_BATCH)
            if not found.traces:
                self._pass(found.next_id, found.lost)
                return
            # Monotonic stamps are placed on the wall clock as it is now.
            offset_ns = time.time_ns() - time.perf_counter_ns()
            spans = list(self._spans(found.traces, offset_ns))
            try:
                if spans:
                    self._sender.send(spans)
            except DeliveryFailed:
                self._attempts += 1
                if self._attempts >= ATTEMPTS_PER_BATCH:
                    self.counters.lost[REFUSED] += len(spans)
                    self._pass(found.next_id, found.lost)
                raise
            self.counters.items += len(spans)
            self._pass(found.next_id, found.lost)

    def close(self) -> None:
        """What has not been delivered by now is lost."""
        left = self._recorder.traces_since(self._next)
        self.counters.lost[SHUTDOWN] += len(left.traces)
        self.counters.lost[RING] += left.lost
        self._next = left.next_id
        self._sender.close()

    def _pass(self, next_id: int, lost: int) -> None:
        self._next, self._attempts = next_id, 0
        self.counters.lost[RING] += lost

    def _spans(self, traces: Iterable[RequestTrace], offset_ns: int) -> Iterator[ReadableSpan]:
        for trace in traces:
            parent = _parent(trace)
            if parent is None or parent.trace_flags.sampled:  # who began the trace decided whether it is kept
                yield request_span(trace, parent, self._model, self._engine_id, self._resource, offset_ns)


def _parent(trace: RequestTrace) -> SpanContext | None:
    """The client's span; None when the request brought no trace context, or a malformed one."""
    origin = trace.origin
    if origin is None or origin.traceparent is None:
        return None
    carrier = {"traceparent": origin.traceparent, "tracestate": origin.tracestate or ""}
    context = get_current_span(_PROPAGATOR.extract(carrier)).get_span_context()
    return context if context.is_valid else None


def request_span(
    trace: RequestTrace, parent: SpanContext | None, model: str, engine_id: str, resource: Resource, offset_ns: int
) -> ReadableSpan:
    """Ids are derived from the request's: a span that is sent again, because the answer got lost, is the same span.

    Further choices of one prompt are children of the first one's span.
    """
    origin = trace.origin
    operation = "chat" if origin is None else origin.operation
    leader = trace.request_id if origin is None else origin.group
    if leader != trace.request_id:
        parent_span_id: int | None = span_identifier(8, engine_id, leader)
    else:
        parent_span_id = None if parent is None else parent.span_id
    trace_id = span_identifier(16, engine_id, leader) if parent is None else parent.trace_id
    flags, state = TraceFlags(TraceFlags.SAMPLED), None if parent is None else parent.trace_state
    failed = trace.finish_reason == "error"
    return ReadableSpan(
        name=f"{operation} {model}",
        context=SpanContext(trace_id, span_identifier(8, engine_id, trace.request_id), False, flags, state),
        parent=None if parent_span_id is None else SpanContext(trace_id, parent_span_id, True, flags, state),
        resource=resource,
        attributes=_attributes(trace, operation, model),
        events=[
            Event(name, timestamp=stamp + offset_ns)
            for name, stamp in (
                ("stallscope.first_scheduled", trace.first_scheduled_ns),
                ("stallscope.first_token", trace.first_token_ns),
            )
            if stamp is not None
        ],
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR, "the engine ended the request with an error") if failed else Status(),
        start_time=trace.arrival_ns + offset_ns,
        end_time=trace.finished_ns + offset_ns,
        instrumentation_scope=SCOPE,
    )


def _attributes(trace: RequestTrace, operation: str, model: str) -> Mapping[str, str | int | float | list[str]]:
    """GenAI conventions (Development); the latencies, in seconds, under the names that vLLM gives them."""
    attributes: dict[str, str | int | float | list[str]] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "stallscope",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.response.id": trace.request_id,
        "gen_ai.response.finish_reasons": [trace.finish_reason],
        "gen_ai.usage.input_tokens": trace.num_prompt_tokens,
        "gen_ai.usage.output_tokens": trace.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": trace.num_cached_tokens,
        "gen_ai.latency.e2e": (trace.finished_ns - trace.arrival_ns) / 1e9,
        "stallscope.preemptions": trace.num_preemptions,
    }
    scheduled, first = trace.first_scheduled_ns, trace.first_token_ns
    if scheduled is not None:
        attributes["gen_ai.latency.time_in_queue"] = (scheduled - trace.arrival_ns) / 1e9
    if scheduled is not None and first is not None:
        attributes["gen_ai.latency.time_to_first_token"] = (first - trace.arrival_ns) / 1e9
        attributes["gen_ai.latency.time_in_model_prefill"] = (first - scheduled) / 1e9
        attributes["gen_ai.latency.time_in_model_decode"] = (trace.finished_ns - first) / 1e9
    if trace.transfer is not None:
        transfer = trace.transfer
        attributes["stallscope.kv_transfer.wait"] = transfer.wait_ns / 1e9
        attributes["stallscope.kv_transfer.bytes"] = transfer.num_bytes
        attributes["stallscope.kv_transfer.chunks"] = transfer.num_chunks
        if transfer.exposed_ns is not None:
            attributes["stallscope.kv_transfer.exposed"] = transfer.exposed_ns / 1e9
        if transfer.failure is not None:
            attributes["stallscope.kv_transfer.failure"] = transfer.failure
    if trace.finish_reason == "error":
        attributes["error.type"] = "engine_error"
    return attributes


def span_identifier(size: int, *names: str) -> int:
    """An id of `size` bytes that is the same for the same names, whenever and however often it is made."""
    digest = hashlib.blake2b("/".join(names).encode(), digest_size=size)
    return int.from_bytes(digest.digest(), "big") or 1  # zero is no id
