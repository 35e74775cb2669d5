"""One window against another, as far as a single pair allows.

Arrivals, context lengths, cache warmth, and precision and build must match and at most one setting may differ; otherwise
the pair is `not_comparable`, with every mismatch named and no difference given. Never more than a direction comes out of
it: a cause is confirmed by paired blocks in random order, not here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from diagnose.bootstrap import GapBlocks, Interval, difference_intervals
from diagnose.case import Window
from diagnose.conditions import Mismatch, differing_settings, match_conditions
from diagnose.policy import DEFAULT_POLICY, Policy
from diagnose.stats import Bounds

ITL_QUANTILES = (0.5, 0.95, 0.99)
TTFT_QUANTILES = (0.5, 0.95)


class Comparability(StrEnum):
    COMPARABLE = "comparable"
    NOT_COMPARABLE = "not_comparable"


class Shift(StrEnum):
    """Which way a figure went from the first window to the second."""

    LOWER = "lower"
    HIGHER = "higher"
    NOT_SHOWN = "not shown to differ"
    UNKNOWN = "not observed"


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    unit: str
    """`s` or `share`."""
    first: Bounds | None
    second: Bounds | None
    difference: Bounds | None
    """second - first; a range where a histogram's buckets are all that is known. None when it may not be taken."""
    interval: Interval | None
    """95 % interval of the difference, by a bootstrap over blocks of wall time."""
    no_interval: str
    """Why there is none; empty when there is one."""

    @property
    def shift(self) -> Shift:
        """By the interval; without one by the buckets, which bound the resolution and say nothing of chance."""
        if self.first is None or self.second is None:
            return Shift.UNKNOWN
        if self.interval is not None:
            low, high = self.interval
        elif self.difference is not None and not self.difference.exact:
            low, high = self.difference.low, self.difference.high
        else:
            return Shift.NOT_SHOWN
        # Buckets (a, b] and (b, c] do differ though their bounds touch; a resampled difference of 0 does not.
        if low > 0 or (low == 0 and high > 0 and self.interval is None):
            return Shift.HIGHER
        if high < 0 or (high == 0 and low < 0 and self.interval is None):
            return Shift.LOWER
        return Shift.NOT_SHOWN


@dataclass(frozen=True, slots=True)
class Comparison:
    verdict: Comparability
    mismatches: tuple[Mismatch, ...]
    knob: str
    """The one setting that differs, as `name first -> second`; empty when none does."""
    rows: tuple[Row, ...]
    """Inter-token latency, time to first token and stall share: always all of them."""

    def reading(self) -> list[str]:
        """What the pair shows, in sentences. A gain on one side and a loss on the other is a trade, never a win."""
        if self.verdict is Comparability.NOT_COMPARABLE:
            return ["Not comparable, so that no difference is given:", *(f"- {text}" for text in self.mismatches)]
        shifts = {row.name: row.shift for row in self.rows}
        lower = [name for name, shift in shifts.items() if shift is Shift.LOWER]
        higher = [name for name, shift in shifts.items() if shift is Shift.HIGHER]
        if lower and higher:
            lines = [f"Trade: {', '.join(lower)} lower, {', '.join(higher)} higher."]
        elif lower or higher:
            lines = [f"{', '.join(lower or higher)} {'lower' if lower else 'higher'}; nothing else is shown to differ."]
        else:
            lines = ["No figure is shown to differ."]
        untested = [row.name for row in self.rows if row.interval is None and row.name in (*lower, *higher)]
        if untested:
            lines.append(f"By histogram buckets alone, chance not assessed: {', '.join(untested)}.")
        if not self.knob:
            lines.append("No setting differs between the windows: whatever differs is noise.")
        lines.append(
            "One pair of windows shows a direction and confirms nothing: a cause is confirmed by paired blocks"
        )
        lines.append("in random order under a matched load.")
        return lines


def compare(first: Window, second: Window, policy: Policy = DEFAULT_POLICY, *, seed: int = 0) -> Comparison:
    """Deterministic for a seed. The windows may come from different runs of one engine, or from two engines."""
    mismatches = tuple(match_conditions(first, second, policy))
    settings = differing_settings(first, second, policy)
    if mismatches:
        return Comparison(Comparability.NOT_COMPARABLE, mismatches, ", ".join(settings), _rows(first, second, policy))
    intervals, reason = _intervals(first, second, policy, seed)
    rows = tuple(
        Row(
            row.name,
            row.unit,
            row.first,
            row.second,
            _difference(row.first, row.second),
            intervals.get(row.name),
            "" if row.name in intervals else (reason or "a histogram has no blocks to draw from"),
        )
        for row in _rows(first, second, policy)
    )
    return Comparison(Comparability.COMPARABLE, (), ", ".join(settings), rows)


def _rows(first: Window, second: Window, policy: Policy) -> tuple[Row, ...]:
    """Both columns, without differences."""

    def row(name: str, unit: str, measure: Callable[[Window], Bounds | None]) -> Row:
        return Row(name, unit, measure(first), measure(second), None, None, "the windows are not comparable")

    def quantiles(label: str, metric: str, qs: Sequence[float]) -> list[Row]:
        return [row(_name(label, q), "s", partial(_quantile, metric, q)) for q in qs]

    return (
        *quantiles("ITL", "inter_token_latency", ITL_QUANTILES),
        *quantiles("TTFT", "time_to_first_token", TTFT_QUANTILES),
        row("stall share", "share", lambda window: _stall_share(window, policy)),
    )


def _name(label: str, q: float) -> str:
    return f"{label} p{q * 100:g}"


def _quantile(metric: str, q: float, window: Window) -> Bounds | None:
    found = window.latency(metric, q)
    return None if found is None else found[0]


def _stall_share(window: Window, policy: Policy) -> Bounds | None:
    if not window.analysis.gaps:
        return None
    share = window.analysis.stall_share(policy.slow_gap_factor)
    return Bounds(share, share)


def _difference(first: Bounds | None, second: Bounds | None) -> Bounds | None:
    if first is None or second is None:
        return None
    # An unbounded bucket on both sides leaves nothing to subtract.
    if first.high == second.high == float("inf"):
        return None
    return Bounds(second.low - first.high, second.high - first.low)


def _intervals(first: Window, second: Window, policy: Policy, seed: int) -> tuple[dict[str, Interval], str]:
    """Intervals of the figures that step records give, by row name; empty, with the reason, when they cannot be had."""
    if not first.analysis.gaps or not second.analysis.gaps:
        return {}, "no step records with enough pure decode steps in both windows"
    length = policy.comparison_block_seconds
    before, after = (GapBlocks(window.analysis.gaps, length, policy.slow_gap_factor) for window in (first, second))
    fewest = min(before.num_blocks, after.num_blocks)
    if fewest < policy.min_comparison_blocks:
        return {}, f"{fewest} blocks of {length:g} s, fewer than {policy.min_comparison_blocks}"

    def statistic(gaps: GapBlocks, times: Sequence[int]) -> list[float]:
        return [*gaps.quantiles(ITL_QUANTILES, times), gaps.stall_share(times)]

    names = [*(_name("ITL", q) for q in ITL_QUANTILES), "stall share"]
    return dict(zip(names, difference_intervals(before, after, statistic, seed=seed), strict=True)), ""
