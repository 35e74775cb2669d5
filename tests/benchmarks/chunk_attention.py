"""Attention of a prompt's chunk by our compiled kernel and by torch: `python -m tests.benchmarks.chunk_attention`.

One layer of SmolLM2 in float32 on one thread: chunks of so many rows that end contexts of so many positions. Torch gathers the
context out of its blocks and masks; the mask itself, made once for all layers of a step, is not counted. CPU time of the thread,
contenders taking turns, the best of many rounds; nothing is asserted. GFLOP/s count what a row may see.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any, NamedTuple

import torch

from engine.native import library
from engine.native.attention import NativePagedAttention
from engine.runner.host_attention import HostPagedAttention
from engine.runner.torch_attention import TorchPagedAttention
from engine.step import BatchPlan
from probes.arithmetic import attention_flops, attention_pairs
from probes.optime import NoLaps
from tests.benchmarks.turns import best_milliseconds

QUERY_HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16
ROWS = (1, 4, 16, 128, 256, 512)
CONTEXTS = (128, 512, 1024, 2048)
ROUNDS = 40


class Row(NamedTuple):
    rows: int
    context: int
    milliseconds: dict[str, float]

    def gflops(self, name: str) -> float:
        pairs = attention_pairs(self.context - self.rows, self.rows)
        operations = attention_flops(num_layers=1, num_query_heads=QUERY_HEADS, pairs=pairs, head_dim=HEAD_DIM)
        return operations / self.milliseconds[name] / 1e6


def measure(rows: int, context: int, rounds: int) -> Row:
    num_blocks = -(-context // BLOCK_SIZE)
    pool: dict[str, Any] = {
        "num_layers": 1,
        "num_kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_blocks": num_blocks,
        "block_size": BLOCK_SIZE,
    }
    contenders: dict[str, HostPagedAttention] = {
        "ours": NativePagedAttention(library.load(1), **pool),
        "torch": TorchPagedAttention(**pool, max_position=context, dtype=torch.float32),
    }
    blocks = torch.randperm(num_blocks).tolist()
    positions = range(context - rows, context)
    slots = [blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in positions]
    plan = BatchPlan([0] * rows, list(positions), slots, [blocks], [context], [rows], 0, [], [], [])
    query, key, value = (torch.randn(rows, heads, HEAD_DIM) for heads in (QUERY_HEADS, KV_HEADS, KV_HEADS))
    for attention in contenders.values():
        attention.kv.normal_()
        attention.begin(plan)
    work = {name: partial(each.attend, 0, query, key, value, NoLaps()) for name, each in contenders.items()}
    return Row(rows, context, best_milliseconds(work, rounds, thread_time))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = [measure(rows, context, options.rounds) for rows in ROWS for context in CONTEXTS if rows <= context]
    names = list(found[0].milliseconds)
    print("rows  context  " + "  ".join(f"{name:>22}" for name in names) + "  torch / ours")
    for row in found:
        cells = (f"{row.milliseconds[name]:7.3f} ms {row.gflops(name):4.0f} GFLOP/s" for name in names)
        ratio = row.milliseconds["torch"] / row.milliseconds["ours"]
        print(f"{row.rows:4}  {row.context:7}  " + "  ".join(f"{cell:>22}" for cell in cells) + f"  {ratio:12.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps([row._asdict() for row in found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
