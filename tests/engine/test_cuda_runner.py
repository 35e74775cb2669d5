"""CudaRunner on a device that is the CPU: layout, padding, captured decodes, late times. The GPU itself: make gpu-check."""

import logging

import pytest
import torch

from engine.config import SchedulerConfig
from engine.core import EngineCore
from engine.errors import ConfigError
from engine.prefix_cache import CacheScope
from engine.request import Request, SamplingParams
from engine.runner.attention.backends import BACKENDS
from engine.runner.base import Runner
from engine.runner.cuda import CudaOptions, CudaRunner
from engine.runner.decode_graphs import graph_sizes, padded_size
from engine.runner.kernel_classes import class_of, classify
from engine.scheduler import Scheduler
from engine.step import BlockCopy
from probes.locks import TimedLock
from probes.recorder import RingRecorder
from probes.records import DeviceTime, OpClass, StepKind
from tests.engine import model_helpers
from tests.engine.fake_device import LOOPS, FakeDevice
from tests.engine.model_helpers import (
    BLOCK_SIZE,
    blocks_for,
    chunk_of,
    decode_of,
    generate,
    make_plan,
    make_prompt,
    make_request,
    tiny,
)
from tests.probes.records import known

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "loops", LOOPS)


def make_runner(
    attention: str = "loops",
    *,
    device: FakeDevice | None = None,
    dtype: str = "float64",
    num_blocks: int = 64,
    **options,
) -> CudaRunner:
    values = {"max_sequences": 4, "profile_every": 0} | options
    runner = CudaRunner(tiny(dtype), device or FakeDevice(), CudaOptions(attention=attention, **values))
    runner.allocate_kv(num_blocks, BLOCK_SIZE)
    return runner


def cpu_tokens(prompt: list[int], count: int) -> list[int]:
    return generate(model_helpers.make_runner(tiny()), make_request(prompt, blocks_for(len(prompt) + count)), count)


def test_implements_the_protocol():
    runner: Runner = make_runner()
    assert runner.attention_backend == "loops"
    assert (runner.bandwidth_bytes_per_second, runner.flops_per_second) == (1e9, 2e9)
    assert runner.device_name == "fake device"
    assert "every 16th step" in runner.device_time_source
    pool = 65 * BLOCK_SIZE * runner.geometry.kv_bytes_per_token  # 64 blocks and the padding's
    weights = runner.geometry.weight_bytes
    assert runner.memory() == (1 << 30, weights + pool, weights, pool)


@pytest.mark.parametrize("attention", ["loops", "torch"])
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("chunk_size", [1000, 9])
def test_tokens_are_those_of_the_cpu_runner(attention, graphs, chunk_size):
    prompt = make_prompt(50)
    runner = make_runner(attention, graphs=graphs)
    request = make_request(prompt, blocks_for(70, 13))
    assert generate(runner, request, 12, chunk_size=chunk_size) == cpu_tokens(prompt, 12)


def test_a_mixed_step_serves_decodes_and_chunks():
    prompts = [make_prompt(length, seed=length) for length in (30, 17, 45)]
    alone = [cpu_tokens(prompt, 3) for prompt in prompts]
    runner = make_runner()
    requests = [make_request(p, blocks_for(60, 8 * i)) for i, p in enumerate(prompts)]
    first, second, third = requests
    for request in (first, second):
        request.output_token_ids += runner.execute(
            make_plan(prefills=[chunk_of(request, 0, len(request.prompt_token_ids))])
        ).token_ids
    for start, length in ((0, 20), (20, 25)):
        plan = make_plan(decodes=[decode_of(first), decode_of(second)], prefills=[chunk_of(third, start, length)])
        for request, token in zip(plan.sample_requests, runner.execute(plan).token_ids, strict=True):
            request.output_token_ids.append(token)
    assert [request.output_token_ids[:3] for request in requests[:2]] == alone[:2]
    assert third.output_token_ids == alone[2][:1]


def test_decodes_replay_a_padded_capture_and_leave_the_pool_alone():
    device = FakeDevice()
    runner = make_runner(device=device)
    prompts = [make_prompt(length, seed=length) for length in (33, 5, 18)]
    requests = [make_request(p, blocks_for(60, 4 * i)) for i, p in enumerate(prompts)]
    first = runner.execute(make_plan(prefills=[chunk_of(r, 0, len(r.prompt_token_ids)) for r in requests])).token_ids
    for request, token in zip(requests, first, strict=True):
        request.output_token_ids.append(token)
    assert device.num_captures == 3  # 1, 2, 4
    for num_replays, batch in enumerate((requests, requests[:1], requests[1:], requests), 1):
        plan = make_plan(decodes=[decode_of(request) for request in batch])
        for request, token in zip(batch, runner.execute(plan).token_ids, strict=True):
            request.output_token_ids.append(token)
        assert device.num_replays == num_replays
    assert [request.output_token_ids for request in requests] == [
        cpu_tokens(prompt, len(request.output_token_ids)) for prompt, request in zip(prompts, requests, strict=True)
    ]
    kv = runner._attention.kv  # type: ignore[union-attr]
    used = {block for request in requests for block in request.block_ids} | {64}
    for block in range(65):
        assert block in used or not kv[:, :, block].any(), block


def test_larger_batches_and_mixed_steps_run_without_a_graph():
    device = FakeDevice()
    runner = make_runner(device=device, max_sequences=1)
    requests = [make_request(make_prompt(9, seed=i), blocks_for(20, 2 * i)) for i in range(2)]
    for request in requests:
        request.output_token_ids += runner.execute(make_plan(prefills=[chunk_of(request, 0, 9)])).token_ids
    runner.execute(make_plan(decodes=[decode_of(request) for request in requests]))
    assert device.num_replays == 0


def test_a_backend_that_cannot_be_replayed_is_not_captured(caplog):
    device = FakeDevice()
    with caplog.at_level(logging.INFO, "stallscope.engine"):
        make_runner("torch", device=device)
    assert device.num_captures == 0
    assert "not captured" in caplog.text


def test_blocks_are_copied_before_the_step():
    runner = make_runner()
    prompt = make_prompt(20)
    request = make_request(prompt, [0, 1])
    runner.execute(make_plan(prefills=[chunk_of(request, 0, 20)]))
    fork = make_request(prompt, [0, 5])
    plan = make_plan(prefills=[chunk_of(fork, 18, 2)])
    plan.copies = [BlockCopy(1, 5, 2)]
    assert runner.execute(plan).token_ids == cpu_tokens(prompt, 1)


def test_a_step_that_samples_nothing_waits_for_the_device():
    device = FakeDevice()
    runner = make_runner(device=device)
    request = make_request(make_prompt(20), blocks_for(20))
    waits = device.num_waits
    assert runner.execute(make_plan(prefills=[chunk_of(request, 0, 8)])).token_ids == []
    assert device.num_waits == waits + 1
    runner.execute(make_plan(prefills=[chunk_of(request, 8, 12)]))
    assert device.num_waits == waits + 1


def test_misuse_is_refused():
    runner = CudaRunner(tiny(), FakeDevice(memory=1 << 20), CudaOptions(attention="torch"))
    with pytest.raises(ConfigError, match="allocate_kv"):
        runner.execute(make_plan(prefills=[chunk_of(make_request([1, 2], [0]), 0, 2)]))
    with pytest.raises(ConfigError, match="KV pool too large"):
        runner.allocate_kv(1000, 16)
    runner.allocate_kv(4, 16)
    with pytest.raises(ConfigError, match="once"):
        runner.allocate_kv(4, 16)


def run_core(runner: CudaRunner, steps: int) -> tuple[RingRecorder, EngineCore]:
    config = SchedulerConfig(max_batched_tokens=40, max_sequences=4, block_size=16, kv_blocks=64, max_model_len=512)
    recorder = RingRecorder()
    core = EngineCore(Scheduler(config, CacheScope(weights="tiny")), runner, recorder, TimedLock(), frozenset())
    for number, length in enumerate((70, 20, 30)):
        params = SamplingParams(max_tokens=64, ignore_eos=True)
        core.scheduler.add(Request(f"r{number}", make_prompt(length, seed=number), params, arrival_ns=0))
    for _ in range(steps):
        core.step(lambda _: None)
    return recorder, core


@pytest.mark.parametrize("lag", [0, 1, 9])
def test_device_times_reach_their_records_late(lag):
    """`lag` marks behind: with 3 or 4 marks a step, up to three steps late."""
    recorder, _ = run_core(make_runner(device=FakeDevice(lag=lag), split_every=0), 40)
    records = recorder.steps_since(0).records
    timed = [record for record in records if record.device_ns is not None]
    assert len(timed) >= len(records) - 4
    assert timed == records[: len(timed)]
    assert recorder.counters.lost_device_times == 0
    for record in timed:
        assert record.device_ns is not None
        # The fake device's clock is the host's: a step's device time is that of its forward pass and sampling.
        assert 0 < sum(record.device_ns) <= (record.forward_ns + known(record).sample_ns) * 1.5 + 1e6
    for kind in StepKind:
        of_kind = [record.device_ns for record in timed if record.kind is kind and record.device_ns is not None]
        assert (
            recorder.counters.device_ns[kind] == [sum(column) for column in zip(*of_kind, strict=True)] or not of_kind
        )


def test_classes_are_measured_now_and_then_and_divided_alike_between():
    recorder, _ = run_core(make_runner(split_every=4, graphs=False), 40)
    records = [record for record in recorder.steps_since(0).records if record.kind is StepKind.DECODE]
    assert len(records) > 20
    for record in records[:-1]:
        times = record.device_ns
        assert times is not None
        assert all(
            getattr(times, op) > 0 for op in ("gemm", "attention_decode", "kv_write", "norm_rope_act", "sampling")
        )
        assert times.attention_prefill == 0


def test_graphs_are_divided_by_what_a_profiler_saw(monkeypatch):
    device = FakeDevice()
    seen = []

    def profile(run, wait):
        run()
        seen.append(1)
        return DeviceTime(gemm=70, attention_decode=30)

    monkeypatch.setattr("engine.runner.cuda.profile", profile)
    recorder, _ = run_core(make_runner(device=device, profile_every=16), 60)
    assert 1 <= len(seen) <= 3
    last = recorder.steps_since(0).records[-3]
    assert last.kind is StepKind.DECODE and last.device_ns is not None
    assert last.device_ns.gemm == pytest.approx(7 / 3 * last.device_ns.attention_decode, rel=0.01)
    early = recorder.steps_since(0).records[10].device_ns
    assert early is not None and early.gemm == 0 and early.other > 0


def test_a_profiler_that_fails_is_given_up_and_fails_no_step(monkeypatch, caplog):
    def profile(run, wait):
        raise RuntimeError("another profiler is at work")

    monkeypatch.setattr("engine.runner.cuda.profile", profile)
    recorder, core = run_core(make_runner(profile_every=16), 60)
    assert core.failures_in_a_row == 0 and not recorder.counters.failures
    assert caplog.text.count("no longer profiled") == 1


def test_without_device_times_nothing_is_marked(monkeypatch):
    device = FakeDevice()
    recorder, _ = run_core(make_runner(device=device, device_times=False), 20)
    assert device.num_events == 0
    assert all(record.device_ns is None for record in recorder.steps_since(0).records)
    assert recorder.counters.lost_device_times == 0


def test_a_failed_step_leaves_no_time_behind(monkeypatch):
    runner = make_runner()
    request = make_request(make_prompt(10), blocks_for(20))

    def fail(*_):
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr("engine.runner.sampling.Sampler.sample", fail)
        with pytest.raises(RuntimeError):
            runner.execute(make_plan(prefills=[chunk_of(request, 0, 10)]))
    plan = make_plan(prefills=[chunk_of(request, 0, 10)])
    plan.step_id = 5
    result = runner.execute(plan)
    assert result.device_ns is not None and result.late_device_ns == ()


@pytest.mark.parametrize("maximum", [1, 3, 8, 64, 100, 256, 511, 4000])
def test_graph_sizes_cover_every_batch_with_little_padding(maximum):
    sizes = graph_sizes(maximum)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == min(maximum, 512)
    for rows in range(1, sizes[-1] + 1):
        size = padded_size(sizes, rows)
        assert size is not None and size >= rows
        assert size - rows < max(8, size / 4)
    assert padded_size(sizes, sizes[-1] + 1) is None


@pytest.mark.parametrize(
    ("kernel", "op"),
    [
        ("_write", OpClass.KV_WRITE),
        ("_decode_split", OpClass.ATTENTION_DECODE),
        ("_combine", OpClass.ATTENTION_DECODE),
        ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>>", OpClass.ATTENTION_DECODE),
        ("nvjet_tst_64x8_64x16_1x2_h_bz_TNT", OpClass.GEMM),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64", OpClass.GEMM),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", OpClass.GEMM),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel>", OpClass.NORM_ROPE_ACT),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>", OpClass.NORM_ROPE_ACT),
        ("Memcpy DtoD (Device -> Device)", OpClass.COPY),
        ("ncclDevKernel_AllReduce_Sum_bf16", OpClass.COMM),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>", OpClass.ATTENTION_DECODE),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps>>", OpClass.NORM_ROPE_ACT),
        ("something new", OpClass.OTHER),
    ],
)
def test_kernels_by_name(kernel, op):
    assert class_of(kernel) is op


def test_kernel_times_are_summed_by_class():
    kernels = [("_write", 1.5), ("nvjet_x", 2.0), ("nvjet_y", 3.0)]
    assert classify(kernels) == DeviceTime(gemm=5000, kv_write=1500)
