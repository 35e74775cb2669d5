"""Figures in few cells: counts, rates, ages, clock times."""

import time


def compact(value: float) -> str:
    """`0`, `3.2`, `47`, `1.2k`, `3.4M`."""
    for limit, factor, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (10_000, 1e3, "k")):
        if value >= limit:
            return f"{value / factor:.3g}{suffix}"
    if value >= 10 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}"


def count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def share(value: float) -> str:
    return f"{value * 100:.0f}%"


def age(seconds: float) -> str:
    """`0.4s`, `12s`, `3m 10s`, `2h 05m`, `3d 4h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    if seconds < 100:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{seconds // 60:.0f}m {seconds % 60:02.0f}s"
    if seconds < 86400:
        return f"{seconds // 3600:.0f}h {seconds % 3600 // 60:02.0f}m"
    return f"{seconds // 86400:.0f}d {seconds % 86400 // 3600:.0f}h"


def clock(unix: float) -> str:
    """Local wall time."""
    return time.strftime("%H:%M:%S", time.localtime(unix))
