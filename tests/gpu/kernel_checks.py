"""Every backend's kernels against attention in float32, then their speed against the device's ceilings."""

from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from engine.request import Request, SamplingParams
from engine.runner.attention.backends import BACKENDS, AttentionSpec
from engine.runner.attention.layout import StepLayout, pack_step
from engine.runner.attention.paged import StepAttention
from engine.runner.device import Device
from engine.step import BatchPlan, ScheduledSequence, ScheduledStep, plan_batch
from probes.arithmetic import attention_flops, attention_pairs
from probes.optime import NoLaps
from tests.gpu.report import Row

LIMITS = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""||out - ref|| / ||ref|| that rounding explains: inputs are the same, so that only the arithmetic differs."""


class Shape(NamedTuple):
    query_heads: int
    kv_heads: int
    head_dim: int
    block_size: int


SHAPES = [Shape(32, 8, 128, 16), Shape(32, 8, 64, 16), Shape(9, 3, 64, 16), Shape(8, 8, 128, 256), Shape(8, 1, 96, 5)]
_SHAPES_PER_OTHER_TYPE = 2
MIXED = ([1, 17, 300, 1000, 255], [(0, 1), (0, 300), (513, 129), (1000, 64)])
"""Context lengths of decodes; (start, rows) of chunks."""


class Problem(NamedTuple):
    """One step's queries, and KV whose history is already in the pool."""

    plan: BatchPlan
    layout: StepLayout
    query: Tensor
    key: Tensor
    value: Tensor


def correctness(
    device: Device, shapes: list[Shape], lengths: list[int], chunks: list[tuple[int, int]]
) -> Iterator[Row]:
    for dtype, limit in LIMITS.items():
        # Compiling costs a second per kernel, shape and type: all shapes in one type, the first ones in the others.
        for shape in shapes if dtype is torch.bfloat16 else shapes[:_SHAPES_PER_OTHER_TYPE]:
            for name, attention in backends_for(device, shape, dtype, lengths, chunks):
                error = relative_error(device, attention, shape, dtype, lengths, chunks)
                yield Row(
                    f"{attention.name} {_short(dtype)} {shape_name(shape)}", error, "rel. error", limit, note=name
                )


def decode_speed(device: Device, bandwidth: float, batch: int, context: int) -> Iterator[Row]:
    shape = SHAPES[0]
    for _, attention in backends_for(device, shape, torch.bfloat16, [context] * batch, []):
        problem = make_problem(device, attention, shape, torch.bfloat16, [context] * batch, [])
        seconds = seconds_of(device, lambda a=attention, p=problem: attend(a, p))  # type: ignore[misc]
        read = batch * context * 2 * shape.kv_heads * shape.head_dim * 2
        label = f"{attention.name} decode {batch} x {context}"
        yield Row(label, seconds * 1e6, "us")
        yield Row(
            f"{label}, KV read", read / seconds / 1e9, "GB/s", note=f"{read / seconds / bandwidth:.0%} of ceiling"
        )


def prefill_speed(device: Device, flops: float, start: int, rows: int) -> Iterator[Row]:
    shape = SHAPES[0]
    for _, attention in backends_for(device, shape, torch.bfloat16, [], [(start, rows)]):
        problem = make_problem(device, attention, shape, torch.bfloat16, [], [(start, rows)])
        seconds = seconds_of(device, lambda a=attention, p=problem: attend(a, p))  # type: ignore[misc]
        work = attention_flops(
            num_layers=1,
            num_query_heads=shape.query_heads,
            pairs=attention_pairs(start, rows),
            head_dim=shape.head_dim,
        )
        label = f"{attention.name} prefill {rows} after {start}"
        yield Row(label, seconds * 1e6, "us")
        yield Row(
            f"{label}, products", work / seconds / 1e12, "TFLOP/s", note=f"{work / seconds / flops:.0%} of ceiling"
        )


def backends_for(
    device: Device, shape: Shape, dtype: torch.dtype, lengths: list[int], chunks: list[tuple[int, int]]
) -> Iterator[tuple[str, StepAttention]]:
    """Each backend that serves this, with a pool large enough for twice the problem."""
    blocks = sum(-(-length // shape.block_size) for length in (*lengths, *(start + rows for start, rows in chunks)))
    spec = AttentionSpec(
        num_layers=1,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        num_blocks=2 * blocks,
        block_size=shape.block_size,
        max_position=max([*lengths, *(start + rows for start, rows in chunks)]),
        dtype=dtype,
        device=device.torch_device,
        capability=device.capability,
        num_processors=device.num_processors,
    )
    for name, backend in BACKENDS.items():
        if backend.refuse(spec) is None:
            yield name, backend.build(spec)


def relative_error(
    device: Device,
    attention: StepAttention,
    shape: Shape,
    dtype: torch.dtype,
    lengths: list[int],
    chunks: list[tuple[int, int]],
) -> float:
    problem = make_problem(device, attention, shape, dtype, lengths, chunks)
    actual = attend(attention, problem).view(problem.query.shape).float()
    expected = reference(attention.kv, shape, problem)
    return float((actual - expected).norm() / expected.norm())


def make_problem(
    device: Device,
    attention: StepAttention,
    shape: Shape,
    dtype: torch.dtype,
    lengths: list[int],
    chunks: list[tuple[int, int]],
) -> Problem:
    """Sequences over scattered blocks, every second one of the pool unused; the pool is filled with noise."""
    generator = torch.Generator(device.torch_device).manual_seed(0)

    def noise(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device.torch_device).to(dtype)

    kv: Tensor = attention.kv
    kv.copy_(noise(*kv.shape))
    order = torch.randperm(kv.shape[2] - 1, generator=torch.Generator().manual_seed(1)).tolist()
    step = ScheduledStep()
    for start, rows in [*((length - 1, 1) for length in lengths), *chunks]:
        request = Request("r", [0] * (start + rows), SamplingParams(), arrival_ns=0)
        request.block_ids = [order.pop() for _ in range(-(-(start + rows) // shape.block_size))]
        is_decode = len(step.decodes) < len(lengths)
        sequence = ScheduledSequence(request, start, rows, is_decode=is_decode, samples=True)
        (step.decodes if is_decode else step.prefills).append(sequence)
    plan = plan_batch(step, shape.block_size)
    packed = pack_step(plan)
    layout = packed.unpack(torch.tensor(packed.values, dtype=torch.int32, device=device.torch_device))
    rows = len(plan.token_ids)
    heads = noise(rows, shape.query_heads + 2 * shape.kv_heads, shape.head_dim)  # as the decoder hands them over
    query, key, value = torch.split(heads, [shape.query_heads, shape.kv_heads, shape.kv_heads], dim=1)
    return Problem(plan, layout, query, key, value)


def attend(attention: StepAttention, problem: Problem) -> Tensor:
    attention.use(problem.layout)
    return attention.attend(0, problem.query, problem.key, problem.value, NoLaps())


def reference(kv: Tensor, shape: Shape, problem: Problem) -> Tensor:
    """Textbook attention in float32, one sequence at a time. [rows, heads, dim]"""
    plan = problem.plan
    keys, values = (kv[0, part].float() for part in (0, 1))
    group = shape.query_heads // shape.kv_heads
    outputs, row = [], 0
    for table, length, rows in zip(plan.block_tables, plan.context_lens, plan.query_lens, strict=True):
        own_keys, own_values = (
            pool[table].flatten(0, 1)[:length].repeat_interleave(group, 1) for pool in (keys, values)
        )
        query = problem.query[row : row + rows].float()
        scores = torch.einsum("qhd,khd->hqk", query, own_keys) * shape.head_dim**-0.5
        positions = torch.arange(length, device=kv.device)
        scores.masked_fill_(positions > positions[length - rows :].unsqueeze(1), float("-inf"))
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), own_values))
        row += rows
    return torch.cat(outputs)


def seconds_of(device: Device, run: Callable[[], object], rounds: int = 7, repeat: int = 10) -> float:
    """Median over rounds; `repeat` runs share one wait for the device."""
    for _ in range(3):
        run()
    device.wait()
    times = []
    for _ in range(rounds):
        start = perf_counter()
        for _ in range(repeat):
            run()
        device.wait()
        times.append((perf_counter() - start) / repeat)
    return median(times)


def shape_name(shape: Shape) -> str:
    return f"{shape.query_heads}q/{shape.kv_heads}kv/{shape.head_dim} block {shape.block_size}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
