"""Prometheus exposition of an engine: one collector over counters, lock sites and a snapshot, read at scrape time."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from probes.catalog import GPU_LABELS, METRICS, MetricKind
from probes.exports import ExportCounters
from probes.gpu import GpuReading, gpu_numbers
from probes.gpu_monitor import GpuMonitor
from probes.locks import Histogram, TimedLock
from probes.recorder import RingRecorder
from probes.records import OpClass
from probes.snapshot import EngineSnapshot, Labels, Reading


class EngineCollector(Collector):
    """Every series of `probes.catalog.METRICS`, and no other. Reads counters and a snapshot: its cost is that of the series.

    Nothing is reset by being read, so that any number of scrapers and exporters see the same.
    """

    def __init__(
        self,
        recorder: RingRecorder,
        lock: TimedLock,
        snapshot: Callable[[], EngineSnapshot],
        gpu: GpuMonitor | None = None,
    ) -> None:
        self._recorder = recorder
        self._lock = lock
        self._snapshot = snapshot
        self._gpu = gpu
        self.exports: Sequence[ExportCounters] = ()
        """Of the exporters that run beside the engine; some of them read this collector, so that it is there first."""

    def readings(self) -> Iterator[Reading]:
        """The catalog's metrics in its order, all of them of one moment."""
        state = self._snapshot()
        numbers, histograms = self._numbers(state), self._histograms(state)
        for name, metric in METRICS.items():
            label_names = tuple(state.info) if metric.kind is MetricKind.INFO else metric.labels
            yield Reading(metric, label_names, numbers.get(name, {}), histograms.get(name, {}))

    def collect(self) -> Iterable[Metric]:
        for reading in self.readings():
            metric = reading.metric
            if metric.kind is MetricKind.HISTOGRAM:
                histogram_family = HistogramMetricFamily(metric.wire_name, metric.help, labels=metric.labels)
                for labels, histogram in reading.histograms.items():
                    histogram_family.add_metric(labels, *_buckets_and_sum(histogram))
                yield histogram_family
                continue
            if metric.labels[: len(GPU_LABELS)] == GPU_LABELS and not reading.numbers:
                continue  # an empty family says zero to its readers; a GPU that is not there says nothing
            kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
            family = kind(metric.wire_name, metric.help, labels=reading.label_names)
            for labels, value in reading.numbers.items():
                family.add_metric(labels, value)
            yield family

    def _histograms(self, state: EngineSnapshot) -> dict[str, dict[Labels, Histogram]]:
        counters, reuse = self._recorder.counters, state.reuse
        sites = self._lock.sites.values()
        return {
            "step_duration_seconds": {(kind,): histogram for kind, histogram in counters.step_duration.items()},
            "scheduler_lock_wait_seconds": {(site.name,): site.wait for site in sites},
            "scheduler_lock_hold_seconds": {(site.name,): site.hold for site in sites},
            "schedule_duration_seconds": {(): counters.schedule},
            "host_gap_seconds": {(): counters.host_gap},
            "time_to_first_token_seconds": {(): counters.time_to_first_token},
            "inter_token_latency_seconds": {(): counters.inter_token_latency},
            "e2e_request_latency_seconds": {(): counters.e2e},
            "queue_time_seconds": {(): counters.queue_time},
            "frontend_delay_seconds": {(): counters.frontend_delay},
            "kv_transfer_seconds": {(): counters.transfer_wire},
            "kv_transfer_exposed_seconds": {(): counters.transfer_exposed},
            "kv_block_residency_seconds": {} if reuse is None else {(): reuse.residency},
            "kv_block_reuse_seconds": {} if reuse is None else {(): reuse.reuse},
            "kv_ghost_age_seconds": {} if reuse is None else {(): reuse.ghost_age},
        }

    def _numbers(self, state: EngineSnapshot) -> dict[str, dict[Labels, float]]:
        counters, sites = self._recorder.counters, self._lock.sites.values()
        gpus = GpuReading(()) if self._gpu is None else self._gpu.latest()
        gpu_errors = 0 if self._gpu is None else self._gpu.probe_errors
        working_set = None if state.reuse is None else state.reuse.working_set_blocks
        return {
            "step_device_seconds_total": {
                (op, kind): sums[index] / 1e9
                for kind, sums in counters.device_ns.items()
                if any(sums)  # nought would say that it was measured
                for index, op in enumerate(OpClass)
            },
            "tokens_total": {
                (p,): counters.tokens[p] for p in ("prefill", "decode", "recompute", "cached", "received")
            },
            "stall_seconds_total": {key: ns / 1e9 for key, ns in list(counters.stall_ns.items())},
            "scheduler_lock_contended_total": {(site.name,): site.contended for site in sites},
            "scheduler_lock_blocked_seconds_total": {
                (site.name, holder): ns / 1e9 for site in sites for holder, ns in list(site.blocked_ns.items())
            },
            "kv_blocks": _by_label(state.census._asdict()),
            "kv_evictions_total": {(): counters.evictions},
            "kv_ghost_hits_total": {(): counters.ghost_hits},
            "kv_working_set_blocks": {} if working_set is None else {(): working_set},
            "prefix_query_tokens_total": {(): state.prefix_query_tokens},
            "prefix_hit_tokens_total": {(): state.prefix_hit_tokens},
            "requests": {
                ("running",): state.num_running,
                ("waiting",): state.num_waiting,
                ("forking",): state.num_forking,
                **({} if state.num_transferring is None else {("transferring",): state.num_transferring}),
            },
            "requests_waiting": _by_label(state.waiting_by_reason),
            "requests_finished_total": _by_label(counters.finished),
            "preemptions_total": {(): counters.preemptions},
            "deferrals_total": _by_label(counters.deferrals),
            "failures_total": _by_label(counters.failures),
            "kv_transfer_bytes_total": _by_label(counters.transfer_bytes),
            "kv_transfer_chunks_total": _by_label(counters.transfer_chunks),
            "kv_transfer_failures_total": _by_label(counters.transfer_failures),
            "probe_errors_total": {(): counters.probe_errors + self._lock.probe_errors + gpu_errors},
            "device_memory_bytes": _by_label(state.memory_bytes),
            "step_device_times_lost_total": {(): counters.lost_device_times},
            "device_bandwidth_bytes_per_second": _if_known(state.bandwidth_bytes_per_second),
            "device_flops_per_second": _if_known(state.flops_per_second),
            "max_batched_tokens": {(): state.max_batched_tokens},
            "max_sequences": {(): state.max_sequences},
            "process_start_time_seconds": {(): state.start_unix},
            "export_items_total": {(export.exporter,): export.items for export in self.exports},
            "export_lost_total": {
                (export.exporter, reason): count
                for export in self.exports
                for reason, count in list(export.lost.items())
            },
            "export_failures_total": {(export.exporter,): export.failures for export in self.exports},
            "engine_info": {tuple(state.info.values()): 1},
            **gpu_numbers(gpus, os.getpid()),
        }


def _buckets_and_sum(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    bounds = [repr(ns / 1e9) for ns in histogram.bounds] + ["+Inf"]
    return list(zip(bounds, map(float, histogram.cumulative()), strict=True)), histogram.sum_ns / 1e9


def _if_known(value: float | None) -> dict[Labels, float]:
    return {} if value is None else {(): value}


def _by_label(counts: Mapping[str, int]) -> dict[Labels, float]:
    # A copy first: the engine's thread may add a label while we read.
    return {(label,): count for label, count in list(counts.items())}


def exposition(collector: Collector) -> bytes:
    """One scrape in text format 0.0.4."""
    return generate_latest(_registry(collector))


def negotiated(collector: Collector, accept: str) -> tuple[bytes, str]:
    """One scrape and its content type, in the format that the `accept` header asks for: text, or OpenMetrics."""
    encode, content_type = choose_encoder(accept)
    return encode(_registry(collector)), content_type


def _registry(collector: Collector) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry
