"""Metrics and request spans over OTLP, decoded by a receiver of their own; a receiver that is down, slow or refuses."""

import re
import socket

import pytest

from probes.catalog import METRICS, MetricKind
from probes.otlp import ATTEMPTS_PER_BATCH, DeliveryFailed, MetricsExport, SpansExport, make_resource
from probes.recorder import RequestOrigin, RequestTrace, RingRecorder
from tests.probes.otlp_receiver import attributes, receiving
from tests.probes.test_prometheus import busy_collector

S = 10**9
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
RESOURCE = make_resource("1.2", "engine-1")


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch):
    """The SDK's exporter tries a failing receiver again for as long as this."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")


@pytest.fixture
def receiver():
    with receiving() as receiver:
        yield receiver


def trace(name: str = "chatcmpl-1", origin: RequestOrigin | None = None, **fields: object) -> RequestTrace:
    whole = RequestTrace(name, 1 * S, 2 * S, 4 * S, 9 * S, 100, 32, 20, 1, "stop", origin)
    return whole._replace(**fields)  # type: ignore[arg-type]


def spans_export(url: str, *traces: RequestTrace, **ring: int) -> SpansExport:
    recorder = RingRecorder(**ring)
    for one in traces:
        recorder.on_request_finished(one)
    return SpansExport(recorder, "tiny", "engine-1", RESOURCE, url)


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_request_is_one_span_with_its_timings(receiver):
    spans_export(receiver.url, trace(origin=RequestOrigin("chat", "chatcmpl-1"))).export()
    (span,) = receiver.spans
    assert span.name == "chat tiny"
    assert span.kind == span.SPAN_KIND_SERVER
    assert span.end_time_unix_nano - span.start_time_unix_nano == 8 * S
    assert span.parent_span_id == b""
    assert attributes(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "stallscope",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 32,
        "gen_ai.latency.time_in_queue": 1.0,
        "gen_ai.latency.time_to_first_token": 3.0,
        "gen_ai.latency.time_in_model_prefill": 2.0,
        "gen_ai.latency.time_in_model_decode": 5.0,
        "gen_ai.latency.e2e": 8.0,
        "stallscope.preemptions": 1,
    }
    stamps = {event.name: event.time_unix_nano - span.start_time_unix_nano for event in span.events}
    assert stamps == {"stallscope.first_scheduled": 1 * S, "stallscope.first_token": 3 * S}
    assert receiver.resources == [attributes_of_resource()]


def attributes_of_resource() -> dict[str, object]:
    return dict(RESOURCE.attributes)


def test_stamps_are_placed_on_the_wall_clock(receiver, monkeypatch):
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_100 * S)
    monkeypatch.setattr("time.perf_counter_ns", lambda: 50 * S)
    spans_export(receiver.url, trace()).export()
    assert receiver.spans[0].start_time_unix_nano == 1_700_000_051 * S


def test_a_client_trace_is_continued(receiver):
    origin = RequestOrigin("chat", "chatcmpl-1", f"00-{TRACE_ID}-{PARENT_ID}-01", "vendor=x")
    spans_export(receiver.url, trace(origin=origin)).export()
    (span,) = receiver.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (TRACE_ID, PARENT_ID, "vendor=x")


def test_who_began_the_trace_decided_that_it_is_not_kept(receiver):
    unsampled = RequestOrigin("chat", "chatcmpl-1", f"00-{TRACE_ID}-{PARENT_ID}-00")
    export = spans_export(receiver.url, trace(origin=unsampled), trace("chatcmpl-2"))
    export.export()
    assert [attributes(span)["gen_ai.response.id"] for span in receiver.spans] == ["chatcmpl-2"]
    assert (export.counters.items, +export.counters.lost) == (1, {})


@pytest.mark.parametrize("header", ["nonsense", f"00-{'0' * 32}-{PARENT_ID}-01", f"00-{TRACE_ID}", "ü", ""])
def test_a_malformed_trace_context_begins_a_new_trace(receiver, header):
    spans_export(receiver.url, trace(origin=RequestOrigin("chat", "chatcmpl-1", header))).export()
    assert receiver.spans[0].parent_span_id == b""


def test_further_choices_are_children_of_the_first(receiver):
    origin = RequestOrigin("text_completion", "cmpl-1", f"00-{TRACE_ID}-{PARENT_ID}-01")
    spans_export(receiver.url, trace("cmpl-1/1", origin), trace("cmpl-1", origin)).export()
    second, first = receiver.spans
    assert first.name == "text_completion tiny"
    assert first.trace_id == second.trace_id
    assert second.parent_span_id == first.span_id != second.span_id


def test_a_request_that_never_ran_and_one_that_failed(receiver):
    nothing = trace("a", first_scheduled_ns=None, first_token_ns=None, num_output_tokens=0, finish_reason="abort")
    spans_export(receiver.url, nothing, trace("b", first_token_ns=None, finish_reason="error")).export()
    aborted, failed = receiver.spans
    assert list(aborted.events) == []
    assert [key for key in attributes(aborted) if "latency" in key] == ["gen_ai.latency.e2e"]
    assert aborted.status.code == aborted.status.STATUS_CODE_UNSET, "the client left: nobody failed"
    assert failed.status.code == failed.status.STATUS_CODE_ERROR
    assert attributes(failed)["error.type"] == "engine_error"
    assert "gen_ai.latency.time_to_first_token" not in attributes(failed)


def test_every_span_comes_once(receiver):
    recorder = RingRecorder()
    export = SpansExport(recorder, "tiny", "engine-1", RESOURCE, receiver.url)
    for number in range(1200):
        recorder.on_request_finished(trace(f"r{number}"))
        if number in (0, 700):
            export.export()
    export.export()
    export.export()
    assert [attributes(span)["gen_ai.response.id"] for span in receiver.spans] == [f"r{n}" for n in range(1200)]
    assert len({span.span_id for span in receiver.spans}) == 1200
    assert export.counters.items == 1200


def test_a_receiver_that_is_down_costs_nothing_until_the_ring_is_full():
    """What waits is the ring: bounded, its losses counted; what is still held arrives later, as the same spans."""
    url = closed_port()
    recorder = RingRecorder(trace_capacity=8)
    export = SpansExport(recorder, "tiny", "engine-1", RESOURCE, url)
    for number in range(5):
        recorder.on_request_finished(trace(f"r{number}"))
    with pytest.raises(DeliveryFailed, match="Failed to export spans"):
        export.export()
    assert (export.counters.items, +export.counters.lost) == (0, {})
    for number in range(5, 12):
        recorder.on_request_finished(trace(f"r{number}"))
    with receiving(int(url.rpartition(":")[2])) as receiver:
        export.export()
        assert [attributes(span)["gen_ai.response.id"] for span in receiver.spans] == [f"r{n}" for n in range(4, 12)]
    assert (export.counters.items, +export.counters.lost) == (8, {"ring": 4})


def test_a_batch_that_is_always_refused_does_not_hold_back_the_others(receiver):
    export = spans_export(receiver.url, trace("a"), trace("b"))
    receiver.status = 400
    for _ in range(ATTEMPTS_PER_BATCH):
        with pytest.raises(DeliveryFailed, match="400"):
            export.export()
    assert receiver.asked == ATTEMPTS_PER_BATCH, "400 is not tried again at once"
    assert +export.counters.lost == {"refused": 2}
    receiver.status = 200
    export.export()
    assert receiver.spans == []


def test_a_receiver_that_is_overloaded_gets_it_later(receiver):
    export = spans_export(receiver.url, trace())
    receiver.status = 503
    with pytest.raises(DeliveryFailed, match=r"Failed to export spans|Service Unavailable"):
        export.export()
    receiver.status = 200
    export.export()
    assert len(receiver.spans) == 1
    assert (export.counters.items, +export.counters.lost) == (1, {})


def test_a_slow_receiver_is_given_up_on_in_time(receiver):
    export = spans_export(receiver.url, trace())
    receiver.let_go.clear()
    with pytest.raises(DeliveryFailed):
        export.export()


def test_what_was_never_delivered_is_counted_at_the_end():
    export = spans_export(closed_port(), trace("a"), trace("b"), trace("c"), trace_capacity=2)
    export.close()
    assert +export.counters.lost == {"shutdown": 2, "ring": 1}


def test_metrics_are_the_table_of_the_catalog(receiver):
    collector = busy_collector()
    export = MetricsExport(collector.readings, 1.0, RESOURCE, receiver.url)
    export.export()
    (metrics,) = receiver.metrics
    assert set(metrics) == {metric.wire_name for metric in METRICS.values()}
    for metric in METRICS.values():
        found = metrics[metric.wire_name]
        kind = found.WhichOneof("data")
        assert kind == {MetricKind.COUNTER: "sum", MetricKind.HISTOGRAM: "histogram"}.get(metric.kind, "gauge")
        assert found.description == metric.help
        points = getattr(found, kind).data_points
        assert points
        if metric.kind is not MetricKind.INFO:
            assert all(set(attributes(point)) == set(metric.labels) for point in points)
        if kind == "sum":
            assert found.sum.is_monotonic and found.sum.aggregation_temporality == 2
    assert export.counters.items > 50


def test_a_histogram_keeps_its_buckets(receiver):
    collector = busy_collector()
    MetricsExport(collector.readings, 1.0, RESOURCE, receiver.url).export()
    found = receiver.metrics[0]["stallscope_time_to_first_token_seconds"]
    (point,) = found.histogram.data_points
    histogram = collector._recorder.counters.time_to_first_token
    assert found.unit == "s"
    assert list(point.bucket_counts) == histogram.counts
    assert list(point.explicit_bounds) == [bound / 1e9 for bound in histogram.bounds]
    assert (point.count, point.sum, point.start_time_unix_nano) == (histogram.count, histogram.sum_ns / 1e9, S)
    assert not point.HasField("min")


def test_units_follow_the_names(receiver):
    MetricsExport(busy_collector().readings, 1.0, RESOURCE, receiver.url).export()
    units = {name.removeprefix("stallscope_"): metric.unit for name, metric in receiver.metrics[0].items()}
    assert units["step_device_seconds_total"] == "s"
    assert units["device_memory_bytes"] == "By"
    assert units["device_bandwidth_bytes_per_second"] == "By/s"
    assert units["prefix_hit_tokens_total"] == "{token}"
    assert units["preemptions_total"] == "1"


def test_a_failed_delivery_of_metrics_loses_nothing_but_its_moment(receiver):
    export = MetricsExport(busy_collector().readings, 1.0, RESOURCE, receiver.url)
    receiver.status = 400
    with pytest.raises(DeliveryFailed, match="400"):
        export.export()
    receiver.status = 200
    export.export()
    assert len(receiver.metrics) == 1
    assert +export.counters.lost == {}


def test_the_environment_names_the_service_and_the_receiver(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat-eu")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    recorder = RingRecorder()
    recorder.on_request_finished(trace())
    SpansExport(recorder, "tiny", "engine-1", make_resource("1.2", "engine-1")).export()
    (resource,) = receiver.resources
    assert resource["service.name"] == "chat-eu"
    assert resource["deployment.environment.name"] == "test"
    assert (resource["service.version"], resource["service.instance.id"]) == ("1.2", "engine-1")


def test_names_without_environment():
    assert re.fullmatch("stallscope", str(RESOURCE.attributes["service.name"]))
