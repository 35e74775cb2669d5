"""Host to device: a step's integers in one copy out of memory that the device reads by itself."""

from array import array

import torch
from torch import Tensor

from engine.runner.device import Device


class Staging:
    """One buffer, used again by every step: a step is over only when the device has done it (`Runner.execute`), so that
    the copy out of the buffer is over too. Grows to the largest step."""

    def __init__(self, device: Device, num_values: int = 1 << 14) -> None:
        self._device = device
        self._reserve(num_values)

    def send(self, values: "array[int]") -> Tensor:
        """The values on the device: [len(values)] int32. Returns before the device has them."""
        count = len(values)
        if count > self._buffer.numel():
            self._reserve(2 * count)
        self._bytes[: 4 * count] = memoryview(values).cast("B")
        arrived = torch.empty(count, dtype=torch.int32, device=self._device.torch_device)
        return arrived.copy_(self._buffer[:count], non_blocking=True)

    def _reserve(self, num_values: int) -> None:
        self._buffer = self._device.host_buffer(num_values)
        self._bytes = self._buffer.numpy().data.cast("B")
