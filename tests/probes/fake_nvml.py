"""Builds `fake_nvml.c` and puts it where nvidia-ml-py finds the driver's library."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND = 3, 4, 9, 13
GPU_IS_LOST, RESET_REQUIRED = 15, 16


class FakeDriver:
    """What a test says to the fake driver."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.fake_reset()

    def fail(self, function: str, code: int, device: int = -1) -> None:
        self._library.fake_fail(function.encode(), device, code)

    def lose(self, device: int, code: int = GPU_IS_LOST) -> None:
        self.fail("*", code, device)

    def recover(self, device: int) -> None:
        self.fail("*", 0, device)

    def xid(self, device: int, code: int) -> None:
        self._library.fake_xid(device, ctypes.c_uint64(code))

    def throttle(self, mask: int) -> None:
        self._library.fake_throttle(ctypes.c_uint64(mask))

    def ecc_uncorrected(self, count: int) -> None:
        self._library.fake_ecc(ctypes.c_uint64(count))

    @property
    def open_event_sets(self) -> int:
        return int(self._library.fake_event_sets())


@pytest.fixture(scope="session")
def driver_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the fake driver with")
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    # With the real one's soname: once it is loaded, whoever asks for the driver's library gets this one.
    options = ["-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *options, "-o", str(target), str(source)], check=True, timeout=60)
    return ctypes.CDLL(str(target))


@pytest.fixture
def driver(driver_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (the `gpu` extra)")
    monkeypatch.setattr(pynvml, "nvmlLib", driver_library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    yield FakeDriver(driver_library)
