"""What a case is made of: a server's shape and its faults, its loads, and what then is true of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from probes.gpu import GpuSample
from runbooks.drills.service_levels import Symptom
from runbooks.experiments.workload import Load
from tests.builders import HEALTHY_GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A server as configured, and what its work costs (microseconds of an undisturbed step)."""

    name: str
    budget: int
    max_sequences: int
    kv_blocks: int
    block_size: int
    weight_read_us: float
    overhead_us: float
    """Of a step, besides reading."""
    per_sequence_us: float
    per_context_us: float
    """Reading the KV of one position."""
    per_prompt_token_us: float
    per_pair_us: float
    schedule_us: float
    noise: float
    """Relative spread of a step's cost."""
    memory_share: float
    """Of the device's memory, given to weights and pool at start."""
    has_cpu_time: bool
    """Whether its records hold the thread's CPU time."""
    read_rate: float = 10e9
    """Bytes per second, the ceiling; reading reaches nine tenths of it."""

    @property
    def info(self) -> dict[str, str]:
        rate = 0.9 * self.read_rate / 1e6  # bytes per microsecond
        return {
            "version": "0.1.0",
            "model": self.name,
            "weight_bytes": str(round(self.weight_read_us * rate)),
            "kv_bytes_per_token": str(round(self.per_context_us * rate)),
            "block_size": str(self.block_size),
            "prefix_cache": "true",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is wrong with a server beyond its load and limits."""

    lock_wait_us: float = 0
    """Mean wait for the scheduler lock per step; exponential, as contention is."""
    schedule_factor: float = 1
    postprocess_us: float = 100
    """Handing out a step's tokens."""
    slowdown: float = 1
    """Of all device work."""
    leaked_share: float = 0
    """Of the pool: blocks held by nobody."""
    blocked_line: bool = False
    """The first request that arrives in the window can never start, and nobody passes it."""
    hangs: bool = False
    """No step in the window."""
    frontend_block_us: float = 0
    """For so long the front end stands still, again and again, with pauses of a fifth of that."""
    gpu: GpuSample = HEALTHY_GPU


@dataclass(frozen=True, slots=True)
class Burst:
    """Requests that all arrive at the start, to be decoding by the time the window opens."""

    count: int
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Scenario:
    shape: Shape
    quiet: tuple[Load, ...]
    """Of the baseline."""
    loads: tuple[Load, ...]
    """Of the incident."""
    burst: Burst | None = None
    faults: Faults = field(default_factory=Faults)
    window_seconds: float = 14.0
    settle_seconds: float = 0.0
    """Between the end of the warm-up and the window: for what was running to end."""
    ends_with_warm_up: bool = False
    """No request arrives after the warm-up."""
    dies: bool = False
    """The target is gone for the last third of the window."""
    lacks_memory: bool = False
    """Steps fail for lack of memory at two thirds of the window, and the engine gives up; its server still answers."""
    client_factor: float | None = None
    """What clients report, as a multiple of the true p99 inter-token latency."""
    part: str = ""
    """Where the condition puts the time between tokens (a name of accounts.PARTS); empty where it puts none there."""


@dataclass(frozen=True, slots=True)
class Mask:
    """How the deciding signal of a condition is taken away."""

    families: tuple[str, ...] = ()
    """Metric families that the pages then lack, without the prefix."""
    records: bool = False
    baseline: bool = False
    reported: bool = False
    log: bool = False
    """Of a drill that hands it over; the cases show a log only in views of their own."""


@dataclass(frozen=True, slots=True)
class Condition:
    name: str
    induce: Callable[[Scenario, Random], Scenario]
    symptom: Symptom
    primary: tuple[str, ...] = ()
    """Names of which one is the right primary cause; none for a server with nothing wrong."""
    required: tuple[str, ...] = ()
    """What must be supported, whatever is primary."""
    also: tuple[str, ...] = ()
    """What is true as well, as its consequence or its mechanism."""
    mask: Mask | None = None
    hidden: str = ""
    """The hypothesis that its mask leaves undetermined."""
