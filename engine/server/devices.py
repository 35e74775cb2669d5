"""From options to a runner: which device, which precision, which pool."""

import torch

from engine.errors import ConfigError
from engine.model.registry import LoadedModel
from engine.runner.base import Runner
from engine.runner.cpu import KERNELS, CpuRunner
from engine.runner.cuda import CudaOptions, CudaRunner
from engine.runner.device import CudaDevice
from engine.server.options import ServeOptions
from probes.gpu_monitor import GpuMonitor
from probes.nvml import NvmlProbe


def resolve_device(asked: str) -> str:
    """`cpu` or `cuda`."""
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return asked


def resolve_dtype(asked: str, device: str) -> str:
    """auto: what the device multiplies fastest without surprises. On a CPU bfloat16 can be several times slower."""
    if asked != "auto":
        return asked
    if device == "cpu":
        return "float32"
    return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"


def make_runner(model: LoadedModel, options: ServeOptions, device: str) -> Runner:
    """Raises ConfigError when the device is not there or cannot do what is asked."""
    if device == "cpu":
        if options.attention not in KERNELS:
            raise ConfigError(f"--attention {options.attention} needs a CUDA device; on the CPU: {', '.join(KERNELS)}")
        return CpuRunner(
            model,
            threads=options.threads,
            memory_limit_bytes=options.device_memory,
            kernels=options.attention,
            takes_weights=True,
        )
    if options.attention == "native":
        raise ConfigError("--attention native is for the CPU")
    cuda_options = CudaOptions(
        attention=options.attention,
        max_sequences=options.max_sequences,
        graphs=options.cuda_graphs,
        profile_every=options.profile_every,
        memory_limit_bytes=options.device_memory,
    )
    return CudaRunner(model, CudaDevice(), cuda_options)


def watch_gpu(device: str) -> GpuMonitor | None:
    """Of the GPU that the engine runs on; None on the CPU. Not started yet."""
    if device == "cpu":
        return None
    return GpuMonitor(NvmlProbe(frozenset({f"GPU-{torch.cuda.get_device_properties(0).uuid}"})))
