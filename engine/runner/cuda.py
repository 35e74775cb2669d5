"""The runner of CUDA devices: paged attention by the best backend there is, captured decode steps, times from events."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns, thread_time_ns

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.model.decoder import Decoder
from engine.runner.attention.backends import AUTO, AttentionSpec, build_attention
from engine.runner.attention.layout import pack_step
from engine.runner.attention.paged import StepAttention
from engine.runner.base import DeviceMemory, LateDeviceTime, ModelGeometry, StepResult
from engine.runner.decode_graphs import DecodeGraphs
from engine.runner.device import Device
from engine.runner.kernel_classes import profile
from engine.runner.kv_blocks import copy_blocks, read_blocks, write_blocks
from engine.runner.model import RunnableModel, check_pool, geometry_of
from engine.runner.sampling import Sampler
from engine.runner.staging import Staging
from engine.runner.step_clock import Clock, NoClock, StepClock
from engine.step import BatchPlan
from probes import optime
from probes.optime import Laps
from probes.records import step_kind

log = logging.getLogger("stallscope.engine")

_FIRST_PROFILE = 32
"""Graph steps before the first one is profiled: what runs at start is not typical."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaOptions:
    attention: str = AUTO
    """A name of `engine.runner.attention.backends.BACKENDS`, or `auto`."""
    max_sequences: int = 64
    """The largest decode batch that is captured."""
    graphs: bool = True
    device_times: bool = True
    """False: no step is timed on the device, nor profiled."""
    split_every: int = 16
    """Every which step of a kind, run without a graph, is timed class by class; 0: none."""
    profile_every: int = 2048
    """Every which graph step is run a second time under a profiler, for its split into classes; 0: none."""
    memory_limit_bytes: int | None = None
    """For weights and pool; None: what the device has."""


class CudaRunner:
    """Implements `engine.runner.base.Runner`. Moves the model's weights to the device."""

    def __init__(self, model: RunnableModel, device: Device, options: CudaOptions | None = None) -> None:
        self._device = device
        self._options = options or CudaOptions()
        # Before the weights: the probes' memory is given back first.
        self._bandwidth = device.measure_bandwidth()
        self._flops = device.measure_flops(model.weights.dtype)
        model.weights.move_to(device.torch_device)
        self._sampler = Sampler()
        self._decoder = Decoder(model.config, model.weights)
        self._geometry = geometry_of(model)
        self._staging = Staging(device)
        self._clock: Clock = NoClock()
        if self._options.device_times:
            self._clock = StepClock(device.new_event, split_every=self._options.split_every)
        self._attention: StepAttention | None = None
        self._graphs: DecodeGraphs | None = None
        self._num_graph_steps = 0
        self._profile_every = self._options.profile_every if self._options.device_times else 0
        self._memory_limit_bytes = self._options.memory_limit_bytes or device.usable_memory()

    @property
    def geometry(self) -> ModelGeometry:
        return self._geometry

    @property
    def device_name(self) -> str:
        return self._device.name

    @property
    def bandwidth_bytes_per_second(self) -> float:
        return self._bandwidth

    @property
    def flops_per_second(self) -> float:
        return self._flops

    @property
    def attention_backend(self) -> str:
        return self._require_attention().name

    @property
    def device_time_source(self) -> str:
        options = self._options
        if not options.device_times:
            return "none"
        split = (
            f"classes measured in every {options.split_every}th step of a kind" if options.split_every else "no classes"
        )
        if self._graphs is not None and options.profile_every:
            split += f", of captured decodes by a profiler about every {options.profile_every} steps"
        return f"device events, every step as a whole; {split}, others divided alike"

    def memory(self) -> DeviceMemory:
        weights = self._geometry.weight_bytes
        pool = self._attention.kv.nbytes if self._attention is not None else 0
        return DeviceMemory(self._memory_limit_bytes, weights + pool, weights, pool)

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        if self._attention is not None:
            raise ConfigError("the KV pool is allocated once, at start")
        available = self._memory_limit_bytes - self._geometry.weight_bytes
        check_pool(num_blocks, block_size, bytes_per_token=self._geometry.kv_bytes_per_token, available=available)
        config = self._decoder.config
        self._attention = build_attention(
            self._options.attention,
            AttentionSpec(
                num_layers=config.num_layers,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                num_blocks=num_blocks,
                block_size=block_size,
                max_position=config.max_position,
                dtype=self._decoder.weights.dtype,
                device=self._device.torch_device,
                capability=self._device.capability,
                num_processors=self._device.num_processors,
            ),
        )
        if self._options.graphs:
            self._capture(self._attention, num_blocks, block_size)

    def read_blocks(self, block_ids: Sequence[int]) -> memoryview:
        """Waits for the device."""
        return read_blocks(self._require_attention().kv, block_ids)

    def execute(self, plan: BatchPlan) -> StepResult:
        """Imports, copies, forward, sampling. The step's own device time usually comes with the next step's result."""
        cpu_start = thread_time_ns()
        start = perf_counter_ns()
        size = self._graphs.size_for(plan) if self._graphs is not None else None
        key = f"graph {size}" if size is not None else str(_kind(plan))
        with torch.inference_mode(), self._clock.step(plan.step_id, key, can_split=size is None) as marks:
            if plan.imports:
                write_blocks(self._require_attention().kv, plan.imports)
            if plan.copies:
                copy_blocks(self._require_attention().kv, plan.copies)
            if plan.imports or plan.copies:
                marks.step.lap(optime.COPY)
            logits = self._replay(plan, size) if size is not None else self.forward(plan, marks.forward)
            marks.step.lap(optime.OTHER)
            forward_end = perf_counter_ns()
            # Reading the tokens waits for the device; a step that samples nothing waits by itself.
            token_ids, logprobs = self._sampler.sample(logits, plan.sample_requests)
            marks.step.lap(optime.SAMPLING)
            if not token_ids:
                self._device.wait()
        end = perf_counter_ns()
        cpu_ns = thread_time_ns() - cpu_start
        if size is not None:
            self._maybe_profile(key, size)
        known = dict(self._clock.collect())
        own = known.pop(plan.step_id, None)
        late = tuple(LateDeviceTime(*item) for item in known.items())
        return StepResult(token_ids, forward_end - start, end - forward_end, cpu_ns, own, logprobs, late)

    def forward(self, plan: BatchPlan, timer: Laps) -> Tensor:
        """Logits [len(plan.sample_rows), vocab] of a step outside of any graph, KV written. Under `inference_mode`, and
        not before the device is done with the step before: both use one buffer for their inputs."""
        attention = self._require_attention()
        packed = pack_step(plan)
        layout = packed.unpack(self._staging.send(packed.values))
        attention.use(layout)
        return self._decoder.forward(layout.token_ids, layout.positions, layout.sample_rows, attention, timer)

    def _replay(self, plan: BatchPlan, size: int) -> Tensor:
        assert self._graphs is not None
        return self._graphs.replay(plan, size, self._staging)

    def _maybe_profile(self, key: str, size: int) -> None:
        """Sees now and then what a graph's time consists of. The step is over; its requests wait some tens of ms."""
        every = self._profile_every
        self._num_graph_steps += 1
        if not every or (self._num_graph_steps - _FIRST_PROFILE) % every:
            return
        graphs = self._graphs
        assert graphs is not None
        try:
            with torch.inference_mode():
                self._clock.learn(key, profile(lambda: graphs.repeat(size), self._device.wait))
        except Exception:  # a profiler that another tool holds, say: no reason to fail requests
            self._profile_every = 0
            log.warning("captured steps are no longer profiled, their device time stays undivided", exc_info=True)

    def _capture(self, attention: StepAttention, num_blocks: int, block_size: int) -> None:
        if not attention.supports_graphs:
            log.info("decode steps are not captured: attention backend %s cannot be replayed", attention.name)
            return
        start = perf_counter()
        graphs = DecodeGraphs(
            self._device,
            self._decoder,
            attention,
            max_sequences=self._options.max_sequences,
            num_blocks=num_blocks,
            block_size=block_size,
        )
        with torch.inference_mode():
            graphs.capture()
        self._graphs = graphs
        sizes = ", ".join(map(str, graphs.sizes))
        log.info("decode steps captured for batches of %s in %.1f s", sizes, perf_counter() - start)

    def _require_attention(self) -> StepAttention:
        if self._attention is None:
            raise ConfigError("allocate_kv must be called before the first step")
        return self._attention


def _kind(plan: BatchPlan) -> str:
    return step_kind(plan.num_decode_seqs, len(plan.query_lens) - plan.num_decode_seqs)
