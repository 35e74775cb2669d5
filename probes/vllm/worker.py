"""The worker's side: wall and CPU time of each forward pass, sent back on the output that goes to the engine anyway."""

import os
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any, NamedTuple

from probes.vllm.hooks import Hooks

TIMES_ATTRIBUTE = "stallscope_times"
DEVICE_ATTRIBUTE = "stallscope_device"


class WorkerTimes(NamedTuple):
    """Stamps of the monotonic clock, which all processes of a machine share."""

    begin_ns: int
    forward_end_ns: int
    sample_begin_ns: int
    end_ns: int
    cpu_ns: int | None
    """CPU time of the worker's thread in both parts; None on a GPU and with several threads: it would not be the work's."""


def times_of(model_output: Any) -> WorkerTimes | None:
    """What the worker sent along with its output; None when it has no probe."""
    found = getattr(model_output, TIMES_ATTRIBUTE, None)
    return None if found is None else WorkerTimes(*found)


class DeviceFacts(NamedTuple):
    """Of one worker's device. Bytes; None: cannot be told."""

    device: str
    total_bytes: int | None
    reserved_bytes: int | None
    """By the worker's process."""
    weight_bytes: int | None
    num_parameters: int | None


def device_of(model_output: Any) -> DeviceFacts | None:
    """Comes with a worker's first output."""
    found = getattr(model_output, DEVICE_ATTRIBUTE, None)
    return None if found is None else DeviceFacts(*found)


class WorkerProbe:
    """Hooked to the worker wrapper's execute_model, and through it to the sample_tokens of its worker."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._counts_cpu: bool | None = None
        self._untold_device: DeviceFacts | None = None
        self._begin_ns = self._forward_end_ns = self._sample_begin_ns = 0
        self._cpu_ns = self._cpu_begin_ns = 0

    def before_execute(self, wrapper: Any, *_: Any) -> None:
        if self._counts_cpu is None:
            self._first_call(wrapper)
        self._begin_ns, self._cpu_begin_ns = perf_counter_ns(), thread_time_ns()

    def _first_call(self, wrapper: Any) -> None:
        import torch

        on_cpu = wrapper.vllm_config.device_config.device_type == "cpu"
        self._counts_cpu = on_cpu and torch.get_num_threads() == 1
        self._untold_device = device_facts(wrapper)
        self._hooks.add(wrapper.worker, "sample_tokens", before=self.before_sample, after=self.after_sample)

    def after_execute(self, output: Any, *_: Any) -> None:
        """`output` is None when sampling is a call of its own."""
        self._forward_end_ns = self._sample_begin_ns = perf_counter_ns()
        self._cpu_ns = thread_time_ns() - self._cpu_begin_ns
        if output is not None:
            self._send(output)

    def before_sample(self, *_: Any) -> None:
        self._sample_begin_ns, self._cpu_begin_ns = perf_counter_ns(), thread_time_ns()

    def after_sample(self, output: Any, *_: Any) -> None:
        self._cpu_ns += thread_time_ns() - self._cpu_begin_ns
        self._send(output)

    def _send(self, output: Any) -> None:
        # Only a finished output holds its requests: one that is still being copied from a GPU tells no end. The empty output
        # is one object that all steps share.
        if not getattr(output, "req_ids", None):
            return
        cpu_ns = self._cpu_ns if self._counts_cpu else None
        times = (self._begin_ns, self._forward_end_ns, self._sample_begin_ns, perf_counter_ns(), cpu_ns)
        setattr(output, TIMES_ATTRIBUTE, times)
        if self._untold_device is not None:
            setattr(output, DEVICE_ATTRIBUTE, tuple(self._untold_device))
            self._untold_device = None


def device_facts(wrapper: Any) -> DeviceFacts:
    """Once the model is loaded and the KV pool allocated."""
    import torch

    worker = wrapper.worker
    device: str = wrapper.vllm_config.device_config.device_type
    total: int | None = None
    reserved: int | None = None
    if device == "cuda":
        properties = torch.cuda.get_device_properties(worker.device)
        device, total, reserved = properties.name, properties.total_memory, torch.cuda.memory_reserved(worker.device)
    elif device == "cpu":
        # The share of the host that vLLM may use takes the device memory's place.
        total, reserved = getattr(worker, "requested_cpu_memory", None), _resident_bytes()
    return DeviceFacts(device, total, reserved, *_weights(worker.model_runner.get_model()))


def _weights(model: Any) -> tuple[int | None, int | None]:
    """Bytes and number of a model's parameters; None when a backend has packed some of them away."""
    parameters = list(model.parameters())
    if any(one.numel() == 0 for one in parameters):
        return None, None
    return sum(one.numel() * one.element_size() for one in parameters), sum(one.numel() for one in parameters)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
