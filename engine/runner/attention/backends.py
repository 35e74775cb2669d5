"""Which attention backend runs: asked for by name, or the best one that this device, model and pool allow."""

import importlib.util
import logging
from collections.abc import Callable
from typing import NamedTuple

import torch

from engine.errors import ConfigError
from engine.runner.attention.flash_kernels import FlashKernels, installed_generations, usable_generations
from engine.runner.attention.paged import Kernels, PagedAttention, StepAttention
from engine.runner.torch_attention import TorchPagedAttention

log = logging.getLogger("stallscope.engine")

AUTO = "auto"
_MAX_HEAD_DIM = 256


class AttentionSpec(NamedTuple):
    """What a backend must serve."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_blocks: int
    block_size: int
    max_position: int
    dtype: torch.dtype
    device: torch.device
    capability: tuple[int, int] | None
    """CUDA compute capability; None for another kind of device."""
    num_processors: int
    """Multiprocessors of the device."""


class Backend(NamedTuple):
    refuse: Callable[[AttentionSpec], str | None]
    """Why it cannot serve this, in a few words; None when it can. Imports nothing."""
    build: Callable[[AttentionSpec], StepAttention]


def _refuse_torch(_: AttentionSpec) -> str | None:
    return None


def _build_torch(spec: AttentionSpec) -> StepAttention:
    return TorchPagedAttention(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        num_blocks=spec.num_blocks,
        block_size=spec.block_size,
        max_position=spec.max_position,
        dtype=spec.dtype,
        device=spec.device,
    )


def _refuse_triton(spec: AttentionSpec) -> str | None:
    if spec.capability is None:
        return "needs a CUDA device"
    if spec.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"has no kernel for {_name(spec.dtype)}"
    if spec.head_dim > _MAX_HEAD_DIM:
        return f"takes a head size of at most {_MAX_HEAD_DIM}, not {spec.head_dim}"
    return None if importlib.util.find_spec("triton") is not None else "triton is not installed"


def _build_triton(spec: AttentionSpec) -> StepAttention:
    from engine.runner.attention.triton_kernels import TritonKernels

    assert spec.capability is not None
    max_context = min(spec.max_position, spec.num_blocks * spec.block_size)
    kernels = TritonKernels(num_processors=spec.num_processors, capability=spec.capability, max_context=max_context)
    return paged(kernels, spec)


def _refuse_flash(spec: AttentionSpec) -> str | None:
    if spec.capability is None:
        return "needs a CUDA device"
    if spec.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 and bfloat16, not {_name(spec.dtype)}"
    if spec.head_dim > _MAX_HEAD_DIM:
        return f"takes a head size of at most {_MAX_HEAD_DIM}, not {spec.head_dim}"
    installed = installed_generations()
    if not installed:
        return "is not installed"
    usable, refused = usable_generations(spec.capability, spec.block_size)
    if installed & set(usable):
        return None
    return "; ".join(
        f"version {generation} is installed, but {refused[generation]}" for generation in sorted(installed)
    )


def _build_flash(spec: AttentionSpec) -> StepAttention:
    assert spec.capability is not None
    usable, _ = usable_generations(spec.capability, spec.block_size)
    return paged(FlashKernels(next(g for g in usable if g in installed_generations())), spec)


BACKENDS: dict[str, Backend] = {
    "flash_attn": Backend(_refuse_flash, _build_flash),
    "triton": Backend(_refuse_triton, _build_triton),
    "torch": Backend(_refuse_torch, _build_torch),
}
"""Best first. Nothing is imported or compiled before `build`."""


def paged(kernels: Kernels, spec: AttentionSpec) -> PagedAttention:
    return PagedAttention(
        kernels,
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        num_blocks=spec.num_blocks,
        block_size=spec.block_size,
        dtype=spec.dtype,
        device=spec.device,
    )


def choose(asked: str, spec: AttentionSpec) -> tuple[str, str]:
    """The backend's name and why it is the one. ConfigError when the one asked for cannot serve."""
    if asked != AUTO:
        why_not = BACKENDS[asked].refuse(spec)
        if why_not is not None:
            raise ConfigError(f"--attention {asked}: {asked} {why_not}")
        return asked, "asked for"
    passed_over: list[str] = []
    for name, backend in BACKENDS.items():
        why_not = backend.refuse(spec)
        if why_not is None:
            return name, "; ".join(passed_over) or "the fastest one there is"
        passed_over.append(f"{name} {why_not}")
    raise AssertionError("torch serves everything")


def build_attention(asked: str, spec: AttentionSpec) -> StepAttention:
    """Chooses, says so in the log, allocates the pool."""
    name, reason = choose(asked, spec)
    attention = BACKENDS[name].build(spec)
    log.info("attention backend %s: %s", attention.name, reason)
    return attention


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
