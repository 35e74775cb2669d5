"""From options to a runner, and the ceilings it measures at start."""

import time
from types import SimpleNamespace

import pytest
import torch

from engine.errors import ConfigError
from engine.runner import ceilings, host
from engine.runner.attention.backends import BACKENDS
from engine.runner.cpu import KERNELS, CpuRunner
from engine.runner.device import CudaDevice
from engine.server.devices import make_runner, resolve_device, resolve_dtype, watch_gpu
from engine.server.options import ATTENTIONS, ServeOptions
from tests.engine.model_helpers import tiny
from tests.probes.fake_nvml import FakeDriver, driver, driver_library

__all__ = ["driver", "driver_library"]

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


def test_precision_follows_the_device_unless_asked_for():
    assert resolve_dtype("auto", "cpu") == "float32"
    assert resolve_dtype("bfloat16", "cpu") == "bfloat16"
    assert resolve_device("cuda") == "cuda"


@without_gpu
def test_without_a_gpu_auto_is_the_cpu():
    assert resolve_device("auto") == "cpu"
    runner = make_runner(tiny("float32"), ServeOptions(threads=1, attention="torch"), "cpu")
    assert isinstance(runner, CpuRunner)
    assert runner.attention_backend == "torch"


@without_gpu
def test_asking_for_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="--device cuda: "):
        CudaDevice()


def test_gpu_kernels_are_refused_on_the_cpu():
    with pytest.raises(ConfigError, match="--attention triton needs a CUDA device"):
        make_runner(tiny("float32"), ServeOptions(attention="triton"), "cpu")


def test_the_engines_own_gpu_is_watched_and_no_other(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch):
    """torch counts the visible GPUs, the driver all of them: only the UUID means the same to both."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="b"))
    monitor = watch_gpu("cuda")
    assert monitor is not None
    monitor.start()
    while not monitor.latest().gpus:
        time.sleep(0.005)
    assert [(gpu.index, gpu.uuid) for gpu in monitor.latest().gpus] == [(1, "GPU-b")]
    assert monitor.stop(timeout=30)


def test_on_the_cpu_no_gpu_is_watched():
    assert watch_gpu("cpu") is None


def test_options_name_every_backend():
    assert set(ATTENTIONS) == {*KERNELS, *BACKENDS}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_product_ceiling_is_plausible_and_cheap_in_every_precision(dtype):
    torch.set_num_threads(1)
    host.measure_flops.cache_clear()
    start = time.thread_time()
    flops = host.measure_flops(1, getattr(torch, dtype))
    assert 1e7 < flops < 1e14
    assert time.thread_time() - start < 2.0


def test_the_best_round_counts_and_a_slow_device_is_measured_once():
    waits = []
    rate = ceilings.best_rate(lambda: time.sleep(0.06), lambda: waits.append(1), 6.0)
    assert 50 < rate <= 100
    assert len(waits) == 2  # one after the warm-up, one round


def test_bandwidth_counts_bytes_read_and_written():
    bandwidth = ceilings.measure_bandwidth(torch.device("cpu"), lambda: None, 8 << 20)
    assert 1e8 < bandwidth < 1e13


@pytest.mark.parametrize("tied", [False, True])
def test_weights_move_as_a_whole_and_stay_tied(tied):
    weights = tiny("float32").weights
    if tied:
        weights.lm_head = weights.embedding
    before = weights.num_bytes
    weights.move_to(torch.device("meta"))
    assert all(tensor.is_meta for tensor in weights.tensors())
    assert weights.num_bytes == before
    assert (weights.lm_head is weights.embedding) == tied
