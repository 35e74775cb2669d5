"""What is wrong with a window as a series of scrapes: missing ones, a clock that was set, gauges that nothing bears out."""

from collections.abc import Iterator
from itertools import pairwise

from diagnose.observation import Observation
from diagnose.policy import Policy
from diagnose.signals import Signals
from diagnose.stats import median
from diagnose.units import seconds


def limit_to_trusted(observation: Observation, signals: Signals, policy: Policy) -> list[str]:
    """Warnings for the report. Takes the window's length away where a clock was set: a rate over it would be made up. Says how
    much of the window no scrape saw: no gauge refutes what may have happened there."""
    jump = _clock_jump(observation, policy)
    if jump is not None:
        signals.length_seconds = None
    return [
        *([jump] if jump is not None else []),
        *_missing_scrapes(observation, signals, policy),
        *_repeated_times(observation),
        *_stale_gauge(signals),
    ]


def _clock_jump(observation: Observation, policy: Policy) -> str | None:
    times = [scrape.unix for scrape in observation.leading if scrape.unix is not None]
    back = [before - after for before, after in pairwise(times) if after < before]
    if back:
        return (
            f"the clock of the scraper was set back by {seconds(max(back))} within the window: it has no known length"
        )
    for before, after in pairwise(observation.clocks):
        wall, engine = after.unix - before.unix, (after.monotonic_ns - before.monotonic_ns) / 1e9
        if abs(wall - engine) > policy.clock_jump_seconds:
            return (
                f"a clock was set within the window: {wall:.1f} s by the scraper's are {engine:.1f} s by the engine's "
                "monotonic one; the window has no known length"
            )
    return None


def _missing_scrapes(observation: Observation, signals: Signals, policy: Policy) -> Iterator[str]:
    times = [scrape.unix for scrape in observation.leading if scrape.unix is not None]
    gaps = [after - before for before, after in pairwise(times)]
    if len(gaps) < policy.min_scrape_intervals:
        return
    usual = median(gaps)
    missing = [gap for gap in gaps if gap > policy.missing_scrape_ratio * usual]
    if usual > 0 and missing:
        signals.unseen_share = sum(gap - usual for gap in missing) / sum(gaps)
        count = "one gap" if len(missing) == 1 else f"{len(missing)} gaps"
        yield (
            f"scrapes are missing: {count} of up to {seconds(max(missing))} between scrapes that are usually "
            f"{seconds(usual)} apart; gauges say nothing of those times"
        )


def _repeated_times(observation: Observation) -> Iterator[str]:
    times = [scrape.unix for scrape in observation.leading if scrape.unix is not None]
    repeated = sum(after == before for before, after in pairwise(times))
    if repeated:
        yield f"{repeated} scrapes carry the same time as the one before them"


def _stale_gauge(signals: Signals) -> Iterator[str]:
    """Busy by the gauge on every scrape, idle by every counter. Whether the engine hangs is for its rule to say."""
    running = signals.gauges.get("running")
    if running is not None and len(running.values) >= 2 and min(running.values) > 0 and signals.worked is False:
        yield (
            f"the gauge of running requests reads {running.last:g} on the last of {len(running.values)} scrapes while no token "
            "was computed: a stale gauge, or an engine that does not advance"
        )
