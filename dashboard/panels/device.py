"""What the device says of itself (NVML or DCGM, through the target's page), on one line."""

from collections.abc import Mapping

from dashboard.draw.spans import Line, Span
from dashboard.model.view import View
from diagnose.units import binary_bytes, percent

_THROTTLES = {
    "gpu_throttle_hw_slowdown": "hardware slowdown",
    "gpu_throttle_hw_thermal": "hardware thermal",
    "gpu_throttle_sw_thermal": "software thermal",
    "gpu_throttle_power_brake": "power brake",
    "gpu_throttle_power_cap": "power cap",
}


def device_line(view: View) -> Line:
    """Known for the newest page alone: it has no history, and a moment of the past shows none."""
    label = Span(f" {'device':<13}", "dim")
    levels = view.target.levels
    if not view.playhead.follows:
        return [label, Span("known for the newest sample alone: end", "dim")]
    gauges = levels[-1].gauges if levels else {}
    troubles, figures = _troubles(gauges), _figures(gauges)
    if not troubles and not figures:
        return [
            label,
            Span("the target's page has no NVML figures; on its host: ", "dim"),
            Span("nvidia-smi --query-gpu=memory.used,clocks.sm,temperature.gpu --format=csv", "command"),
        ]
    separator = "  " if troubles and figures else ""
    return [label, Span("  ".join(troubles), "bad_strong"), Span(separator), Span("  ".join(figures), "number")]


def _troubles(gauges: Mapping[str, float]) -> list[str]:
    found = ["lost"] if gauges.get("gpu_lost") else []
    if gauges.get("gpu_last_xid"):
        found.append(f"last XID {gauges['gpu_last_xid']:.0f}")
    throttled = [name for signal, name in _THROTTLES.items() if gauges.get(signal)]
    return [*found, f"throttled: {', '.join(throttled)}"] if throttled else found


def _figures(gauges: Mapping[str, float]) -> list[str]:
    found = []
    if (used := gauges.get("gpu_memory_used")) is not None:
        found.append(f"{binary_bytes(used)} used")
    for name, signal, of, unit, scale in (
        ("SM ", "gpu_sm_clock", "gpu_sm_clock_limit", "MHz", 1e-6),
        ("", "gpu_power", "gpu_power_limit", "W", 1.0),
    ):
        if (value := gauges.get(signal)) is not None:
            limit = gauges.get(of)
            whole = f"/{limit * scale:.0f}" if limit is not None else ""
            found.append(f"{name}{value * scale:.0f}{whole} {unit}")
    if (celsius := gauges.get("gpu_temperature")) is not None:
        found.append(f"{celsius:.0f} °C")
    if (busy := gauges.get("gpu_busy")) is not None:
        found.append(f"any kernel ran {percent(busy)} of the time")
    return found
