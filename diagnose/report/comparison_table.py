"""A Comparison as lines of text."""

from collections.abc import Callable

from diagnose.comparison import Comparison, Row
from diagnose.report.outline import bounds_text
from diagnose.stats import Bounds
from diagnose.units import percent, seconds


def comparison_lines(comparison: Comparison, first_label: str, second_label: str) -> list[str]:
    """The table: both windows, and where they are comparable the difference with its 95 % interval."""
    lines = [f"{'':<14}{first_label:>18}{second_label:>18}   difference [95 % interval]".rstrip()]
    for row in comparison.rows:
        first, second = _value(row.first, row.unit), _value(row.second, row.unit)
        lines.append(f"{row.name:<14}{first:>18}{second:>18}   {_difference(row)}".rstrip())
    reasons = dict.fromkeys(row.no_interval for row in comparison.rows if row.no_interval)
    lines += [f"- no interval: {reason}" for reason in reasons]
    return lines


def _value(bounds: Bounds | None, unit: str) -> str:
    if bounds is None:
        return "not observed"
    return bounds_text(bounds) if unit == "s" else percent(bounds.low)


def _difference(row: Row) -> str:
    if row.difference is None:
        return "-"
    text = _signed_for(row.unit)
    low, high = row.difference.low, row.difference.high
    difference = text(low) if row.difference.exact else f"{text(low)} to {text(high)}"
    if row.interval is None:
        return f"{difference} [-]"
    return f"{difference} [{text(row.interval.low)}, {text(row.interval.high)}]"


def _signed_for(unit: str) -> Callable[[float], str]:
    return _signed_seconds if unit == "s" else _signed_points


def _signed_seconds(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return f"{value:+}"
    return f"{'-' if value < 0 else '+'}{seconds(abs(value))}"


def _signed_points(value: float) -> str:
    return f"{value * 100:+.1f} points"
