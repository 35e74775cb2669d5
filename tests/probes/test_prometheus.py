"""The exposition holds the series of the catalog, every one of them and no other."""

from prometheus_client.parser import text_string_to_metric_families

from probes.catalog import LATENCY_BOUNDS_SECONDS, METRICS, PREFIX, Metric, MetricKind
from probes.locks import TimedLock
from probes.prometheus import EngineCollector, exposition
from probes.recorder import RequestTrace, RingRecorder
from probes.records import BlockCensus, DeviceTime, StepKind
from probes.snapshot import EngineSnapshot
from tests.probes.records import make_record

SUFFIXES = {MetricKind.HISTOGRAM: ("_bucket", "_count", "_sum")}


def busy_collector() -> EngineCollector:
    """An engine in which everything has happened once, so that every series exists."""
    recorder, lock = RingRecorder(), TimedLock()
    with lock.site("schedule"):
        pass
    recorder.on_step(make_record(0, num_regular_gaps=1, device_ns=DeviceTime(1), late_gaps_ns=(1,)))
    recorder.on_step(
        make_record(1, kind=StepKind.MIXED, forward_ns=10**9, deferral="kv_blocks", num_deferred=1, host_gap_ns=1)
    )
    recorder.on_first_scheduled(1)
    recorder.on_first_token(1)
    recorder.on_request_finished(RequestTrace("r", 0, 1, 2, 3, 1, 0, 1, 0, "stop"))
    recorder.on_failure("oom")
    snapshot = EngineSnapshot(
        census=BlockCensus(1, 2, 3),
        num_running=1,
        num_waiting=2,
        waiting_by_reason={"kv_blocks": 2},
        prefix_query_tokens=10,
        prefix_hit_tokens=5,
        max_batched_tokens=512,
        max_sequences=64,
        memory_bytes={"total": 4, "reserved": 3, "weights": 1, "kv_pool": 2},
        bandwidth_bytes_per_second=1e9,
        flops_per_second=2e9,
        start_unix=1.0,
        info={"version": "1", "model": 'quo"ted'},
    )
    return EngineCollector(recorder, lock, lambda: snapshot)


def expected_series(metric: Metric) -> set[str]:
    return {metric.wire_name + suffix for suffix in SUFFIXES.get(metric.kind, ("",))}


def test_catalog_and_exposition_are_the_same_set():
    text = exposition(busy_collector()).decode()
    found = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    assert found == set().union(*(expected_series(metric) for metric in METRICS.values()))


def test_labels_and_kinds_are_those_of_the_catalog():
    by_series = {name: metric for metric in METRICS.values() for name in expected_series(metric)}
    for family in text_string_to_metric_families(exposition(busy_collector()).decode()):
        for sample in family.samples:
            metric = by_series[sample.name]
            labels = set(sample.labels) - {"le"}
            assert metric.kind is MetricKind.INFO or labels == set(metric.labels)
            assert family.type == ("gauge" if metric.kind is MetricKind.INFO else metric.kind)
            assert family.documentation == metric.help


def test_values_are_in_base_units():
    text = exposition(busy_collector()).decode()
    samples = {
        (s.name, tuple(s.labels.values())): s.value for f in text_string_to_metric_families(text) for s in f.samples
    }
    assert samples[PREFIX + "step_duration_seconds_sum", ("decode",)] == 0.01
    assert samples[PREFIX + "kv_blocks", ("reclaimable",)] == 2
    assert samples[PREFIX + "engine_info", ('quo"ted', "1")] == 1
    bounds = [labels[-1] for name, labels in samples if name == PREFIX + "host_gap_seconds_bucket"]
    assert [float(bound) for bound in bounds[:-1]] == list(LATENCY_BOUNDS_SECONDS)


def test_names_follow_the_conventions():
    for metric in METRICS.values():
        assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total")
        assert not metric.name.endswith(("_ms", "_ns", "_mb", "_percent"))
        assert metric.help.endswith(".") or metric.help.endswith("value 1.")


def test_an_unmeasured_ceiling_is_absent_not_zero():
    collector = busy_collector()
    snapshot = collector._snapshot()
    values = {name: getattr(snapshot, name) for name in snapshot.__dataclass_fields__}
    collector._snapshot = lambda: EngineSnapshot(
        **(values | {"bandwidth_bytes_per_second": None, "flops_per_second": None})
    )
    lines = [line for line in exposition(collector).decode().splitlines() if not line.startswith("#")]
    assert not any("bandwidth" in line or "flops" in line for line in lines)
