"""The CPU runner: the compiled kernels where they fit, torch for the rest. With torch alone it is the reference."""

import logging
from collections.abc import Sequence
from functools import partial
from time import perf_counter_ns, thread_time_ns

import torch

from engine.errors import ConfigError
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder
from engine.native import library
from engine.native.attention import NativePagedAttention
from engine.native.library import Library
from engine.native.ops import NativeOps
from engine.runner import host
from engine.runner.base import DeviceMemory, ModelGeometry, StepResult
from engine.runner.host_attention import HostPagedAttention
from engine.runner.kv_blocks import copy_blocks, read_blocks, write_blocks
from engine.runner.model import RunnableModel, check_pool, geometry_of
from engine.runner.sampling import Sampler
from engine.runner.torch_attention import TorchPagedAttention
from engine.step import BatchPlan
from probes import optime
from probes.optime import Laps, LapTimer

log = logging.getLogger("stallscope.engine")

KERNELS = ("auto", "native", "torch")


class CpuRunner:
    """Implements `engine.runner.base.Runner`. `threads` sets torch's intra-op threads for the whole process.

    kernels: `native`, `torch`, or `auto`: native where they are built and fit the model. ConfigError when they do not.
    takes_weights: the native kernels read matrices in a layout of their own. If the model is nobody else's its own copies are
    dropped one by one, so that it is not held twice; it cannot be digested or exported then.
    """

    def __init__(
        self,
        model: RunnableModel,
        *,
        threads: int | None = None,
        memory_limit_bytes: int | None = None,
        kernels: str = "auto",
        takes_weights: bool = False,
    ) -> None:
        self._threads = host.set_threads(threads)
        self._memory_limit_bytes = memory_limit_bytes or host.memory_limit_bytes()
        self._library = _choose_kernels(kernels, model, self._threads)
        self._geometry = geometry_of(model)
        self._weight_bytes = model.weights.num_bytes
        if self._library is None:
            self._decoder = Decoder(model.config, model.weights)
        else:
            self._weight_bytes -= model.weights.droppable_bytes if takes_weights else 0
            ops = NativeOps(self._library)
            self._decoder = Decoder(model.config, model.weights, ops, takes_matrices=takes_weights)
            self._weight_bytes += ops.packed_bytes
        self._attention: HostPagedAttention | None = None
        self._sampler = Sampler()
        self._timer = LapTimer()
        self._bandwidth = host.measure_read_bandwidth(self._threads)
        self._flops = host.measure_flops(self._threads, model.weights.dtype)

    @property
    def geometry(self) -> ModelGeometry:
        return self._geometry

    @property
    def device_name(self) -> str:
        return f"cpu: {host.cpu_name()}, {self._threads} thread{'s' if self._threads > 1 else ''}"

    @property
    def bandwidth_bytes_per_second(self) -> float:
        return self._bandwidth

    @property
    def flops_per_second(self) -> float:
        return self._flops

    @property
    def attention_backend(self) -> str:
        return TorchPagedAttention.name if self._library is None else NativePagedAttention.name

    @property
    def device_time_source(self) -> str:
        return "the engine thread's clock, every step by class"

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        if self._attention is not None:
            raise ConfigError("the KV pool is allocated once, at start")
        available = self._memory_limit_bytes - self._weight_bytes
        check_pool(num_blocks, block_size, bytes_per_token=self._geometry.kv_bytes_per_token, available=available)
        config = self._decoder.config
        build = (
            partial(TorchPagedAttention, max_position=config.max_position, dtype=self._decoder.weights.dtype)
            if self._library is None
            else partial(NativePagedAttention, self._library)
        )
        self._attention = build(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            num_blocks=num_blocks,
            block_size=block_size,
        )

    def memory(self) -> DeviceMemory:
        pool = self._attention.kv.nbytes if self._attention is not None else 0
        return DeviceMemory(self._memory_limit_bytes, self._weight_bytes + pool, self._weight_bytes, pool)

    def read_blocks(self, block_ids: Sequence[int]) -> memoryview:
        return read_blocks(self._require_attention().kv, block_ids)

    def execute(self, plan: BatchPlan) -> StepResult:
        """Imports, copies, forward, sampling. cpu_ns is None with more than one torch thread: the others' time is not seen."""
        cpu_start = thread_time_ns()
        start = perf_counter_ns()
        timer = self._timer
        timer.start()
        with torch.inference_mode():
            logits = self.forward(plan, timer)
            forward_end = perf_counter_ns()
            token_ids, logprobs = self._sampler.sample(logits, plan.sample_requests)
        timer.lap(optime.SAMPLING)
        device_ns = timer.finish()
        end = perf_counter_ns()
        cpu_ns = thread_time_ns() - cpu_start if self._threads == 1 else None
        return StepResult(token_ids, forward_end - start, end - forward_end, cpu_ns, device_ns, logprobs)

    def forward(self, plan: BatchPlan, timer: Laps) -> torch.Tensor:
        """Logits [len(plan.sample_rows), vocab] of a step, KV written. Call it under `torch.inference_mode()`."""
        attention = self._require_attention()
        if plan.imports:
            write_blocks(attention.kv, plan.imports)
        if plan.copies:
            copy_blocks(attention.kv, plan.copies)
        if plan.imports or plan.copies:
            timer.lap(optime.COPY)
        attention.begin(plan)
        token_ids = torch.tensor(plan.token_ids, dtype=torch.int64)
        positions = torch.tensor(plan.positions, dtype=torch.int64)
        sample_rows = torch.tensor(plan.sample_rows, dtype=torch.int64)
        return self._decoder.forward(token_ids, positions, sample_rows, attention, timer)

    def _require_attention(self) -> HostPagedAttention:
        if self._attention is None:
            raise ConfigError("allocate_kv must be called before the first step")
        return self._attention


def _choose_kernels(asked: str, model: RunnableModel, threads: int) -> Library | None:
    """None: torch's. Says in the log which were taken and why."""
    if asked == "torch":
        log.info("kernels of torch: asked for")
        return None
    try:
        found = library.load(threads)
        _check_fit(found, model.config, model.weights.dtype)
    except library.Unavailable as reason:
        if asked != "auto":
            raise ConfigError(f"the native kernels {reason}") from reason
        log.info("kernels of torch: the native ones %s", reason)
        return None
    log.info("native kernels (%s): %s", found.variant, "asked for" if asked == "native" else "they fit the model")
    return found


def _check_fit(found: Library, config: ModelConfig, dtype: torch.dtype) -> None:
    if dtype is not torch.float32:
        raise library.Unavailable(f"take float32, not {str(dtype).removeprefix('torch.')}")
    if not found.takes_head_dim(config.head_dim):
        raise library.Unavailable(f"are not built for a head size of {config.head_dim}")
    sizes = (config.hidden_size, config.intermediate_size, config.query_size, config.kv_size)
    if any(size % library.LANES for size in sizes):
        raise library.Unavailable(f"take sizes that are multiples of {library.LANES}")
