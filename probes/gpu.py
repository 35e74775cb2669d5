"""What is known of the GPUs at one moment, whoever measured it, and how it is exported. `None` is "not measured"."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

Labels = tuple[str, ...]


class GpuState(StrEnum):
    OK = "ok"
    LOST = "lost"
    """The driver no longer reaches it (fell off the bus, or needs a reset): nothing else is known then."""


class ThrottleReason(StrEnum):
    """Why clocks are below what was asked for, in the order of the driver's bits. Several may hold at once."""

    GPU_IDLE = "gpu_idle"
    APPLICATION_CLOCKS = "application_clocks"
    SW_POWER_CAP = "sw_power_cap"
    HW_SLOWDOWN = "hw_slowdown"
    SYNC_BOOST = "sync_boost"
    SW_THERMAL = "sw_thermal"
    HW_THERMAL = "hw_thermal"
    HW_POWER_BRAKE = "hw_power_brake"
    DISPLAY_CLOCKS = "display_clocks"


def throttle_reasons(mask: int) -> frozenset[ThrottleReason]:
    """From the driver's bit mask; bits of newer drivers are left out."""
    return frozenset(reason for bit, reason in enumerate(ThrottleReason) if mask >> bit & 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU. `missing` says for each field that is None why."""

    index: int
    uuid: str
    name: str
    state: GpuState = GpuState.OK
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    """By all processes. A KV pool is allocated at start, so that this says nothing about how much of it is in use."""
    memory_reserved_bytes: int | None = None
    """By the driver and firmware; not part of `used`."""
    process_memory_bytes: dict[int, int | None] | None = None
    """By process id as the driver sees it (outside of containers); None where it does not say."""
    busy_ratio: float | None = None
    """Share of the driver's last period (up to 1 s) in which at least one kernel ran: one thread on one processor counts
    as busy, so that it tells idle from not idle, and neither saturation nor which resource is short."""
    memory_busy_ratio: float | None = None
    """Share of that period in which device memory was read or written: time, not bandwidth."""
    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    sm_clock_max_hz: int | None = None
    memory_clock_max_hz: int | None = None
    throttle: frozenset[ThrottleReason] | None = None
    """In force at the moment of the sample."""
    throttled_power_ns: int | None = None
    """Since the driver was loaded: clocks held down by power."""
    throttled_thermal_ns: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: int | None = None
    pcie_tx_bytes_per_second: int | None = None
    """Over the driver's last 20 ms."""
    pcie_rx_bytes_per_second: int | None = None
    pcie_replays: int | None = None
    ecc_corrected: int | None = None
    """Since the driver was loaded."""
    ecc_uncorrected: int | None = None
    xid_errors: int | None = None
    """Critical XID events since the probe was opened."""
    last_xid: int | None = None
    """Code of the latest of them; 0 before the first."""
    missing: dict[str, str] = field(default_factory=dict)


class GpuReading(NamedTuple):
    gpus: tuple[GpuSample, ...]
    reason: str | None = None
    """Why there are none."""


def gpu_numbers(reading: GpuReading, process_id: int) -> dict[str, dict[Labels, float]]:
    """By metric of `probes.catalog`, the series of one reading; what is None has none. `process_id`: the engine's own."""
    return {
        "gpu_lost": _series(reading, lambda gpu: {(): float(gpu.state is GpuState.LOST)}),
        "gpu_memory_bytes": _series(
            reading,
            lambda gpu: {
                ("total",): gpu.memory_total_bytes,
                ("used",): gpu.memory_used_bytes,
                ("driver_reserved",): gpu.memory_reserved_bytes,
                ("this_process",): (gpu.process_memory_bytes or {}).get(process_id),
            },
        ),
        "gpu_busy_ratio": _series(reading, lambda gpu: {(): gpu.busy_ratio}),
        "gpu_memory_busy_ratio": _series(reading, lambda gpu: {(): gpu.memory_busy_ratio}),
        "gpu_clock_hertz": _series(reading, lambda gpu: {("sm",): gpu.sm_clock_hz, ("memory",): gpu.memory_clock_hz}),
        "gpu_clock_limit_hertz": _series(
            reading, lambda gpu: {("sm",): gpu.sm_clock_max_hz, ("memory",): gpu.memory_clock_max_hz}
        ),
        "gpu_throttle": _series(
            reading,
            lambda gpu: {} if gpu.throttle is None else {(r,): float(r in gpu.throttle) for r in ThrottleReason},
        ),
        "gpu_throttled_seconds_total": _series(
            reading,
            lambda gpu: {
                ("power",): _seconds(gpu.throttled_power_ns),
                ("thermal",): _seconds(gpu.throttled_thermal_ns),
            },
        ),
        "gpu_power_watts": _series(reading, lambda gpu: {(): gpu.power_watts}),
        "gpu_power_limit_watts": _series(reading, lambda gpu: {(): gpu.power_limit_watts}),
        "gpu_temperature_celsius": _series(reading, lambda gpu: {(): gpu.temperature_celsius}),
        "gpu_pcie_bytes_per_second": _series(
            reading, lambda gpu: {("tx",): gpu.pcie_tx_bytes_per_second, ("rx",): gpu.pcie_rx_bytes_per_second}
        ),
        "gpu_pcie_replays_total": _series(reading, lambda gpu: {(): gpu.pcie_replays}),
        "gpu_ecc_errors_total": _series(
            reading, lambda gpu: {("corrected",): gpu.ecc_corrected, ("uncorrected",): gpu.ecc_uncorrected}
        ),
        "gpu_xid_errors_total": _series(reading, lambda gpu: {(): gpu.xid_errors}),
        "gpu_last_xid": _series(reading, lambda gpu: {(): gpu.last_xid}),
    }


def _series(reading: GpuReading, values: Callable[[GpuSample], Mapping[Labels, float | None]]) -> dict[Labels, float]:
    """Labels are the GPU's index, its UUID, and what `values` keys by."""
    return {
        (str(gpu.index), gpu.uuid, *key): value
        for gpu in reading.gpus
        for key, value in values(gpu).items()
        if value is not None
    }


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9
