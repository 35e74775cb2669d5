"""What a device runner needs of its device, and CUDA as one. The seam where tests put a device of their own."""

from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.runner import ceilings
from engine.runner.event_ring import TimingEvent

_BANDWIDTH_BYTES = 1 << 30
"""Many times any last-level cache."""
_GEMM_EDGE = 8192


class Device(Protocol):
    @property
    def torch_device(self) -> torch.device: ...

    @property
    def name(self) -> str: ...

    @property
    def capability(self) -> tuple[int, int] | None:
        """CUDA compute capability."""
        ...

    @property
    def num_processors(self) -> int: ...

    def usable_memory(self) -> int:
        """Bytes that this process has or could have."""
        ...

    def new_event(self) -> TimingEvent: ...

    def host_buffer(self, num_values: int) -> Tensor:
        """int32 host memory that the device can read by itself."""
        ...

    def wait(self) -> None:
        """Until the device has done everything it was given."""
        ...

    def capture(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Records what `run` launches. Returns how to do it again, and the tensor into which it then writes its result."""
        ...

    def measure_bandwidth(self) -> float:
        """Bytes per second."""
        ...

    def measure_flops(self, dtype: torch.dtype) -> float: ...


class CudaDevice:
    """The first CUDA device. Everything runs on the stream that is current, and on one device."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            built = "torch has no CUDA build" if torch.version.cuda is None else "no usable CUDA device was found"
            raise ConfigError(f"--device cuda: {built}")
        self.torch_device = torch.device("cuda", 0)
        properties = torch.cuda.get_device_properties(self.torch_device)
        self.name = f"cuda: {properties.name}"
        self.capability: tuple[int, int] | None = (properties.major, properties.minor)
        self.num_processors: int = properties.multi_processor_count
        # One pool for all graphs: they run one at a time, and each one's result is used up before the next runs.
        self._graph_pool = torch.cuda.graph_pool_handle()

    def usable_memory(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        return free + torch.cuda.memory_reserved(self.torch_device)

    def new_event(self) -> TimingEvent:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        return cast(TimingEvent, event)

    def host_buffer(self, num_values: int) -> Tensor:
        return torch.empty(num_values, dtype=torch.int32, pin_memory=True)

    def wait(self) -> None:
        torch.cuda.current_stream(self.torch_device).synchronize()

    def capture(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        # Once outside of the capture: kernels are compiled and libraries set up, which a capture must not see. On a
        # stream of its own, as torch asks for.
        stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.torch_device))
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream(self.torch_device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._graph_pool):
            result = run()
        return graph.replay, result

    def measure_bandwidth(self) -> float:
        rate = ceilings.measure_bandwidth(self.torch_device, self.wait, _BANDWIDTH_BYTES)
        torch.cuda.empty_cache()
        return rate

    def measure_flops(self, dtype: torch.dtype) -> float:
        edge = _GEMM_EDGE if dtype.itemsize <= 2 else _GEMM_EDGE // 4
        rate = ceilings.measure_flops(self.torch_device, dtype, self.wait, edge=edge, repeat=4)
        torch.cuda.empty_cache()
        return rate
