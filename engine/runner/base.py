"""What the engine core asks of a device."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from engine.step import BatchPlan
from probes.records import DeviceTime


class ModelGeometry(NamedTuple):
    """Numbers from which bytes and FLOPs of a step follow (lesson sections 4 and 6)."""

    name: str
    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    num_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    """2 * num_layers * num_kv_heads * head_dim * bytes per element: KV heads, never query heads."""
    dtype: str


class TokenLogprobs(NamedTuple):
    """Natural logs of a sampled token's probability and of the best tokens', before temperature, penalties and filters."""

    logprob: float
    top_token_ids: list[int]
    """Best first, as many as `SamplingParams.logprobs` asks for; the sampled token need not be among them."""
    top_logprobs: list[float]


class LateDeviceTime(NamedTuple):
    """Device time of an earlier step, known only now. None: it was lost (its slot was needed before it could be read)."""

    step_id: int
    device_ns: DeviceTime | None


class StepResult(NamedTuple):
    token_ids: list[int]
    """One sampled token per `BatchPlan.sample_requests`, in order."""
    forward_ns: int
    sample_ns: int
    cpu_ns: int | None
    """CPU time of the calling thread in forward and sample."""
    device_ns: DeviceTime | None
    logprobs: list[TokenLogprobs | None] | None = None
    """One per token, None for requests that did not ask; None as a whole when none did."""
    """None when nothing times this device, or when the time comes later, as one of a later step's `late_device_ns`."""
    late_device_ns: tuple[LateDeviceTime, ...] = ()
    """Times of earlier steps. A step that is timed is told exactly once: here or as its own `device_ns`."""


class DeviceMemory(NamedTuple):
    """Bytes. `reserved` is what the engine allocated at start (weights and pool): it says nothing about occupancy."""

    total: int
    reserved: int
    weights: int
    kv_pool: int


class Runner(Protocol):
    """Executes batches on one device. Not thread-safe: only the engine thread calls it."""

    @property
    def geometry(self) -> ModelGeometry: ...

    @property
    def device_name(self) -> str: ...

    @property
    def bandwidth_bytes_per_second(self) -> float | None:
        """Read bandwidth measured on this device at start; the ceiling a decode step is held against."""
        ...

    @property
    def flops_per_second(self) -> float | None:
        """Matrix product rate in the model's precision, measured at start; the ceiling of prefill."""
        ...

    @property
    def attention_backend(self) -> str:
        """The kernels that run, by name; known once the pool is allocated."""
        ...

    @property
    def device_time_source(self) -> str:
        """How device times come about, in words: what of them is measured in every step and what is divided."""
        ...

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """Allocates and touches the whole pool once; no allocation of KV memory happens afterwards."""
        ...

    def memory(self) -> DeviceMemory: ...

    def read_blocks(self, block_ids: Sequence[int]) -> memoryview:
        """The KV of whole blocks in host memory, one after the other, each as `BlockImport.content` has it."""
        ...

    def execute(self, plan: BatchPlan) -> StepResult:
        """Returns when the device has done the step, so that a record's spans are those of the work."""
        ...
