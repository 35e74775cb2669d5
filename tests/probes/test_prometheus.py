"""The exposition holds the series of the catalog, every one of them and no other."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from prometheus_client.core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from probes.catalog import BLOCK_AGE_BOUNDS_NS, METRICS, PREFIX, Metric, MetricKind
from probes.exports import ExportCounters
from probes.gpu import GpuReading, GpuSample, GpuState
from probes.locks import NOBODY, Histogram, TimedLock
from probes.prometheus import EngineCollector, exposition, negotiated
from probes.recorder import COUNTED_TOGETHER, RequestTrace, RingRecorder, StepSlice
from probes.records import BlockCensus, DeviceTime, StepKind
from probes.snapshot import EngineSnapshot, ReuseSnapshot
from tests.probes.gpus import IDENTITY, FixedMonitor, whole_gpu
from tests.probes.records import make_record

SUFFIXES = {MetricKind.HISTOGRAM: ("_bucket", "_count", "_sum")}


def ages(seconds: int) -> Histogram:
    histogram = Histogram(BLOCK_AGE_BOUNDS_NS)
    histogram.observe(seconds * 10**9)
    return histogram


def busy_collector() -> EngineCollector:
    """An engine in which everything has happened once, so that every series exists."""
    recorder, lock = RingRecorder(), TimedLock()
    site = lock.site("schedule")
    with site:
        pass
    site.contended += 1
    site.blocked_ns[NOBODY] += 500_000_000
    recorder.on_step(make_record(0, num_regular_gaps=1, device_ns=DeviceTime(1), late_gaps_ns=(1,)))
    recorder.on_step(
        make_record(
            1, kind=StepKind.MIXED, forward_ns=10**9, deferral="kv_blocks", num_deferred=1, host_gap_ns=1, ghost_hits=7
        )
    )
    recorder.on_first_scheduled(1)
    recorder.on_first_token(1)
    recorder.on_request_finished(RequestTrace("r", 0, 1, 2, 3, 1, 0, 1, 0, "stop"))
    recorder.on_failure("oom")
    snapshot = EngineSnapshot(
        census=BlockCensus(1, 2, 3),
        num_running=1,
        num_waiting=2,
        num_forking=1,
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
        reuse=ReuseSnapshot(
            residency=ages(2 * 3600),
            reuse=ages(1),
            ghost_age=ages(60),
            num_ghosts=3,
            working_set_blocks=1450,
            working_set_window_seconds=300.0,
        ),
    )
    collector = EngineCollector(recorder, lock, lambda: snapshot, FixedMonitor(GpuReading((whole_gpu(),))))
    collector.exports = [ExportCounters("recording", 5, Counter(disk=1), 2)]
    return collector


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
    assert samples[PREFIX + "kv_block_residency_seconds_sum", ()] == 7200
    assert samples[PREFIX + "kv_working_set_blocks", ()] == 1450
    assert samples[PREFIX + "kv_ghost_hits_total", ()] == 7
    assert samples[PREFIX + "scheduler_lock_contended_total", ("schedule",)] == 1
    assert samples[PREFIX + "scheduler_lock_blocked_seconds_total", ("nobody", "schedule")] == 0.5
    assert samples[PREFIX + "gpu_memory_bytes", ("0", "this_process", "GPU-a")] == 1
    assert samples[PREFIX + "gpu_throttled_seconds_total", ("0", "thermal", "GPU-a")] == 1e-9
    assert samples[PREFIX + "gpu_lost", ("0", "GPU-a")] == 0


def test_faults_of_every_probe_are_shown():
    collector = busy_collector()
    collector._recorder.counters.probe_errors = 1
    collector._lock.probe_errors = 10
    assert collector._gpu is not None
    collector._gpu.probe_errors = 100
    assert "stallscope_probe_errors_total 111.0" in exposition(collector).decode()


@pytest.mark.parametrize(
    ("gpu", "shown"),
    [
        (None, set()),
        (FixedMonitor(GpuReading((), "no NVIDIA driver")), set()),
        (FixedMonitor(GpuReading((GpuSample(state=GpuState.LOST, **IDENTITY),))), {"gpu_lost"}),
    ],
)
def test_a_gpu_that_says_nothing_has_no_figures(gpu, shown):
    collector = busy_collector()
    collector._gpu = gpu
    lines = [line for line in exposition(collector).decode().splitlines() if PREFIX + "gpu_" in line]
    lines = [line for line in lines if not line.startswith(("# HELP ", "# TYPE ")) or not shown]
    assert {line.partition("{")[0].removeprefix(PREFIX) for line in lines} == shown
    assert not shown or lines == ['stallscope_gpu_lost{gpu="0",uuid="GPU-a"} 1.0']


def test_histograms_have_the_bounds_of_the_catalog():
    """Blocks live for hours: latency bounds would put all of them beyond the last one."""
    text = exposition(busy_collector()).decode()
    found: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                labels = tuple(value for name, value in sample.labels.items() if name != "le")
                found.setdefault(f"{family.name}{labels}", []).append(float(sample.labels["le"]))
    for metric in METRICS.values():
        if metric.kind is MetricKind.HISTOGRAM:
            series = [bounds for name, bounds in found.items() if name.startswith(metric.wire_name + "(")]
            assert series
            assert all(bounds == [*metric.bounds, float("inf")] for bounds in series)


def test_names_follow_the_conventions():
    for metric in METRICS.values():
        assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total")
        assert not metric.name.endswith(("_ms", "_ns", "_mb", "_percent"))
        assert metric.help.endswith(".") or metric.help.endswith("value 1.")


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"bandwidth_bytes_per_second": None}, ["bandwidth"]),
        ({"reuse": None}, ["residency", "block_reuse", "ghost_age", "working_set"]),
    ],
)
def test_what_is_not_measured_is_absent_not_zero(change: dict[str, None], missing: list[str]):
    collector = busy_collector()
    snapshot = collector._snapshot()
    values = {name: getattr(snapshot, name) for name in snapshot.__dataclass_fields__}
    collector._snapshot = lambda: EngineSnapshot(**(values | change))
    lines = [line for line in exposition(collector).decode().splitlines() if not line.startswith("#")]
    assert not any(name in line for line in lines for name in missing)


def test_without_reuse_there_is_no_working_set():
    collector = busy_collector()
    reuse = collector._snapshot().reuse
    assert reuse is not None
    unused = replace(collector._snapshot(), reuse=replace(reuse, working_set_blocks=None))
    collector._snapshot = lambda: unused
    assert "\nstallscope_kv_working_set_blocks" not in exposition(collector).decode()


def test_an_unmeasured_ceiling_is_absent_not_zero():
    collector = busy_collector()
    snapshot = collector._snapshot()
    values = {name: getattr(snapshot, name) for name in snapshot.__dataclass_fields__}
    collector._snapshot = lambda: EngineSnapshot(
        **(values | {"bandwidth_bytes_per_second": None, "flops_per_second": None})
    )
    lines = [line for line in exposition(collector).decode().splitlines() if not line.startswith("#")]
    assert not any("bandwidth" in line or "flops" in line for line in lines)


def test_scrapers_do_not_rob_each_other():
    """Counters only grow, and nothing is reset by being read: a second scraper sees what the first one saw."""
    collector = busy_collector()
    assert exposition(collector) == exposition(collector)
    assert negotiated(collector, "")[0] == exposition(collector)


class WatchedRing(RingRecorder):
    """Notes how many records are read at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []

    def steps_since(self, since: int, limit: int | None = None) -> StepSlice:
        found = super().steps_since(since, limit)
        self.read.append(len(found.records))
        return found


def test_a_scrape_reads_counters_and_no_records_but_the_few_that_are_not_counted_yet():
    """Its cost is that of the series, whatever the ring holds."""
    collector = busy_collector()
    before = exposition(collector).count(b"\n")
    collector._recorder = recorder = WatchedRing()
    for step in range(3000):
        recorder.on_step(make_record(step))
    assert exposition(collector).count(b"\n") <= before
    assert sum(recorder.read) == 3000
    assert max(recorder.read) <= COUNTED_TOGETHER


TEXT = "text/plain"
OPEN_METRICS = "application/openmetrics-text"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain;version=0.0.4, */*;q=0.1", TEXT),
        ("application/openmetrics-text; version=1.0.0", OPEN_METRICS),
        (
            "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            OPEN_METRICS,
        ),
        ("application/json", TEXT),
    ],
)
def test_the_format_is_what_was_asked_for(accept: str, kind: str):
    page, content_type = negotiated(busy_collector(), accept)
    assert content_type.startswith(kind)
    assert page.endswith(b"# EOF\n") == (kind == OPEN_METRICS)


def test_openmetrics_holds_the_same_samples():
    """Read by the official parser of that format."""
    collector = busy_collector()
    strict, _ = negotiated(collector, "application/openmetrics-text; version=1.0.0")

    def values(families: Iterable[Family]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}

    text = values(text_string_to_metric_families(exposition(collector).decode()))
    assert values(openmetrics_families(strict.decode())) == text  # type: ignore[no-untyped-call]
