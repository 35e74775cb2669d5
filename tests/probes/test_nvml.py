"""NVML against a small driver library built from C: what it says, what it does not have, and a GPU that is lost on the way."""

import sys
import threading
import time

import pytest

from probes.gpu import GpuReading, GpuSample, GpuState, ThrottleReason, gpu_numbers, throttle_reasons
from probes.gpu_monitor import GpuMonitor
from probes.nvml import NvmlProbe
from tests.probes.fake_nvml import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    FakeDriver,
    driver,
    driver_library,
)

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (the `gpu` extra)")

__all__ = ["driver", "driver_library"]


def first(probe: NvmlProbe) -> GpuSample:
    return probe.sample().gpus[0]


def test_every_figure_in_base_units(driver: FakeDriver):
    probe = NvmlProbe()
    assert first(probe) == GpuSample(
        index=0,
        uuid="GPU-a",
        name="Fake H200",
        memory_total_bytes=1000,
        memory_used_bytes=900,
        memory_reserved_bytes=10,
        process_memory_bytes={100: 850, 101: None},
        busy_ratio=0.97,
        memory_busy_ratio=0.40,
        sm_clock_hz=1_200_000_000,
        memory_clock_hz=2_600_000_000,
        sm_clock_max_hz=1_980_000_000,
        memory_clock_max_hz=2_619_000_000,
        throttle=frozenset({ThrottleReason.GPU_IDLE}),
        throttled_power_ns=3_000_000_000,
        throttled_thermal_ns=7_000_000_000,
        power_watts=650.5,
        power_limit_watts=700.0,
        temperature_celsius=61,
        pcie_tx_bytes_per_second=1_000_000,
        pcie_rx_bytes_per_second=2_000_000,
        pcie_replays=3,
        ecc_corrected=12,
        ecc_uncorrected=0,
        xid_errors=0,
        last_xid=0,
    )
    assert [gpu.uuid for gpu in probe.sample().gpus] == ["GPU-a", "GPU-b"]
    assert probe.reason is None
    probe.close()
    assert driver.open_event_sets == 0


FIELDS = {
    "nvmlDeviceGetComputeRunningProcesses_v3": ["process_memory_bytes"],
    "nvmlDeviceGetUtilizationRates": ["busy_ratio", "memory_busy_ratio"],
    "nvmlDeviceGetClockInfo": ["sm_clock_hz", "memory_clock_hz"],
    "nvmlDeviceGetMaxClockInfo": ["sm_clock_max_hz", "memory_clock_max_hz"],
    "nvmlDeviceGetCurrentClocksEventReasons": ["throttle"],
    "nvmlDeviceGetViolationStatus": ["throttled_power_ns", "throttled_thermal_ns"],
    "nvmlDeviceGetPowerUsage": ["power_watts"],
    "nvmlDeviceGetEnforcedPowerLimit": ["power_limit_watts"],
    "nvmlDeviceGetTemperature": ["temperature_celsius"],
    "nvmlDeviceGetPcieThroughput": ["pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second"],
    "nvmlDeviceGetPcieReplayCounter": ["pcie_replays"],
    "nvmlDeviceGetTotalEccErrors": ["ecc_corrected", "ecc_uncorrected"],
    "nvmlDeviceRegisterEvents": ["xid_errors", "last_xid"],
}


@pytest.mark.parametrize("function", FIELDS)
@pytest.mark.parametrize(
    ("code", "reason"), [(NOT_SUPPORTED, "Not Supported"), (NO_PERMISSION, "Insufficient Permissions")]
)
def test_what_a_gpu_does_not_have_is_none_with_the_reason(driver: FakeDriver, function, code, reason):
    whole = first(NvmlProbe())
    driver.fail(function, code)
    sample = first(NvmlProbe())
    assert sample.missing == dict.fromkeys(FIELDS[function], reason)
    for name in GpuSample.__dataclass_fields__.keys() - {"missing"}:
        assert getattr(sample, name) == (None if name in FIELDS[function] else getattr(whole, name)), name


def test_a_gpu_that_says_next_to_nothing(driver: FakeDriver):
    """As a consumer card in a container: each figure has a reason, and the GPU is there."""
    driver.fail("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED)
    driver.fail("nvmlDeviceGetMemoryInfo_v2", NOT_SUPPORTED)
    for function in FIELDS:
        driver.fail(function, NOT_SUPPORTED)
    sample = first(NvmlProbe())
    known = {"index", "uuid", "name", "state", "missing"}
    assert (sample.state, sample.uuid) == (GpuState.OK, "GPU-a")
    assert sample.missing.keys() == GpuSample.__dataclass_fields__.keys() - known


def test_an_older_driver_has_older_functions(driver: FakeDriver):
    driver.fail("nvmlDeviceGetMemoryInfo_v2", FUNCTION_NOT_FOUND)
    driver.fail("nvmlDeviceGetCurrentClocksEventReasons", FUNCTION_NOT_FOUND)
    sample = first(NvmlProbe())
    assert (sample.memory_used_bytes, sample.memory_reserved_bytes) == (910, None)
    assert sample.throttle == frozenset({ThrottleReason.GPU_IDLE})
    assert sample.missing.keys() == {"memory_reserved_bytes"}


def test_only_the_gpus_asked_for(driver: FakeDriver):
    assert [gpu.index for gpu in NvmlProbe(frozenset({"GPU-b"})).sample().gpus] == [1]
    assert NvmlProbe(frozenset({"GPU-c"})).sample() == GpuReading((), "no GPU GPU-c")


@pytest.mark.parametrize(
    ("mask", "expected"), [(0, set()), (0b1_0100_1000, {"hw_slowdown", "hw_thermal", "display_clocks"})]
)
def test_throttle_reasons_are_named(driver: FakeDriver, mask, expected):
    driver.throttle(mask | 1 << 40)  # and one of a newer driver
    assert first(NvmlProbe()).throttle == expected
    assert throttle_reasons(mask) == expected


def test_the_bits_are_those_of_the_library():
    names = ["GpuIdle", "ApplicationsClocksSetting", "SwPowerCap", "HwSlowdown", "SyncBoost", "SwThermalSlowdown"]
    names += ["HwThermalSlowdown", "HwPowerBrakeSlowdown", "DisplayClockSetting"]
    for name, reason in zip(names, ThrottleReason, strict=True):
        assert throttle_reasons(getattr(pynvml, f"nvmlClocksEventReason{name}")) == {reason}


def test_errors_are_counted_on_the_gpu_that_had_them(driver: FakeDriver):
    probe = NvmlProbe()
    for code in (13, 79):
        driver.xid(1, code)
    driver.ecc_uncorrected(2)
    quiet, hit = probe.sample().gpus
    assert (quiet.xid_errors, quiet.last_xid) == (0, 0)
    assert (hit.xid_errors, hit.last_xid, hit.ecc_uncorrected) == (2, 79, 2)
    driver.xid(1, 48)
    assert (probe.sample().gpus[1].xid_errors, probe.sample().gpus[1].last_xid) == (3, 48)


def test_a_storm_of_events_is_read_in_bounded_parts(driver: FakeDriver):
    probe = NvmlProbe()
    for _ in range(100):
        driver.xid(0, 31)
    assert [first(probe).xid_errors for _ in range(3)] == [64, 100, 100]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, RESET_REQUIRED])
def test_a_gpu_lost_on_the_way_is_a_state_and_may_come_back(driver: FakeDriver, code):
    probe = NvmlProbe()
    assert first(probe).state is GpuState.OK
    driver.lose(0, code)
    lost, other = probe.sample().gpus
    assert (lost.state, lost.uuid, lost.memory_total_bytes, lost.throttle) == (GpuState.LOST, "GPU-a", None, None)
    assert "state" in lost.missing
    assert other.state is GpuState.OK
    driver.recover(0)
    assert first(probe).state is GpuState.OK
    driver.lose(0, code)
    probe.close()


def test_a_gpu_lost_in_the_middle_of_a_sample(driver: FakeDriver):
    probe = NvmlProbe()
    driver.fail("nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_GPU_IS_LOST, device=0)
    assert (first(probe).state, first(probe).sm_clock_hz) == (GpuState.LOST, None)


def test_a_gpu_lost_before_the_probe_was_opened_is_listed_as_lost(driver: FakeDriver):
    driver.lose(1)
    ok, lost = NvmlProbe().sample().gpus
    assert (ok.state, lost.state, lost.index) == (GpuState.OK, GpuState.LOST, 1)


def test_events_that_stop_working_are_missing_from_then_on(driver: FakeDriver):
    probe = NvmlProbe()
    driver.fail("nvmlEventSetWait_v2", NO_PERMISSION)
    probe.sample()
    assert first(probe).missing == dict.fromkeys(("xid_errors", "last_xid"), "Insufficient Permissions")


def test_without_a_driver_there_is_a_reason(driver: FakeDriver):
    driver.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    probe = NvmlProbe()
    assert probe.sample() == GpuReading((), "no NVIDIA driver: Driver Not Loaded")
    probe.close()


def test_without_its_library_there_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    def no_such_file(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_such_file)
    assert NvmlProbe().sample() == GpuReading((), "no NVIDIA driver: NVML Shared Library Not Found")


def test_gpus_that_cannot_be_listed(driver: FakeDriver):
    driver.fail("nvmlDeviceGetCount_v2", NO_PERMISSION)
    assert NvmlProbe().sample() == GpuReading((), "the GPUs cannot be listed: Insufficient Permissions")


def test_without_the_binding_there_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "stallscope[gpu]" in str(NvmlProbe().reason)


def test_a_closed_probe_says_so_and_closes_again(driver: FakeDriver):
    driver.fail("nvmlShutdown", pynvml.NVML_ERROR_UNINITIALIZED)
    driver.fail("nvmlEventSetFree", pynvml.NVML_ERROR_UNINITIALIZED)
    probe = NvmlProbe()
    probe.close()
    probe.close()
    assert probe.sample() == GpuReading((), "closed, and the driver said Uninitialized")


def test_what_is_none_has_no_series(driver: FakeDriver):
    driver.fail("nvmlDeviceGetPowerUsage", NOT_SUPPORTED, device=1)
    driver.fail("nvmlDeviceGetCurrentClocksEventReasons", NOT_SUPPORTED, device=1)
    numbers = gpu_numbers(NvmlProbe().sample(), process_id=100)
    assert numbers["gpu_power_watts"] == {("0", "GPU-a"): 650.5}
    assert numbers["gpu_memory_bytes"]["0", "GPU-a", "this_process"] == 850
    assert {key[2]: value for key, value in numbers["gpu_throttle"].items()} == {
        reason: float(reason == "gpu_idle") for reason in ThrottleReason
    }
    assert numbers["gpu_lost"] == {("0", "GPU-a"): 0, ("1", "GPU-b"): 0}
    assert ("0", "GPU-a", "this_process") not in gpu_numbers(NvmlProbe().sample(), process_id=101)["gpu_memory_bytes"]


class ScriptedProbe:
    """Answers what it was given, one after the other, and the last of it for ever."""

    def __init__(self, *answers: GpuReading | Exception, block: threading.Event | None = None) -> None:
        self._answers = list(answers)
        self._block = block
        self.closed = threading.Event()
        self.sampled = threading.Semaphore(0)

    def sample(self) -> GpuReading:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        self.sampled.release()
        if self._block is not None:
            self._block.wait(30)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed.set()


def reading(index: int) -> GpuReading:
    return GpuReading((GpuSample(index=index, uuid="GPU-a", name="x"),))


def eventually(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_monitor_keeps_the_latest_reading_and_survives_a_fault_of_the_probe():
    probe = ScriptedProbe(reading(0), ZeroDivisionError("a bug"), reading(2))
    monitor = GpuMonitor(probe, interval_seconds=0.001)
    assert monitor.latest() == GpuReading((), "not read yet")
    monitor.start()
    eventually(lambda: monitor.probe_errors == 1)
    for _ in range(4):
        assert probe.sampled.acquire(timeout=30)
    monitor._interval = 1000.0  # nothing is stale from here on
    assert monitor.latest() == reading(2)
    assert monitor.stop(timeout=30)
    assert probe.closed.is_set()


def test_a_driver_that_never_answers_holds_nobody_up():
    release = threading.Event()
    probe = ScriptedProbe(reading(0), block=release)
    monitor = GpuMonitor(probe, interval_seconds=0.001)
    monitor.start()
    assert probe.sampled.acquire(timeout=30)
    eventually(lambda: "has not answered" in str(monitor.latest().reason))
    assert not monitor.stop(timeout=0.01)
    release.set()
    assert probe.closed.wait(30)


def test_a_monitor_that_was_never_started_stops_at_once():
    assert GpuMonitor(ScriptedProbe(reading(0))).stop()
