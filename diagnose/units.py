"""Figures for people: durations in and out (`20s`, `200ms`, `1.5m`), sizes and shares with a sensible number of digits."""

import re

_FACTORS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(us|ms|s|min|m|h)\s*$")


def parse_duration(text: str) -> float:
    """Seconds. Raises ValueError with what would be accepted."""
    match = _DURATION.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write 20s, 200ms or 2m")
    return float(match[1]) * _FACTORS[match[2]]


def seconds(value: float) -> str:
    """A duration in the unit a person would choose: `0 ms`, `38.4 ms`, `2.15 s`, `3 min`."""
    if value >= 600:
        return f"{value / 60:.0f} min"
    if value >= 9.995:
        return f"{value:.1f} s"
    if value >= 0.9995:
        return f"{value:.2f} s"
    if value >= 0.00995:
        return f"{value * 1e3:.0f} ms"
    if value >= 0.0000995:
        return f"{value * 1e3:.1f} ms"
    if value < 5e-7:  # nothing, or what rounding left of it
        return "0 ms"
    return f"{value * 1e6:.0f} us"


def binary_bytes(value: float) -> str:
    """`256 MiB`, `1.9 GiB`: powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit in ("B", "KiB", "MiB") else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def printable(text: str) -> str:
    """Text from elsewhere without control characters: a target must not steer the reader's terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def percent(ratio: float) -> str:
    if 0.0005 <= ratio < 0.0095:
        return f"{ratio * 100:.1f} %"
    return f"{ratio * 100:.0f} %"
