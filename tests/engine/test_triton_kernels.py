"""The Triton kernels on the CPU, through triton's interpreter, against plain torch in float64.

The interpreter is chosen when the kernels are imported, so this module must be the first of its process to do so. It is
skipped where triton is not installed: `make test-kernels` brings it.
"""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

os.environ["TRITON_INTERPRET"] = "1"  # before the import below, and nobody else imports triton
pytest.importorskip("triton", reason="triton is not installed: make test-kernels runs these tests")

import triton.language as tl

from engine.runner.kernels.kv_write import write_kv
from engine.runner.kernels.paged_decode import TILE_TOKENS, choose_splits, paged_decode
from engine.runner.kernels.paged_prefill import paged_prefill

torch.set_num_threads(1)

# What triton 3.6's interpreter does with loop bounds; numpy 2.4 refuses it, so that these tests need an older one.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")

TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
HEADS = [(2, 2), (9, 3), (4, 1), (8, 1)]  # query and KV heads: groups of 1, 3, 4 and 8


class Pool:
    """A pool of random KV, and sequences whose blocks are scattered over it with unused blocks in between."""

    def __init__(self, lengths: list[int], kv_heads: int, dim: int, block_size: int, dtype: torch.dtype, seed: int = 0):
        self.generator = torch.Generator().manual_seed(seed)
        self.block_size = block_size
        counts = [-(-length // block_size) for length in lengths]
        num_blocks = 2 * sum(counts) + 3
        shape = (2, num_blocks, block_size, kv_heads, dim)
        self.keys, self.values = self.randn(*shape).to(dtype)
        order = torch.randperm(num_blocks, generator=self.generator).tolist()
        self.tables = [[order.pop() for _ in range(count)] for count in counts]
        width = max([*counts, 1]) + 1
        # The rest of a row names a block that does not exist: reading it would fail or show.
        self.table = torch.tensor([row + [10**9] * (width - len(row)) for row in self.tables], dtype=torch.int32)
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        self.num_blocks = num_blocks

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def sequence(self, index: int) -> tuple[Tensor, Tensor]:
        """K and V of a sequence in float64: [length, kv_heads, dim]."""
        length, table = int(self.lengths[index]), torch.tensor(self.tables[index], dtype=torch.int64)
        keys, values = (pool[table].flatten(0, 1)[:length].double() for pool in (self.keys, self.values))
        return keys, values


def reference(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """query [rows, heads, dim] are the last positions of the sequence; textbook attention in float64."""
    rows, length, group = query.shape[0], keys.shape[0], query.shape[1] // max(1, keys.shape[1])
    if not length:
        return torch.zeros_like(query, dtype=torch.float64)
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * query.shape[-1] ** -0.5
    visible = torch.arange(length) <= torch.arange(length - rows, length).unsqueeze(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, float("-inf")).softmax(-1), values)


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype is dtype
    assert torch.isfinite(actual).all()
    assert (actual.double() - expected).norm() <= TOLERANCE[dtype] * max(1.0, expected.norm())
    assert (actual.double() - expected).abs().max() <= 8 * TOLERANCE[dtype]


def decode_matches(
    lengths: list[int],
    heads: tuple[int, int],
    dim: int,
    block_size: int,
    dtype: torch.dtype,
    num_splits: int,
    seed: int = 0,
) -> None:
    pool = Pool(lengths, heads[1], dim, block_size, dtype, seed)
    # Query rows as the decoder has them: a slice of a wider row.
    query = pool.randn(len(lengths), heads[0] + heads[1], dim).to(dtype)[:, : heads[0]]
    attended = paged_decode(query, pool.keys, pool.values, pool.table, pool.lengths, num_splits=num_splits)
    expected = torch.stack([reference(query[i : i + 1], *pool.sequence(i))[0] for i in range(len(lengths))])
    assert_close(attended, expected, dtype)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dim", [64, 128])
def test_decode_by_group_and_head_size(heads, dim):
    decode_matches([37, 1, 100, 64], heads, dim, 16, torch.float32, 2)


@pytest.mark.parametrize("block_size", [1, 5, 16, 256])
@pytest.mark.parametrize("num_splits", [1, 3, 8])
def test_decode_by_block_size_and_splits(block_size, num_splits):
    decode_matches([130, 16, 17, 200], (4, 1), 64, block_size, torch.float32, num_splits, seed=block_size)


@pytest.fixture
def bfloat16_dot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter keeps bfloat16 as the bits of a uint16 and its dot would multiply those as integers."""
    from triton.runtime import interpreter

    plain = interpreter.InterpreterBuilder.create_dot

    def widened(builder, a, b, *rest):
        a, b = (builder.create_fp_to_fp(x, tl.float32, None) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return plain(builder, a, b, *rest)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", widened)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_decode_in_16_bit(dtype, bfloat16_dot):
    decode_matches([90, 33], (9, 3), 64, 16, dtype, 2)


def test_decode_of_an_empty_sequence_is_zero_and_disturbs_nobody():
    decode_matches([0, 40, 0, 1], (9, 3), 64, 16, torch.float32, 4)
    decode_matches([0], (2, 2), 64, 16, torch.float32, 1)


@pytest.mark.parametrize("dim", [16, 80])
def test_decode_of_unusual_head_sizes(dim):
    decode_matches([50, 7], (4, 2), dim, 16, torch.float32, 2)


def test_decode_of_no_sequence():
    pool = Pool([], 2, 64, 16, torch.float32)
    empty = torch.empty((0, 4, 64))
    table = torch.empty((0, 1), dtype=torch.int32)
    assert paged_decode(empty, pool.keys, pool.values, table, pool.lengths, num_splits=2).shape == (0, 4, 64)


def prefill_matches(
    chunks: list[tuple[int, int]], heads: tuple[int, int], dim: int, block_size: int, dtype: torch.dtype, seed: int = 0
) -> None:
    """chunks: (position of the first row, rows)."""
    pool = Pool([start + rows for start, rows in chunks], heads[1], dim, block_size, dtype, seed)
    starts = torch.tensor([0, *(rows for _, rows in chunks)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    query = pool.randn(int(starts[-1]), heads[0] + heads[1], dim).to(dtype)[:, : heads[0]]
    longest = max(rows for _, rows in chunks)
    attended = paged_prefill(query, pool.keys, pool.values, pool.table, pool.lengths, starts, max_query_len=longest)
    parts = [reference(query[starts[i] : starts[i + 1]], *pool.sequence(i)) for i in range(len(chunks))]
    assert_close(attended, torch.cat(parts), dtype)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dim", [64, 128])
def test_prefill_by_group_and_head_size(heads, dim):
    prefill_matches([(0, 40), (33, 5), (64, 33)], heads, dim, 16, torch.float32)


@pytest.mark.parametrize("block_size", [1, 5, 16, 256])
def test_prefill_chunks_at_any_offset(block_size):
    prefill_matches([(0, 1), (31, 33), (100, 1), (0, 70), (16, 16)], (4, 1), 64, block_size, torch.float32, block_size)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_prefill_in_16_bit(dtype, bfloat16_dot):
    prefill_matches([(0, 140), (70, 9)], (9, 3), 64, 16, dtype)


def test_prefill_with_an_empty_chunk_between():
    prefill_matches([(3, 20), (0, 0), (7, 0), (12, 9)], (2, 2), 64, 16, torch.float32)


def test_chunks_give_what_the_whole_prompt_gives():
    pool = Pool([90], 3, 64, 16, torch.float32)
    query = pool.randn(90, 9, 64)

    def part(start: int, end: int) -> Tensor:
        lengths, starts = (torch.tensor(values, dtype=torch.int32) for values in ([end], [0, end - start]))
        rows = query[start:end]
        return paged_prefill(rows, pool.keys, pool.values, pool.table, lengths, starts, max_query_len=end - start)

    chunked = torch.cat([part(0, 7), part(7, 64), part(64, 90)])
    assert torch.allclose(chunked, part(0, 90), atol=1e-5)


@pytest.mark.parametrize(("kv_heads", "dim", "block_size"), [(3, 64, 16), (1, 128, 5), (2, 80, 1)])
def test_kv_goes_to_its_slots_and_nowhere_else(kv_heads, dim, block_size):
    pool = Pool([40], kv_heads, dim, block_size, torch.float32)
    before = [pool.keys.clone(), pool.values.clone()]
    wide = pool.randn(6, 4 * kv_heads, dim)
    key, value = wide[:, kv_heads : 2 * kv_heads], wide[:, 2 * kv_heads : 3 * kv_heads]
    slots = [3, pool.num_blocks * block_size - 1, -1, 0, block_size, 2 * block_size + block_size // 2]
    write_kv(key, value, pool.keys, pool.values, torch.tensor(slots, dtype=torch.int32))
    for expected, written, source in zip(before, (pool.keys, pool.values), (key, value), strict=True):
        for row, slot in enumerate(slots):
            if slot >= 0:
                expected.view(-1, kv_heads, dim)[slot] = source[row]
        assert torch.equal(written, expected)


def test_random_batches():
    generator = torch.Generator().manual_seed(7)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    for seed in range(4):
        heads = HEADS[number(0, len(HEADS))]
        block_size, count = number(1, 40), number(1, 5)
        decode_matches([number(0, 150) for _ in range(count)], heads, 64, block_size, torch.float32, number(1, 6), seed)
        chunks = [(number(0, 90), number(0, 60)) for _ in range(count)]
        prefill_matches([*chunks, (0, 1)], heads, 64, block_size, torch.float32, seed)


def test_splits_fill_the_device_and_are_no_shorter_than_a_tile():
    assert choose_splits(1, 8, 132, 100_000) == 64
    assert choose_splits(16, 8, 132, 100_000) == 4
    assert choose_splits(256, 8, 132, 100_000) == 1
    assert choose_splits(1, 8, 132, TILE_TOKENS) == 1
    assert choose_splits(1, 1, 132, 3 * TILE_TOKENS) == 2


def test_the_kernels_compile_for_real_devices():
    """Ahead of time, in a process of its own: this one interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.gpu.compile_kernels", "80", "90"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" ok\n") == 8
