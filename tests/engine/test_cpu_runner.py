"""CpuRunner against the Runner protocol: timing that adds up, memory told truly, misuse refused."""

import pytest
import torch

from engine.errors import ConfigError
from engine.request import SamplingParams
from engine.runner import host
from engine.runner.base import Runner
from engine.runner.cpu import CpuRunner
from engine.runner.torch_attention import length_buckets
from engine.step import BatchPlan
from tests.engine.model_helpers import (
    blocks_for,
    chunk_of,
    decode_of,
    generate,
    make_plan,
    make_prompt,
    make_request,
    make_runner,
    tiny,
)


def test_implements_the_protocol():
    runner: Runner = make_runner(tiny("float32"))
    assert runner.geometry.name == "tiny"
    assert runner.geometry.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4  # K and V, layers, KV heads, head_dim, bytes
    assert runner.geometry.weight_bytes == 4 * runner.geometry.num_parameters
    assert runner.device_name.startswith("cpu: ")
    assert runner.bandwidth_bytes_per_second and runner.bandwidth_bytes_per_second > 1e8


def test_memory_reserves_the_whole_pool_once():
    runner = CpuRunner(tiny("float32"), threads=1, memory_limit_bytes=1 << 30, kernels="torch")
    weights = runner.geometry.weight_bytes
    assert runner.memory() == (1 << 30, weights, weights, 0)
    runner.allocate_kv(10, 16)
    pool = 160 * runner.geometry.kv_bytes_per_token
    assert runner.memory() == (1 << 30, weights + pool, weights, pool)
    generate(runner, make_request(make_prompt(40), range(4)), 8)
    assert runner.memory().kv_pool == pool


def test_every_class_of_work_is_booked():
    """That they add up to forward and sampling is in test_step_split, on a clock that nothing else can move."""
    runner = make_runner(tiny("float32"))
    request = make_request(make_prompt(100), blocks_for(120))
    result = runner.execute(make_plan(prefills=[chunk_of(request, 0, 100)]))
    request.output_token_ids += result.token_ids
    other = make_request(make_prompt(50, seed=2), blocks_for(50, 20))
    result = runner.execute(make_plan(decodes=[decode_of(request)], prefills=[chunk_of(other, 0, 50)]))
    assert result.device_ns is not None and result.cpu_ns is not None
    spent = result.device_ns._asdict()
    never = {"comm", "copy", "attention_mixed"}
    assert all(spent[name] == 0 for name in never)
    assert all(spent[name] > 0 for name in spent if name not in never)
    assert result.cpu_ns > 0


def test_kv_blocks_are_booked_as_copies():
    runner = make_runner(tiny("float32"))
    request = make_request(make_prompt(20), range(2))
    plan = make_plan(prefills=[chunk_of(request, 0, 20)])
    plan.copies = [(0, 3, 16)]  # type: ignore[list-item]
    device_ns = runner.execute(plan).device_ns
    assert device_ns is not None and device_ns.copy > 0


def test_greedy_tokens_do_not_depend_on_chunks_here():
    """Not promised in general (see the decoder tests for the tolerance), but true for this model in float64."""
    runner = make_runner(tiny("float64"))
    prompt = make_prompt(70)
    whole = generate(runner, make_request(prompt, blocks_for(90)), 12)
    chunked = generate(runner, make_request(prompt, blocks_for(90, 50)), 12, chunk_size=9)
    assert whole == chunked


def test_sampled_rows_follow_the_order_of_requests():
    runner = make_runner(tiny("float64"))
    prompts = [make_prompt(length, seed=length) for length in (30, 17, 45)]
    alone = [generate(runner, make_request(p, blocks_for(60, 8 * i)), 2) for i, p in enumerate(prompts)]
    requests = [make_request(p, blocks_for(60, 8 * i)) for i, p in enumerate(prompts)]
    first = runner.execute(make_plan(prefills=[chunk_of(r, 0, len(r.prompt_token_ids)) for r in requests])).token_ids
    for request, token in zip(requests, first, strict=True):
        request.output_token_ids.append(token)
    second = runner.execute(make_plan(decodes=[decode_of(r) for r in requests])).token_ids
    assert [list(pair) for pair in zip(first, second, strict=True)] == alone


def test_seeded_draw_is_the_same_alone_and_in_a_batch():
    runner = make_runner(tiny("float64"))
    params = SamplingParams(temperature=1.0, seed=11)
    prompt = make_prompt(20)
    alone = generate(runner, make_request(prompt, blocks_for(40), params), 6)
    seeded = make_request(prompt, blocks_for(40), params)
    noise = make_request(make_prompt(9, seed=3), blocks_for(40, 10), SamplingParams(temperature=1.5))
    both = [noise, seeded]
    plan = make_plan(prefills=[chunk_of(r, 0, len(r.prompt_token_ids)) for r in both])
    for _ in range(6):
        for request, token in zip(both, runner.execute(plan).token_ids, strict=True):
            request.output_token_ids.append(token)
        plan = make_plan(decodes=[decode_of(r) for r in both])
    assert seeded.output_token_ids == alone


def test_a_step_before_allocation_is_refused():
    runner = CpuRunner(tiny("float32"), threads=1)
    with pytest.raises(ConfigError, match="allocate_kv"):
        runner.execute(make_plan(prefills=[chunk_of(make_request([1, 2], [0]), 0, 2)]))


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0), (-1, 16)])
def test_an_empty_pool_is_refused(num_blocks, block_size):
    with pytest.raises(ConfigError, match=f"{num_blocks} x {block_size}"):
        CpuRunner(tiny("float32"), threads=1).allocate_kv(num_blocks, block_size)


def test_a_pool_beyond_the_memory_is_refused_before_it_is_allocated():
    runner = CpuRunner(tiny("float32"), threads=1, memory_limit_bytes=64 << 20)
    with pytest.raises(
        ConfigError, match=r"KV pool too large: 100000 blocks of 16 tokens need 781 MiB, 63 MiB are left"
    ):
        runner.allocate_kv(100_000, 16)


def test_the_pool_is_allocated_once():
    runner = make_runner(tiny("float32"))
    with pytest.raises(ConfigError, match="once"):
        runner.allocate_kv(4, 16)


def test_threads_are_checked():
    with pytest.raises(ConfigError, match="threads must be at least 1, not 0"):
        CpuRunner(tiny("float32"), threads=0)


def test_host_facts_are_plausible():
    assert host.memory_limit_bytes() > 1 << 20
    assert host.cpu_name()


def bucket_lengths(lengths: list[int], max_blocks: int = 1 << 40) -> list[list[int]]:
    tables = [[0] * len(blocks_for(length)) for length in lengths]
    plan = BatchPlan([], [], [], tables, lengths, [1] * len(lengths), len(lengths), [], [], [])
    return [[lengths[row] for row in bucket] for bucket in length_buckets(plan, max_blocks)]


def test_decode_buckets_bound_the_padding():
    assert bucket_lengths([100, 128, 120]) == [[128, 120, 100]]
    assert bucket_lengths([10, 1000, 900, 20]) == [[1000, 900], [20, 10]]
    assert bucket_lengths([]) == []


def test_decode_buckets_stay_within_the_gather_budget():
    assert bucket_lengths([100, 100, 100, 90, 500], 14) == [[500], [100, 100], [100, 90]]
    assert bucket_lengths([17] * 5, 5) == [[17, 17], [17, 17], [17]], "a partial block counts whole"


def test_decode_buckets_waste_at_most_a_quarter_or_64_tokens():
    lengths = torch.randint(1, 8000, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    buckets = bucket_lengths(lengths)
    assert sorted(length for bucket in buckets for length in bucket) == sorted(lengths)
    for bucket in buckets:
        assert all(max(bucket) <= max(1.25 * length, length + 64) for length in bucket)
