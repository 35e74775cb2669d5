"""Simple tools that see the same pages: what a diagnosis must beat."""

from collections.abc import Callable

from diagnose.signals import Signals
from tests.accuracy.score import Answer
from tests.accuracy.windows import Case, View
from tests.builders import build_signals


def naive_thresholds(now: Signals, before: Signals | None) -> str | None:
    """What alert rules of the field say: memory above 95 % is exhaustion, slower tokens are overload."""
    total, reserved = now.last("device_memory_total"), now.last("device_memory_reserved")
    used, free = (now.last("blocks_active"), now.last("blocks_free"))
    cached = now.last("blocks_reclaimable")
    if total and reserved and reserved / total > 0.95:
        return "kv_exhaustion"
    if used is not None and free is not None and cached is not None and (used + cached) > 0.95 * (used + cached + free):
        return "kv_exhaustion"
    if before is not None and _mean(now, "inter_token_latency") > 1.3 * _mean(before, "inter_token_latency") > 0:
        return "queue_overload"
    return None


_MEANS = {
    "preemptions": "preemption_storm",
    "tokens_recompute": "preemption_storm",
    "evictions": "cache_thrashing",
    "ghost_hits": "cache_thrashing",
    "prefix_hit_tokens": "cache_prefix_broken",
    "tokens_prefill": "prefill_interference",
    "stall_prefill_seconds": "prefill_interference",
    "stall_host_seconds": "scheduler_contention",
    "stall_lock_seconds": "scheduler_contention",
    "step_mixed": "prefill_interference",
    "step_decode": "bandwidth_saturation",
    "inter_token_latency": "bandwidth_saturation",
    "schedule": "scheduler_contention",
    "lock_wait": "scheduler_contention",
    "queue_time": "queue_overload",
    "time_to_first_token": "queue_overload",
    "waiting": "queue_overload",
    "running": "queue_overload",
    "waiting_blocks": "kv_exhaustion",
    "waiting_sequences": "sequence_cap",
    "blocks_active": "kv_exhaustion",
    "gpu_sm_clock": "device_degraded",
}
"""What a person who follows one metric would blame when that metric changed most."""


def largest_change(now: Signals, before: Signals | None) -> str | None:
    """The metric with the largest relative change against the baseline names the cause; under 30 % nothing is wrong."""
    if before is None:
        return None
    best, cause = 1.3, None
    for name, blamed in _MEANS.items():
        first, second = _level(before, name), _level(now, name)
        if first is None or second is None:
            continue
        low, high = sorted((first + 1e-6, second + 1e-6))
        if high / low > best:
            best, cause = high / low, blamed
    return cause


RIVALS: dict[str, Callable[[Signals, Signals | None], str | None]] = {
    "naive thresholds": naive_thresholds,
    "largest relative change": largest_change,
}


def rival_answers(case: Case) -> list[Answer]:
    """By the scrapes of both windows, which is all that such tools read."""
    incident, baseline = case.observations(View.SCRAPE)
    now = build_signals(incident)
    before = None if baseline is None else build_signals(baseline)
    truth = case.truth(View.SCRAPE)
    return [
        Answer(
            tool=tool,
            case=case.name,
            shape=case.shape,
            seed=case.seed,
            held_out=case.held_out,
            view=View.SCRAPE,
            moved=case.moved,
            primary=(said := judge(now, before)),
            supported=frozenset() if said is None else frozenset({said}) | truth.required,
            truth=truth,
            undetermined=False,
        )
        for tool, judge in RIVALS.items()
    ]


def _mean(signals: Signals, name: str) -> float:
    histogram = signals.histograms.get(name)
    return (histogram.mean if histogram is not None else None) or 0.0


def _level(signals: Signals, name: str) -> float | None:
    if name in signals.histograms:
        return signals.histograms[name].mean
    if name in signals.gauges:
        return signals.gauges[name].mean
    return signals.rate(name)
