"""DCGM exporter: what it says of GPUs, as supporting evidence beside an engine's own page. Checked against 4.x.

It is no dialect of an engine: it knows nothing of tokens, and several engines may share its page. `device_signals` maps
pages onto the device signals of one target, whose GPUs are named by UUID.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from statistics import fmean

from diagnose.exposition import Exposition, Labels
from diagnose.observation import Scrape
from diagnose.signals import Counter, Gauge, Signals
from probes.gpu import ThrottleReason, throttle_reasons

PREFIX = "DCGM_FI_"
REFRESH_SECONDS = 30.0
"""How often the exporter collects unless told otherwise (`-c`): until then a page repeats what the one before said."""

_BLANKS = ((2147483632.0, 2147483647.0), (140737488355328.0, 140737488355343.0))
"""What DCGM puts for "no value" in 32-bit integers and in doubles: blank, not found, not supported, not permitted."""
_INT64_BLANK = float(0x7FFFFFFFFFFFFFF0)

Across = Callable[[Iterable[float]], float]


@dataclass(frozen=True, slots=True)
class _Field:
    metrics: tuple[str, ...]
    """Names by version; the first one that is there counts."""
    across: Across
    """Joins a target's GPUs: they work in step, so that the slowest clock and the hottest chip are the target's."""
    factor: float = 1.0
    limit: float = float("inf")
    """Values beyond it are no measurements."""


MHZ, MIB = 1e6, float(1 << 20)
_THROTTLE = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
_XID = "DCGM_FI_DEV_XID_ERRORS"

GAUGES: dict[str, _Field] = {
    "gpu_dram_active": _Field(("DCGM_FI_PROF_DRAM_ACTIVE",), fmean, limit=1.0),
    "gpu_tensor_active": _Field(("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",), fmean, limit=1.0),
    "gpu_sm_active": _Field(("DCGM_FI_PROF_SM_ACTIVE",), fmean, limit=1.0),
    "gpu_active": _Field(("DCGM_FI_PROF_GR_ENGINE_ACTIVE",), fmean, limit=1.0),
    "gpu_busy": _Field(("DCGM_FI_DEV_GPU_UTIL",), min, 0.01, 100.0),
    "gpu_sm_clock": _Field(("DCGM_FI_DEV_SM_CLOCK",), min, MHZ),
    "gpu_memory_clock": _Field(("DCGM_FI_DEV_MEM_CLOCK",), min, MHZ),
    "gpu_power": _Field(("DCGM_FI_DEV_POWER_USAGE",), sum),
    "gpu_temperature": _Field(("DCGM_FI_DEV_GPU_TEMP",), max),
    "gpu_pcie_tx": _Field(("DCGM_FI_PROF_PCIE_TX_BYTES",), sum),
    "gpu_pcie_rx": _Field(("DCGM_FI_PROF_PCIE_RX_BYTES",), sum),
    "gpu_memory_used": _Field(("DCGM_FI_DEV_FB_USED",), sum, MIB),
    "gpu_last_xid": _Field((_XID,), max),
}
COUNTERS: dict[str, str] = {
    "gpu_ecc_uncorrected": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "gpu_ecc_corrected": "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "gpu_pcie_replays": "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
}
THROTTLE_GAUGES: dict[str, ThrottleReason] = {
    "gpu_throttle_hw_slowdown": ThrottleReason.HW_SLOWDOWN,
    "gpu_throttle_hw_thermal": ThrottleReason.HW_THERMAL,
    "gpu_throttle_sw_thermal": ThrottleReason.SW_THERMAL,
    "gpu_throttle_power_brake": ThrottleReason.HW_POWER_BRAKE,
    "gpu_throttle_power_cap": ThrottleReason.SW_POWER_CAP,
}
"""The `*_VIOLATION` counters say the same with a unit that differs by version (us, ns), and are left alone."""


@dataclass(slots=True)
class DeviceSignals:
    """What a page says of one target's GPUs; `lay_beside` puts it to the signals of the target's own page."""

    gauges: dict[str, Gauge] = field(default_factory=dict)
    counters: dict[str, Counter] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What limits these figures, for the report."""


def speaks(page: Exposition) -> bool:
    return any(name.startswith(PREFIX) for name in page.samples)


def gpu_uuids(page: Exposition) -> frozenset[str]:
    """Of every GPU on the page."""
    found = (
        dict(key).get("UUID") for name, series in page.samples.items() if name.startswith(PREFIX) for key in series
    )
    return frozenset(uuid for uuid in found if uuid)


def device_signals(
    scrapes: Sequence[Scrape], uuids: Collection[str] = (), refresh_seconds: float = REFRESH_SECONDS
) -> DeviceSignals:
    """Pages in time order -> device signals of the GPUs in `uuids`; of all GPUs of the pages when that is empty."""
    pages = [_values(scrape.page, uuids) for scrape in scrapes]
    found = DeviceSignals()
    for name, kind in GAUGES.items():
        metric = next((metric for metric in kind.metrics if any(metric in page for page in pages)), "")
        per_page = [[v * kind.factor for v in page.get(metric, {}).values() if 0 <= v <= kind.limit] for page in pages]
        values = tuple(kind.across(values) for values in per_page if values)
        if values:
            found.gauges[name] = Gauge(values, metric)
    _read_throttle(found, pages)
    refreshed = _refreshed(scrapes, refresh_seconds)
    for name, metric in COUNTERS.items():
        _add_growth(found, name, metric, _growth(pages, metric), refreshed)
    _add_growth(found, "gpu_xid_errors", _XID, _new_xids(pages), refreshed)
    _note_limits(found, scrapes, uuids, refresh_seconds, refreshed)
    return found


def lay_beside(signals: Signals, device: DeviceSignals) -> None:
    """Adds what the target's own page does not say of its device; what it says stands."""
    for name, gauge in device.gauges.items():
        signals.gauges.setdefault(name, gauge)
    for name, counter in device.counters.items():
        signals.counters.setdefault(name, counter)


_Page = dict[str, dict[Labels, float]]
"""metric -> (UUID, and the MIG instance where there is one) -> value"""


def _values(page: Exposition, uuids: Collection[str]) -> _Page:
    found: _Page = {}
    for name, series in page.samples.items():
        if not name.startswith(PREFIX):
            continue
        for key, value in series.items():
            labels = dict(key)
            uuid = labels.get("UUID", labels.get("gpu", ""))
            if (not uuids or uuid in uuids) and not is_blank(value):
                gpu = (("UUID", uuid), ("GPU_I_ID", labels.get("GPU_I_ID", "")))
                found.setdefault(name, {})[gpu] = value
    return found


def is_blank(value: float) -> bool:
    """One of the numbers by which DCGM says that it has none."""
    return not isfinite(value) or value >= _INT64_BLANK or any(low <= value <= high for low, high in _BLANKS)


def _read_throttle(found: DeviceSignals, pages: Sequence[_Page]) -> None:
    metric = next((metric for metric in _THROTTLE if any(metric in page for page in pages)), "")
    masks = [[int(value) for value in page[metric].values()] for page in pages if page.get(metric)]
    for name, reason in THROTTLE_GAUGES.items():
        if masks:
            found.gauges[name] = Gauge(
                tuple(float(any(reason in throttle_reasons(mask) for mask in gpus)) for gpus in masks), metric
            )


def _growth(pages: Sequence[_Page], metric: str) -> float | None:
    """Summed over GPUs; None when no GPU has two values. A fall is a reset, after which the new value is all growth."""
    steps = [
        after[gpu] - before[gpu] if after[gpu] >= before[gpu] else after[gpu]
        for before, after in pairwise([page[metric] for page in pages if metric in page])
        for gpu in before.keys() & after.keys()
    ]
    return sum(steps) if steps else None


def _new_xids(pages: Sequence[_Page]) -> float | None:
    """Codes that were not there before: a lower bound, since the exporter tells the last code and not how often."""
    changes = [
        after[gpu] not in (0.0, before[gpu])
        for before, after in pairwise([page[_XID] for page in pages if _XID in page])
        for gpu in before.keys() & after.keys()
    ]
    return float(sum(changes)) if changes else None


def _add_growth(found: DeviceSignals, name: str, metric: str, growth: float | None, refreshed: bool) -> None:
    # No growth between two pages of one collection is not zero, it is unknown.
    if growth is not None and (growth > 0 or refreshed):
        found.counters[name] = Counter(growth, metric)


def _refreshed(scrapes: Sequence[Scrape], refresh_seconds: float) -> bool:
    times = [scrape.unix for scrape in scrapes if scrape.unix is not None]
    return len(times) >= 2 and times[-1] - times[0] >= refresh_seconds


def _note_limits(
    found: DeviceSignals, scrapes: Sequence[Scrape], uuids: Collection[str], refresh_seconds: float, refreshed: bool
) -> None:
    there = frozenset[str]().union(*(gpu_uuids(scrape.page) for scrape in scrapes))
    if absent := frozenset(uuids) - there:
        found.notes.append(f"DCGM does not see {', '.join(sorted(absent))}")
    if not uuids and len(there) > 1:
        found.notes.append(
            f"the DCGM page has {len(there)} GPUs and nothing says which are this target's: all were taken"
        )
    if scrapes and not refreshed:
        found.notes.append(
            f"DCGM collects every {refresh_seconds:g} s unless told otherwise: this window may hold a single reading, and "
            "counters that did not grow in it say nothing"
        )
    if scrapes and not any(name in found.gauges for name in ("gpu_dram_active", "gpu_tensor_active", "gpu_active")):
        found.notes.append(
            "the DCGM page has no profiling fields (DCGM_FI_PROF_*): the GPU or the exporter's configuration lacks them, or "
            "a profiler holds them"
        )
