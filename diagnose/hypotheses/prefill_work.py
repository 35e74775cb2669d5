"""Prompt tokens computed per request: what a hit rate alone does not say."""

from diagnose.case import Case
from diagnose.signals import Signals
from diagnose.units import percent
from diagnose.verdict import Argument, Stance


def prefill_work(signals: Signals) -> tuple[float, float] | None:
    """Prompt tokens left to compute per started request, and the hit rate; None when one of them is not known."""
    queries, hits = signals.delta("prefix_query_tokens"), signals.delta("prefix_hit_tokens")
    started = signals.histograms.get("queue_time") or signals.histograms.get("time_to_first_token")
    if not queries or hits is None or started is None or not started.count:
        return None
    return (queries - hits) / started.count, hits / queries


def say_prefill_work(case: Case, argument: Argument) -> None:
    """Against the baseline's: longer prompts can bring more prefill at a higher hit rate."""
    now, before = prefill_work(case.signals), prefill_work(case.baseline.signals) if case.baseline is not None else None
    if now is None or before is None or not before[0]:
        return
    ratio = now[0] / before[0]
    text = (
        f"{now[0]:,.1f} prompt tokens are computed per request, {ratio:.1f}x the baseline's {before[0]:,.1f}, "
        f"at a hit rate of {percent(now[1])} (baseline: {percent(before[1])})"
    )
    if ratio > 1 and now[1] > before[1]:
        text += ": more hits, and more prefill all the same"
    argument.say(
        Stance.FOR if ratio >= case.policy.shift_ratio else Stance.CONTEXT,
        text,
        value=ratio,
        unit="ratio",
        compared_with="baseline",
        source=case.signals.counters["prefix_query_tokens"].source,
    )
