"""The compiled CPU kernels against torch, and their one promise more: a row's numbers do not depend on its batch."""

import math
import shutil
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.errors import ConfigError
from engine.model.ops import TorchOps
from engine.native import build, library
from engine.native.attention import NativePagedAttention
from engine.native.library import LANES, Library, Unavailable
from engine.native.ops import NativeOps
from engine.request import SamplingParams
from engine.runner.cpu import CpuRunner
from engine.runner.torch_attention import TorchPagedAttention
from probes.build import BuildError
from probes.optime import NoLaps
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

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("c++", "g++", "clang++")), reason="no C++ compiler"
)
EIGHTS = st.integers(1, 12).map(lambda n: 8 * n)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build.build(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="session", params=list(build.VARIANTS))
def variant(built: list[Path], request: pytest.FixtureRequest) -> Path:
    path = built[list(build.VARIANTS).index(request.param)]
    try:
        Library(path, 1)
    except Unavailable as reason:
        pytest.skip(f"{request.param} {reason}")
    return path


@pytest.fixture(scope="session", params=[1, 2], ids=["one-thread", "two-threads"])
def kernels(variant: Path, request: pytest.FixtureRequest) -> Library:
    return Library(variant, request.param)


@pytest.fixture
def installed(built: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an installation on a machine with a compiler."""
    monkeypatch.setattr(library, "libraries", lambda: built)
    library.load.cache_clear()


def assert_close(found: Tensor, expected: Tensor, rtol: float = 2e-5, atol: float = 2e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=100)
@given(
    rows=st.one_of(st.integers(1, 13), st.integers(40, 60)),
    features=st.integers(1, 100),
    depth=st.one_of(EIGHTS, st.sampled_from([760, 768, 776, 1544])),
    has_bias=st.booleans(),
)
def test_linear_is_torchs(kernels: Library, rows: int, features: int, depth: int, has_bias: bool):
    x, weight, bias = random(rows, depth), random(features, depth, seed=1), random(features) if has_bias else None
    assert_close(kernels.linear(x, kernels.pack(weight), bias), F.linear(x, weight, bias), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("features", [50, 64, 80])
def test_a_row_of_linear_is_the_same_in_every_batch(kernels: Library, features: int):
    x, weight = random(60, 800), kernels.pack(random(features, 800, seed=1))
    together = kernels.linear(x, weight)
    for size in range(60):
        assert torch.equal(kernels.linear(x[:size].clone(), weight), together[:size])


def test_linear_of_several_threads_is_that_of_one(variant: Path, kernels: Library):
    x, weight = random(50, 64), kernels.pack(random(50, 64, seed=1))
    assert torch.equal(Library(variant, 2).linear(x, weight), kernels.linear(x, weight))


def test_a_weight_is_packed_by_panels_of_features_and_padded_with_zeros(kernels: Library):
    panel = kernels.panel
    assert panel % LANES == 0
    weight = random(panel + 4, 8)
    packed, features = kernels.pack(weight)
    assert (tuple(packed.shape), features) == ((2, 8, panel), panel + 4)
    assert torch.equal(packed.transpose(1, 2).reshape(2 * panel, 8)[: panel + 4], weight)
    assert not packed[1, :, 4:].any()


@settings(deadline=None, max_examples=40)
@given(rows=st.integers(1, 9), size=EIGHTS)
def test_norm_and_activation_are_torchs(kernels: Library, rows: int, size: int):
    ops, reference = NativeOps(kernels), TorchOps()
    x, weight, gate_up = random(rows, size), random(size, seed=1), 30 * random(rows, 2 * size, seed=2)
    assert_close(ops.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    assert_close(ops.silu_mul(gate_up), reference.silu_mul(gate_up))


def test_activation_at_the_ends_of_the_range(kernels: Library):
    gate = torch.tensor([0.0, -0.0, 1e-30, 3e38, -3e38, 88.0, -88.0, -100.0])
    done = kernels.silu_mul(torch.cat((gate, torch.ones(8))).unsqueeze(0))
    assert_close(done.squeeze(0), F.silu(gate), rtol=1e-5, atol=1e-35)


@pytest.mark.parametrize("dim", [16, 64])
def test_rotation_of_a_part_of_wider_rows_is_torchs(kernels: Library, dim: int):
    heads, cos, sin = random(5, 7, dim)[:, :4], random(5, 1, dim, seed=1), random(5, 1, dim, seed=2)
    expected = TorchOps().rotate(heads, cos, sin)
    assert_close(kernels.rotate(heads, cos, sin), expected)


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=6),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    dim=st.sampled_from([16, 32, 64, 96, 128]),
    block_size=st.sampled_from([1, 3, 16]),
)
def test_attention_over_scattered_blocks_is_the_softmax(
    kernels: Library, lengths: list[int], kv_heads: int, group: int, dim: int, block_size: int
):
    width = -(-max(lengths) // block_size)
    order = torch.randperm(len(lengths) * width, generator=torch.Generator().manual_seed(3))
    tables = order.view(len(lengths), width)
    keys, values = (random(len(order), block_size, kv_heads, dim, seed=seed) for seed in (1, 2))
    query = 3 * random(len(lengths), kv_heads * group, dim)
    out = torch.empty_like(query)
    kernels.decode_attention(query, keys, values, tables, torch.tensor(lengths), out)
    for row, length in enumerate(lengths):
        key, value = (
            pool[tables[row]].reshape(-1, kv_heads, dim)[:length].repeat_interleave(group, 1) for pool in (keys, values)
        )
        weights = torch.einsum("hd,phd->hp", query[row], key).mul(dim**-0.5).softmax(-1)
        assert_close(out[row], torch.einsum("hp,phd->hd", weights, value))


class Pool(NamedTuple):
    """Keys and values of sequences in blocks of any order; what belongs to no sequence is not a number."""

    keys: Tensor
    values: Tensor
    tables: Tensor


def scattered_pool(lengths: Sequence[int], kv_heads: int, dim: int, block_size: int) -> Pool:
    width = -(-max(lengths) // block_size)
    num_blocks = 2 + len(lengths) * width
    tables = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(3))[2:].view(len(lengths), width)
    keys, values = (torch.full((num_blocks, block_size, kv_heads, dim), math.nan) for _ in range(2))
    for table, length in zip(tables, lengths, strict=True):
        positions = torch.arange(length)
        blocks, within = table[positions // block_size], positions % block_size
        for seed, pool in enumerate((keys, values), 1):
            pool[blocks, within] = random(length, kv_heads, dim, seed=seed + int(table[0]))
    return Pool(keys, values, tables)


def attend_chunks(
    kernels: Library, pool: Pool, query: Tensor, chunks: Sequence[tuple[int, int]], tables: Tensor | None = None
) -> Tensor:
    """chunks: start and rows of each; their rows of `query` [rows, heads, dim] follow each other."""
    out = torch.full(query.shape, math.nan)
    lengths = torch.tensor([start + rows for start, rows in chunks])
    row_starts = torch.tensor(list(accumulate((rows for _, rows in chunks), initial=0)))
    tables = pool.tables if tables is None else tables
    kernels.chunk_attention(query, pool.keys, pool.values, tables, lengths, row_starts, out)
    return out


def softmax_attention(pool: Pool, query: Tensor, sequence: int, start: int) -> Tensor:
    """query [rows, heads, dim] at positions start.. of a sequence, by the textbook."""
    end, (kv_heads, dim) = start + len(query), pool.keys.shape[2:]
    group = query.shape[1] // kv_heads
    key, value = (
        kv[pool.tables[sequence]].reshape(-1, kv_heads, dim)[:end].repeat_interleave(group, 1)
        for kv in (pool.keys, pool.values)
    )
    hidden = torch.arange(end) > torch.arange(start, end).unsqueeze(1)
    scores = torch.einsum("rhd,phd->hrp", query, key).mul(dim**-0.5).masked_fill(hidden, -math.inf)
    return torch.einsum("hrp,phd->rhd", scores.softmax(-1), value)


@settings(deadline=None, max_examples=60)
@given(
    chunks=st.lists(st.tuples(st.sampled_from([0, 1, 40, 255, 300]), st.integers(1, 70)), min_size=1, max_size=3),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 8),
    dim=st.sampled_from([16, 32, 64, 96, 128]),
    block_size=st.sampled_from([1, 3, 16, 40]),
)
def test_attention_of_chunks_is_the_causal_softmax(
    kernels: Library, chunks: list[tuple[int, int]], kv_heads: int, group: int, dim: int, block_size: int
):
    pool = scattered_pool([start + rows for start, rows in chunks], kv_heads, dim, block_size)
    heads = kv_heads * group
    # As it comes from the rotation: a part of wider rows.
    query = 3 * random(sum(rows for _, rows in chunks), heads + kv_heads, dim)[:, :heads]
    out = attend_chunks(kernels, pool, query, chunks)
    first_row = 0
    for sequence, (start, rows) in enumerate(chunks):
        mine = slice(first_row, first_row + rows)
        assert_close(out[mine], softmax_attention(pool, query[mine], sequence, start))
        first_row += rows


def test_scores_far_apart_overflow_nothing(kernels: Library):
    """The largest score of a row comes in its last span, then in its first: weights of the others vanish."""
    for scale in (60.0, -60.0):
        pool = scattered_pool([600], 1, 16, 16)
        pool.keys[pool.tables[0, 0], :] *= scale
        pool.keys[pool.tables[0, -2], :] *= 2 * scale
        query = 10 * random(90, 1, 16)
        assert_close(attend_chunks(kernels, pool, query, [(510, 90)]), softmax_attention(pool, query, 0, 510))


@settings(deadline=None, max_examples=20)
@given(
    cuts=st.lists(st.integers(1, 329), max_size=6, unique=True).map(sorted),
    group=st.integers(1, 8),
    block_size=st.sampled_from([3, 16]),
)
def test_a_row_of_a_chunk_is_the_same_however_its_prompt_is_cut(
    kernels: Library, variant: Path, cuts: list[int], group: int, block_size: int
):
    """Whole and by one thread, against its chunks all in one step."""
    pool = scattered_pool([330], 2, 32, block_size)
    query = random(330, 2 * group, 32)
    whole = attend_chunks(Library(variant, 1), pool, query, [(0, 330)])
    chunks = [(start, end - start) for start, end in pairwise([0, *cuts, 330])]
    assert torch.equal(attend_chunks(kernels, pool, query, chunks, pool.tables.repeat(len(chunks), 1)), whole)


def test_keys_and_values_go_to_their_slots_and_nowhere_else(kernels: Library):
    rows, slots = random(3, 5, 16), torch.tensor([9, 0, 4])
    keys, values = torch.zeros(5, 2, 2, 16), torch.zeros(5, 2, 2, 16)
    kernels.store(rows[:, :2], rows[:, 2:4], keys, values, slots)
    expected = torch.zeros(10, 2, 16)
    expected[slots] = rows[:, :2]
    assert torch.equal(keys.view(10, 2, 16), expected)
    expected[slots] = rows[:, 2:4]
    assert torch.equal(values.view(10, 2, 16), expected)


def native_runner(threads: int = 1) -> CpuRunner:
    runner = CpuRunner(tiny("float32"), threads=threads, kernels="native")
    runner.allocate_kv(128, 16)
    return runner


def test_the_runner_generates_what_torchs_does(installed: None):
    runner, reference = native_runner(), CpuRunner(tiny("float32"), threads=1, kernels="torch")
    reference.allocate_kv(128, 16)
    assert runner.attention_backend == "native" and reference.attention_backend == "torch"
    prompt = make_prompt(60)
    tokens = generate(runner, make_request(prompt, blocks_for(100)), 32, chunk_size=25)
    assert tokens == generate(reference, make_request(prompt, blocks_for(100)), 32, chunk_size=25)


def test_the_last_positions_of_the_longest_context_are_torchs(installed: None):
    limit = tiny().config.max_position
    prompt = make_prompt(limit - 3)
    tokens = []
    for kernels in ("native", "torch"):
        runner = CpuRunner(tiny("float32"), threads=1, kernels=kernels)
        runner.allocate_kv(limit // 16, 16)
        # Blocks in descending order: position and place have nothing to do with each other.
        request = make_request(prompt, range(limit // 16)[::-1])
        tokens.append(generate(runner, request, 3, chunk_size=1500))
        assert request.num_tokens == limit
    assert tokens[0] == tokens[1]


def test_a_step_of_decodes_and_chunks_is_torchs(kernels: Library):
    shape: dict[str, Any] = {"num_layers": 1, "num_kv_heads": 3, "head_dim": 64, "num_blocks": 64, "block_size": 16}
    native = NativePagedAttention(kernels, **shape)
    reference = TorchPagedAttention(**shape, max_position=1024, dtype=torch.float32)
    prompts = [make_prompt(length) for length in (33, 200, 5, 310, 48)]
    blocks = torch.randperm(64, generator=torch.Generator().manual_seed(5)).tolist()
    requests = [
        make_request(prompt, [blocks.pop() for _ in blocks_for(len(prompt) + 1)], name=f"r{index}")
        for index, prompt in enumerate(prompts)
    ]
    for request in requests[:2]:
        request.output_token_ids.append(1)
    decodes = [decode_of(request) for request in requests[:2]]
    chunks = [chunk_of(requests[2], 0, 5), chunk_of(requests[3], 270, 40), chunk_of(requests[4], 0, 31)]
    for plan in (
        make_plan(decodes=decodes, prefills=chunks),
        make_plan(prefills=chunks[1:]),
        make_plan(decodes=decodes[1:]),
    ):
        rows = len(plan.token_ids)
        query, key, value = random(rows, 9, 64), random(rows, 3, 64, seed=1), random(rows, 3, 64, seed=2)
        attended = []
        for attention in (native, reference):
            attention.kv.copy_(random(*attention.kv.shape, seed=4))
            attention.begin(plan)
            attended.append(attention.attend(0, query, key, value, NoLaps()))
        assert_close(attended[0], attended[1])
        assert torch.equal(native.kv, reference.kv)


def test_seeded_draws_are_the_same_whatever_the_batch(installed: None):
    """With hot sampling over the whole vocabulary a last bit in any logit would show sooner or later."""
    runner = native_runner()
    alone, others = [
        [
            make_request(
                make_prompt(20 + index, seed=index),
                blocks_for(100, 8 * index),
                SamplingParams(temperature=1.5, seed=index, max_tokens=40),
                name=f"{name}{index}",
            )
            for index in range(9)
        ]
        for name in ("alone", "batched")
    ]
    expected = [generate(runner, request, 40) for request in alone]
    for request in others:
        plan = make_plan(prefills=[chunk_of(request, 0, len(request.prompt_token_ids))])
        request.output_token_ids += runner.execute(plan).token_ids
    for step in range(39):
        # The batch changes in size and order from step to step.
        batch = others[step % 9 :] + others[: step % 9]
        for part in (batch[: step % 9], batch[step % 9 :]):
            if part:
                result = runner.execute(make_plan(decodes=[decode_of(request) for request in part]))
                for request, token_id in zip(part, result.token_ids, strict=True):
                    request.output_token_ids.append(token_id)
    assert [request.output_token_ids for request in others] == expected


def test_what_the_kernels_do_not_take_goes_to_torch_or_is_refused(installed: None, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    assert CpuRunner(tiny("float64"), threads=1).attention_backend == "torch"
    assert "the native ones take float32, not float64" in caplog.text
    with pytest.raises(ConfigError, match="the native kernels take float32, not float64"):
        CpuRunner(tiny("float64"), threads=1, kernels="native")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("tied", [True, False])
def test_a_model_that_the_runner_takes_is_held_once(tied: bool):
    """But for a tied embedding, which is looked up by rows and multiplied by panels."""
    tokens = []
    for takes_weights in (True, False):
        model = tiny("float32")
        weights = model.weights
        if tied:
            weights.lm_head = weights.embedding
        whole, matrices, vocabulary = weights.num_bytes, weights.droppable_bytes, weights.embedding.shape[0]
        runner = CpuRunner(model, threads=1, kernels="native", takes_weights=takes_weights)
        row = weights.embedding[0].nbytes
        copies = (vocabulary * row if tied else 0) + -vocabulary % library.load(1).panel * row
        assert runner.memory().weights == whole + copies + (0 if takes_weights else matrices)
        assert runner.geometry.weight_bytes == whole, "what a step reads"
        runner.allocate_kv(16, BLOCK_SIZE)
        request = make_request(make_prompt(30), blocks_for(60))
        generate(runner, request, 12)
        tokens.append(request.output_token_ids)
        if takes_weights:
            with pytest.raises(AttributeError):
                weights.digest()
    assert tokens[0] == tokens[1]


def test_a_library_that_is_absent_or_of_another_source_is_not_used(
    built: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    library.load.cache_clear()
    monkeypatch.setattr(library, "libraries", lambda: build.libraries(tmp_path))
    with pytest.raises(ConfigError, match="are not built"):
        CpuRunner(tiny("float32"), threads=1, kernels="native")
    assert CpuRunner(tiny("float32"), threads=1).attention_backend == "torch"
    monkeypatch.setattr(library, "source_hash", lambda: "another")
    with pytest.raises(Unavailable, match="built from other sources"):
        Library(built[-1], 1)


def test_the_quickest_library_that_works_is_taken(
    built: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    monkeypatch.setattr(library, "libraries", lambda: [Path("/none/_kernels_quicker.so"), built[-1]])
    library.load.cache_clear()
    assert library.load(1).variant == list(build.VARIANTS)[-1]
    CpuRunner(tiny("float32"), threads=1)
    assert f"native kernels ({list(build.VARIANTS)[-1]}): they fit the model" in caplog.text


def test_a_build_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(BuildError, match="false failed"):
        build.build(tmp_path)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="no compiler found \\(CXX"):
        build.build(tmp_path)
    assert list(tmp_path.iterdir()) == []
