"""Colours that must be told apart are told apart, also by eyes that lack a kind of cone."""

from itertools import combinations

import pytest
from rich.color import Color

from dashboard.theme import ROLES, style

# Linear RGB as seen without a kind of cone: Machado, Oliveira and Fernandes 2009, severity 1.0.
WITHOUT = {
    "red cones": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "green cones": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "blue cones": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
TOGETHER = {
    "verdicts": ("good", "warn", "bad"),
    "latency": ("p50", "p99"),
    "tokens": ("prefill", "decode", "recompute"),
    "steps": ("decode", "mixed", "prefill"),
    "pool": ("active", "reclaimable", "free"),
    "host": ("host", "lock", "gap"),
}
"""Roles that stand beside each other in one picture."""
LEAST = 15.0
"""Distance in CIE Lab: from about ten on, two colours side by side are plainly different."""


def linear(channel: int) -> float:
    share = channel / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4


def lab(rgb: tuple[float, float, float]) -> tuple[float, float, float]:
    """From linear sRGB, D65."""
    red, green, blue = (min(1.0, max(0.0, value)) for value in rgb)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def seen(role: str, lacking: str) -> tuple[float, float, float]:
    colour = style("stallscope-safe", role).color
    assert isinstance(colour, Color)
    assert colour.triplet is not None
    rgb = [linear(channel) for channel in colour.triplet]
    red, green, blue = (sum(a * b for a, b in zip(row, rgb, strict=True)) for row in WITHOUT[lacking])
    return lab((red, green, blue))


@pytest.mark.parametrize("lacking", WITHOUT)
@pytest.mark.parametrize("picture", TOGETHER)
def test_the_safe_theme_is_told_apart_by_every_eye(picture: str, lacking: str):
    for one, other in combinations(TOGETHER[picture], 2):
        distance = sum((a - b) ** 2 for a, b in zip(seen(one, lacking), seen(other, lacking), strict=True)) ** 0.5
        assert distance >= LEAST, f"{one} and {other} look alike: {distance:.0f}"


@pytest.mark.parametrize("theme", ROLES)
@pytest.mark.parametrize("picture", TOGETHER)
def test_no_theme_needs_colours_for_verdicts(theme: str, picture: str):
    """Roles of a picture have styles of their own in every theme with colours."""
    if theme != "stallscope-mono":
        styles = [style(theme, role) for role in TOGETHER[picture]]
        assert len(set(styles)) == len(styles)
