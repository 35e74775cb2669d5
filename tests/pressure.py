"""Tests that compare how fast something was before and after need a machine whose speed does not change in between."""

import re
from pathlib import Path

import pytest

MOST = 60.0
"""Per cent of the last minute in which something waited for a core."""


def cpu_pressure(path: Path = Path("/proc/pressure/cpu")) -> float | None:
    """Per cent of the last minute; None where the kernel does not tell."""
    try:
        found = re.search(r"^some .*avg60=([\d.]+)", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else float(found[1])


def skip_when_starved() -> None:
    pressure = cpu_pressure()
    if pressure is not None and pressure > MOST:
        pytest.skip(f"other work holds the cores: something waited for one {pressure:.0f} % of the last minute")
