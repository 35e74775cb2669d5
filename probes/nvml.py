"""GPU figures from the NVIDIA driver, through nvidia-ml-py (`pip install stallscope[gpu]`).

Nothing here raises because of a driver: without one there are no GPUs and a reason, a figure that the GPU does not have is
None and a reason, and a GPU that is lost is a state.
"""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

from probes.extras import not_installed
from probes.gpu import GpuReading, GpuSample, GpuState, throttle_reasons

_MAX_EVENTS = 64
"""Read per sample: a GPU that storms events must not hold the probe."""
MHZ, KB = 1_000_000, 1_000


class _GpuLost(Exception):
    pass


class NvmlProbe:
    """The GPUs of this machine, or only those whose UUID is in `uuids`. Not thread-safe; a `sample` may take 50 ms per GPU."""

    def __init__(self, uuids: frozenset[str] | None = None) -> None:
        self._gpus: list[_Gpu] = []
        self._nvml: ModuleType | None = None
        self.reason: str | None = None
        """Why there are no figures."""
        try:
            import pynvml
        except ImportError:
            self.reason = not_installed("nvidia-ml-py", "gpu")
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.reason = f"no NVIDIA driver: {error}"
            return
        self._nvml = pynvml
        try:
            found = [_Gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            self.reason = f"the GPUs cannot be listed: {error}"
            return
        self._gpus = [gpu for gpu in found if uuids is None or gpu.identity.uuid in uuids]
        if not self._gpus:
            self.reason = "no GPU" if uuids is None else f"no GPU {', '.join(sorted(uuids))}"

    def sample(self) -> GpuReading:
        return GpuReading(tuple(gpu.sample() for gpu in self._gpus), self.reason)

    def close(self) -> None:
        """Idempotent."""
        if self._nvml is None:
            return
        for gpu in self._gpus:
            gpu.close()
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as error:
            self.reason = f"closed, and the driver said {error}"
        else:
            self.reason = "closed"
        self._gpus, self._nvml = [], None


class _Gpu:
    def __init__(self, nvml: ModuleType, index: int) -> None:
        self._nvml = nvml
        self._handle: Any = None
        self._events: Any = None
        self._no_events = ""
        self._xid_errors = self._last_xid = 0
        self.identity = GpuSample(index=index, uuid="", name="", state=GpuState.LOST)
        try:
            self._open(index)
        except nvml.NVMLError as error:
            # Listed, and not to be reached: it stays in the list, lost from the start.
            self.identity = replace(self.identity, missing={"uuid": str(error)})

    def _open(self, index: int) -> None:
        nvml = self._nvml
        self._handle = handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        self.identity = GpuSample(index=index, uuid=uuid, name=name)
        try:
            events = nvml.nvmlEventSetCreate()
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
                self._events = events
            except nvml.NVMLError:
                nvml.nvmlEventSetFree(events)
                raise
        except nvml.NVMLError as error:
            self._no_events = str(error)

    def sample(self) -> GpuSample:
        """Whatever the GPU says of itself now."""
        if self._handle is None:
            return self.identity
        fields: dict[str, Any] = {}
        missing: dict[str, str] = {}
        try:
            for names, read in _FIELDS:
                try:
                    fields |= zip(names, read(self._nvml, self._handle), strict=True)
                except self._nvml.NVMLError as error:
                    self._raise_if_lost(error)
                    missing |= dict.fromkeys(names, str(error))
            self._read_events()
        except _GpuLost as lost:
            return replace(self.identity, state=GpuState.LOST, missing={"state": str(lost)})
        if self._events is None:
            missing |= dict.fromkeys(("xid_errors", "last_xid"), self._no_events)
        else:
            fields |= {"xid_errors": self._xid_errors, "last_xid": self._last_xid}
        missing |= {name: "not known to the driver" for name, value in fields.items() if value is None}
        return replace(self.identity, **fields, missing=missing)

    def _read_events(self) -> None:
        if self._events is None:
            return
        nvml = self._nvml
        for _ in range(_MAX_EVENTS):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_TIMEOUT:  # that one says: no more events
                    self._raise_if_lost(error)
                    self._events, self._no_events = None, str(error)
                return
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                self._xid_errors += 1
                self._last_xid = int(event.eventData)

    def _raise_if_lost(self, error: Any) -> None:
        if error.value in (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED):
            raise _GpuLost(str(error))

    def close(self) -> None:
        if self._events is not None:
            try:
                self._nvml.nvmlEventSetFree(self._events)
            except self._nvml.NVMLError as error:
                self._no_events = str(error)  # the driver is gone, and the events with it
            self._events = None


def _memory(nvml: Any, handle: Any) -> tuple[int, int, int | None]:
    old = (nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return memory.total, memory.used, memory.reserved
    except nvml.NVMLError as error:
        if error.value not in old:
            raise
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)  # drivers before R510: `used` contains what the driver reserves
    return memory.total, memory.used, None


def _processes(nvml: Any, handle: Any) -> tuple[dict[int, int | None]]:
    return ({p.pid: p.usedGpuMemory for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)},)


def _utilisation(nvml: Any, handle: Any) -> tuple[float, float]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu / 100, rates.memory / 100


def _throttle(nvml: Any, handle: Any) -> tuple[Any]:
    try:
        return (throttle_reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
    return (throttle_reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),)  # drivers before R535


def _one(read: Callable[[Any, Any], Any]) -> Callable[[Any, Any], tuple[Any, ...]]:
    return lambda nvml, handle: (read(nvml, handle),)


_FIELDS: tuple[tuple[tuple[str, ...], Callable[[Any, Any], tuple[Any, ...]]], ...] = (
    (("memory_total_bytes", "memory_used_bytes", "memory_reserved_bytes"), _memory),
    (("process_memory_bytes",), _processes),
    (("busy_ratio", "memory_busy_ratio"), _utilisation),
    (("sm_clock_hz",), _one(lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM) * MHZ)),
    (("memory_clock_hz",), _one(lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM) * MHZ)),
    (("sm_clock_max_hz",), _one(lambda n, h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM) * MHZ)),
    (("memory_clock_max_hz",), _one(lambda n, h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_MEM) * MHZ)),
    (("throttle",), _throttle),
    (
        ("throttled_power_ns",),
        _one(lambda n, h: n.nvmlDeviceGetViolationStatus(h, n.NVML_PERF_POLICY_POWER).violationTime),
    ),
    (
        ("throttled_thermal_ns",),
        _one(lambda n, h: n.nvmlDeviceGetViolationStatus(h, n.NVML_PERF_POLICY_THERMAL).violationTime),
    ),
    (("power_watts",), _one(lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1e3)),
    (("power_limit_watts",), _one(lambda n, h: n.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3)),
    (("temperature_celsius",), _one(lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU))),
    (
        ("pcie_tx_bytes_per_second",),
        _one(lambda n, h: n.nvmlDeviceGetPcieThroughput(h, n.NVML_PCIE_UTIL_TX_BYTES) * KB),
    ),
    (
        ("pcie_rx_bytes_per_second",),
        _one(lambda n, h: n.nvmlDeviceGetPcieThroughput(h, n.NVML_PCIE_UTIL_RX_BYTES) * KB),
    ),
    (("pcie_replays",), _one(lambda n, h: n.nvmlDeviceGetPcieReplayCounter(h))),
    (
        ("ecc_corrected",),
        _one(lambda n, h: n.nvmlDeviceGetTotalEccErrors(h, n.NVML_MEMORY_ERROR_TYPE_CORRECTED, n.NVML_VOLATILE_ECC)),
    ),
    (
        ("ecc_uncorrected",),
        _one(lambda n, h: n.nvmlDeviceGetTotalEccErrors(h, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC)),
    ),
)
"""Field names of `GpuSample` -> what reads them, which may raise NVMLError."""
