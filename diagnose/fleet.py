"""Several replicas of one service as one target: the sum of what they did, with each of them kept beside it.

Each replica's window was read by itself, so that the restart of one does not look like a fall of the sum.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from diagnose.signals import Counter, Gauge, HistogramWindow, Signals

_Value = TypeVar("_Value")

_SUMMED = frozenset(
    {
        "running",
        "waiting",
        "waiting_blocks",
        "waiting_sequences",
        "waiting_capacity",
        "waiting_upstream",
        "waiting_transfer",
        "swapped",
        "paused",
        "pool_reserved",
        "decode_context",
        "kv_tokens",
        "streams_before_prefill",
        "blocks_active",
        "blocks_reclaimable",
        "blocks_free",
        "pool_blocks",
        "pool_tokens",
        "working_set_blocks",
        "device_memory_total",
        "device_memory_reserved",
        "max_sequences",
    }
)
"""Of the other levels (shares, sizes, temperatures) the highest of all replicas counts,"""
_LOWEST = frozenset({"gpu_sm_clock", "gpu_sm_clock_limit", "gpu_memory_clock", "gpu_busy", "gpu_active"})
"""and of these the lowest."""
_OF_ONE = frozenset({"start_time", "bandwidth_ceiling", "flops_ceiling"})
"""Means nothing of several."""


def join(replicas: Mapping[str, Signals]) -> Signals:
    """At least two replicas of one dialect, by name. Step records, stacks and traces are of one each, and are left out."""
    each = list(replicas.values())
    first = each[0]
    lengths = [length for signals in each if (length := signals.length_seconds) is not None]
    joined = Signals(
        first.dialect,
        sum(lengths) / len(lengths) if len(lengths) == len(each) else None,
        min(signals.num_scrapes for signals in each),
        info={name: value for name, value in first.info.items() if all(s.info.get(name) == value for s in each)},
        free_includes_reclaimable=_same([signals.free_includes_reclaimable for signals in each]),
        usage=_same([signals.usage for signals in each]),
        pool_unit=first.pool_unit,
        advice=first.advice,
        features_absent=frozenset.intersection(*(signals.features_absent for signals in each)),
        restarted=any(signals.restarted for signals in each),
        running_before_restart=sum(signals.running_before_restart for signals in each),
    )
    for name in _names(each, lambda signals: signals.counters):
        joined.counters[name] = _add_counters([s.counters[name] for s in each if name in s.counters])
    for name in _names(each, lambda signals: signals.gauges):
        if name not in _OF_ONE:
            joined.gauges[name] = _join_gauges(name, [s.gauges[name] for s in each if name in s.gauges])
    for name in _names(each, lambda signals: signals.histograms):
        joined.histograms[name] = _add_histograms([s.histograms[name] for s in each if name in s.histograms])
    for kind in _names(each, lambda signals: signals.failures):
        joined.failures[kind] = sum(signals.failures.get(kind, 0.0) for signals in each)
    joined.replicas = {
        f"{name} {engine}".strip(): signals
        for name, replica in replicas.items()
        for engine, signals in (replica.replicas or {"": replica}).items()
    }
    joined.num_replicas = len(joined.replicas)
    return joined


def differing(replicas: Mapping[str, Signals]) -> list[str]:
    """What replicas of one service should have in common, and do not."""
    found: list[str] = []
    for name in ("version", "model", "max_model_len", "prefix_cache", "kv_dtype"):
        stated = {where: signals.info[name] for where, signals in replicas.items() if name in signals.info}
        if len(set(stated.values())) > 1:
            found.append(f"replicas differ in {name}: " + ", ".join(f"{value} ({at})" for at, value in stated.items()))
    return found


def _names(each: Sequence[Signals], table: Callable[[Signals], Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for signals in each for name in table(signals)))


def _same(values: Sequence[_Value]) -> _Value | None:
    return values[0] if all(value == values[0] for value in values) else None


def _add_counters(counters: Sequence[Counter]) -> Counter:
    first = counters[0]
    late = any(counter.late for counter in counters)
    return Counter(sum(counter.delta for counter in counters), first.source, first.coverage, late)


def _join_gauges(name: str, gauges: Sequence[Gauge]) -> Gauge:
    """Scrapes of one round are taken for one moment; a replica that was scraped less often ends the series sooner."""
    across = sum if name in _SUMMED else min if name in _LOWEST else max
    moments = zip(*(gauge.values for gauge in gauges), strict=False)
    return Gauge(tuple(float(across(moment)) for moment in moments), gauges[0].source, gauges[0].coverage)


def _add_histograms(windows: Sequence[HistogramWindow]) -> HistogramWindow:
    """Buckets that all of them have."""
    first = windows[0]
    bounds = [bound for bound in first.bounds if all(bound in window.bounds for window in windows)]
    columns = [_rebinned(window, bounds) for window in windows]
    counts = tuple(sum(column) for column in zip(*columns, strict=True))
    return HistogramWindow(tuple(bounds), counts, sum(w.sum for w in windows), first.source, first.coverage)


def _rebinned(window: HistogramWindow, bounds: Sequence[float]) -> list[float]:
    """Counts between a part of its own bounds."""
    ends = [*(window.bounds.index(bound) + 1 for bound in bounds), len(window.counts)]
    return [sum(window.counts[low:high]) for low, high in pairwise([0, *ends])]
