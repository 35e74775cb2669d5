"""The decoder's matrix products by our compiled kernel and by torch: `python -m tests.benchmarks.matrix_products`.

The four products of a SmolLM2 layer in float32 on one thread, for batches of so many rows: decodes, and chunks of prompts. CPU
time of the thread, contenders taking turns, the best of many rounds; nothing is asserted. Ours and one of oneDNN's products read
weights that were packed before; the other one, which torch takes for a linear layer, packs them each time.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import NamedTuple

import torch
import torch.nn.functional as F

from engine.native import library
from tests.benchmarks.turns import best_milliseconds

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""Features and depth: attention's input and output, the gate with its up projection, the down projection."""
ROWS = (1, 8, 32, 48, 64, 128, 136, 256, 512)
ROUNDS = 40


class Row(NamedTuple):
    rows: int
    milliseconds: dict[str, float]
    """Of all four products."""

    def gflops(self, name: str) -> float:
        operations = 2 * self.rows * sum(features * depth for features, depth in SHAPES)
        return operations / self.milliseconds[name] / 1e6


def measure(rows: int, rounds: int) -> Row:
    ours = library.load(1)
    weights = [torch.randn(shape) for shape in SHAPES]
    inputs = [torch.randn(rows, depth) for _, depth in SHAPES]
    panels = [ours.pack(weight) for weight in weights]
    packed = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]
    contenders: dict[str, Callable[[], object]] = {
        "ours": lambda: [ours.linear(x, w) for x, w in zip(inputs, panels, strict=True)],
        "torch": lambda: [F.linear(x, w) for x, w in zip(inputs, weights, strict=True)],
        "oneDNN, packed": lambda: [
            torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "") for x, w in zip(inputs, packed, strict=True)
        ],
    }
    return Row(rows, best_milliseconds(contenders, rounds, thread_time))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = [measure(rows, options.rounds) for rows in ROWS]
    names = list(found[0].milliseconds)
    print("rows  " + "  ".join(f"{name:>22}" for name in names))
    for row in found:
        cells = (f"{row.milliseconds[name]:7.2f} ms {row.gflops(name):4.0f} GFLOP/s" for name in names)
        print(f"{row.rows:4}  " + "  ".join(f"{cell:>22}" for cell in cells))
    if options.json is not None:
        options.json.write_text(json.dumps([row._asdict() for row in found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
