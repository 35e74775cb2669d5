"""The worker's times: of the pass that ran, on the output that goes to the engine, and on no other object."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probes.vllm.hooks import Hooks
from probes.vllm.selfcheck import signature_problem, version_problem
from probes.vllm.worker import WorkerProbe, device_facts, device_of, times_of


class Output:
    def __init__(self, *req_ids: str) -> None:
        self.req_ids = list(req_ids)


class Worker:
    """Samples in a call of its own, as vLLM's does, unless `at_once`."""

    def __init__(self, output: Any, at_once: bool = False) -> None:
        self.output, self.at_once = output, at_once
        self.model_runner = SimpleNamespace(get_model=lambda: torch.nn.Linear(3, 2))

    def execute_model(self, _: Any) -> Any:
        return self.output if self.at_once else None

    def sample_tokens(self, _: Any) -> Any:
        return self.output


class Wrapper:
    def __init__(self, worker: Worker, device: str = "cpu") -> None:
        self.worker = worker
        self.vllm_config = SimpleNamespace(device_config=SimpleNamespace(device_type=device))

    def execute_model(self, scheduler_output: Any) -> Any:
        return self.worker.execute_model(scheduler_output)


def run(worker: Worker, device: str = "cpu") -> Any:
    wrapper, hooks = Wrapper(worker, device), Hooks()
    probe = WorkerProbe(hooks)
    hooks.add(Wrapper, "execute_model", before=probe.before_execute, after=probe.after_execute)
    try:
        output = wrapper.execute_model(None)
        found = output if output is not None else worker.sample_tokens(None)
    finally:
        hooks.remove()
    assert hooks.errors == 0
    return found


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


@pytest.mark.parametrize("at_once", [False, True])
def test_the_times_come_in_order_and_survive_the_way_to_the_engine(at_once: bool):
    times = times_of(pickle.loads(pickle.dumps(run(Worker(Output("a"), at_once)))))
    assert times is not None and times.cpu_ns is not None
    assert times.begin_ns <= times.forward_end_ns <= times.sample_begin_ns <= times.end_ns
    assert times.cpu_ns >= 0


def test_cpu_time_is_told_only_where_it_is_the_works(monkeypatch: pytest.MonkeyPatch):
    """On a GPU the thread waits or spins; with several threads the others' time is not seen."""
    on_gpu = times_of(run(Worker(Output("a")), device="xpu"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    on_two = times_of(run(Worker(Output("a"))))
    assert on_gpu is not None and on_gpu.cpu_ns is None
    assert on_two is not None and on_two.cpu_ns is None


def test_an_output_that_all_empty_steps_share_is_left_alone():
    shared = Output()
    assert times_of(run(Worker(shared))) is None
    assert vars(shared) == {"req_ids": []}


def test_an_output_that_is_still_on_its_way_has_no_end_yet():
    assert times_of(run(Worker(SimpleNamespace()), device="xpu")) is None


def test_packed_weights_are_not_counted_as_few_weights():
    wrapper = Wrapper(Worker(Output()))
    assert device_facts(wrapper)[-2:] == (8 * 4, 8)
    packed = torch.nn.Linear(3, 2)
    packed.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
    wrapper.worker.model_runner = SimpleNamespace(get_model=lambda: packed)
    assert device_facts(wrapper)[-2:] == (None, None)


@pytest.mark.parametrize("version", ["0.32", "0.32.0", "0.32.1", "0.32.0+cpu"])
def test_versions_it_was_tried_on(version: str):
    assert version_problem(version) is None


@pytest.mark.parametrize("version", ["0.3", "0.31.0", "0.320.0", "1.0.32", "dev"])
def test_versions_it_was_not_tried_on_are_named(version: str):
    problem = version_problem(version)
    assert problem is not None and version in problem


class Hooked:
    def work(self, request: object, timestamp: float) -> None: ...


def test_a_changed_signature_is_named():
    assert signature_problem(Hooked, "work", "request") is None
    assert (
        signature_problem(Hooked, "work", "timestamp") == "Hooked.work takes (request, timestamp), not (timestamp, ...)"
    )
    assert signature_problem(Hooked, "gone") == "Hooked.gone is gone"


def test_what_the_device_holds_comes_with_the_first_output_alone():
    wrapper, hooks = Wrapper(Worker(Output("a"))), Hooks()
    probe = WorkerProbe(hooks)
    probe.before_execute(wrapper)
    first, second = Output("a"), Output("a")
    probe.after_execute(first)
    probe.after_execute(second)
    device = device_of(pickle.loads(pickle.dumps(first)))
    assert device is not None and device.num_parameters == 8
    assert device_of(second) is None
