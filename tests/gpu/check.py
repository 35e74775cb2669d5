"""`make gpu-check`: what only a GPU can show, in one run of under 8 minutes. Needs torch and triton, and no network.

Prints one table and writes JSON. Exit codes: 0 all within limits, 1 something failed, 2 there is no GPU. A section that
fails is reported and the others still run; when the time is up, the rest is said to have been left out. `--dry` runs the
whole of it on toys and on the CPU: whether the script works, and nothing about a device.
"""

import argparse
import json
import logging
import platform
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

from engine.errors import ConfigError
from engine.model.config import ModelConfig
from engine.runner.device import CudaDevice, Device
from tests.engine.fake_device import FakeDevice
from tests.gpu import drills, engine_checks, kernel_checks
from tests.gpu.drills import Interference
from tests.gpu.engine_checks import Load
from tests.gpu.kernel_checks import Shape
from tests.gpu.models import LLAMA_1B, LLAMA_8B_4_LAYERS, RandomModel, llama, random_model
from tests.gpu.report import Row, Section, table

TIME_LIMIT_SECONDS = 420.0
"""No section starts after this."""


class Sizes(NamedTuple):
    """Of everything that is run."""

    small: ModelConfig = LLAMA_1B
    large: ModelConfig = LLAMA_8B_4_LAYERS
    dtype: torch.dtype = torch.bfloat16
    load: Load = Load()
    drill: Interference = Interference()
    shapes: list[Shape] = kernel_checks.SHAPES
    mixed: tuple[list[int], list[tuple[int, int]]] = kernel_checks.MIXED
    decodes: tuple[tuple[int, int], ...] = ((64, 4096), (8, 4096), (1, 8192))
    """(batch, context)."""
    chunks: tuple[tuple[int, int], ...] = ((0, 2048), (4096, 2048), (8000, 192))
    """(start, rows)."""
    prompt: tuple[int, int] = (1000, 192)
    """Tokens of a prompt, and of its chunks."""


_TOY = llama(num_layers=2, hidden=64, intermediate=128, query_heads=4, kv_heads=2, vocab=300, tied=True)
DRY = Sizes(
    small=_TOY,
    large=_TOY,
    dtype=torch.float32,
    load=Load(requests=4, prompt_tokens=24, output_tokens=12, max_batched_tokens=48),
    drill=Interference(3, 16, 30, 60, 400, 12, 512, 64),
    shapes=[Shape(4, 2, 16, 5)],
    mixed=([1, 9, 30], [(0, 1), (7, 20)]),
    decodes=((2, 40),),
    chunks=((5, 20),),
    prompt=(40, 9),
)


class Check:
    """The sections in order; each yields rows as it finds them. Ceilings come first: others are held against them."""

    def __init__(self, device: Device, sizes: Sizes) -> None:
        self._device = device
        self._sizes = sizes
        self._bandwidth = self._flops = 1.0

    @property
    def sections(self) -> dict[str, Callable[[], Iterator[Row]]]:
        return {
            "ceilings": self.ceilings,
            "kernels against float32": self.kernels,
            "kernel speed": self.kernel_speed,
            "chunked against whole prefill, 1B, bfloat16": self.chunking,
            "engine, 8B geometry with 4 layers": lambda: self.engine("8B/4", self._sizes.large),
            "engine, 1B": lambda: self.engine("1B", self._sizes.small),
            "drill: prefill interference, 1B": self.drill,
            "cost of probes, 1B": self.probes,
        }

    def ceilings(self) -> Iterator[Row]:
        start = perf_counter()
        self._bandwidth = self._device.measure_bandwidth()
        yield Row("bandwidth (read, or copied both ways)", self._bandwidth / 1e9, "GB/s")
        self._flops = self._device.measure_flops(torch.bfloat16)
        yield Row("bfloat16 products", self._flops / 1e12, "TFLOP/s")
        yield Row("float32 products", self._device.measure_flops(torch.float32) / 1e12, "TFLOP/s")
        yield Row("time for all three, first use included", perf_counter() - start, "s")

    def kernels(self) -> Iterator[Row]:
        yield from kernel_checks.correctness(self._device, self._sizes.shapes, *self._sizes.mixed)

    def kernel_speed(self) -> Iterator[Row]:
        for batch, context in self._sizes.decodes:
            yield from kernel_checks.decode_speed(self._device, self._bandwidth, batch, context)
        for start, rows in self._sizes.chunks:
            yield from kernel_checks.prefill_speed(self._device, self._flops, start, rows)

    def chunking(self) -> Iterator[Row]:
        yield from engine_checks.chunked_against_whole(self._device, self._small(), *self._sizes.prompt)

    def engine(self, name: str, config: ModelConfig) -> Iterator[Row]:
        yield from engine_checks.serving(self._device, self._model(name, config), self._sizes.load)

    def drill(self) -> Iterator[Row]:
        yield from drills.interference(self._device, self._small(), self._sizes.drill)

    def probes(self) -> Iterator[Row]:
        yield from engine_checks.probe_cost(self._device, self._small(), self._sizes.load)

    def _small(self) -> RandomModel:
        return self._model("1B", self._sizes.small)

    def _model(self, name: str, config: ModelConfig) -> RandomModel:
        return random_model(name, config, self._device.torch_device, self._sizes.dtype)


def run_sections(
    sections: dict[str, Callable[[], Iterator[Row]]], time_limit: float = TIME_LIMIT_SECONDS
) -> list[Section]:
    results = []
    begin = perf_counter()
    for name, run in sections.items():
        section = Section(name)
        results.append(section)
        start = perf_counter()
        if start - begin > time_limit:
            section.error = f"left out: {time_limit:.0f} s were over"
            continue
        print(f"-- {name}", file=sys.stderr, flush=True)
        try:
            for row in run():
                section.rows.append(row)
        except Exception as error:  # noqa: BLE001 - whatever breaks in one section, the others are still worth the machine
            traceback.print_exc()
            section.error = f"{type(error).__name__}: {error}".splitlines()[0]
        section.seconds = perf_counter() - start
    return results


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("gpu-check.json"), help="where the figures go")
    parser.add_argument("--only", action="append", metavar="TEXT", help="only sections whose name contains this")
    parser.add_argument("--dry", action="store_true", help="toys on the CPU: whether the script itself works")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        device: Device = FakeDevice() if options.dry else CudaDevice()
    except ConfigError as error:
        print(f"gpu-check needs an NVIDIA GPU: {str(error).removeprefix('--device cuda: ')}")
        return 2
    sections = Check(device, DRY if options.dry else Sizes()).sections
    if options.only:
        wanted = {name: run for name, run in sections.items() if any(text in name for text in options.only)}
        sections = {"ceilings": sections["ceilings"]} | wanted
    results = run_sections(sections)
    facts = {"device": device.name, "torch": torch.__version__, "python": platform.python_version()}
    ok = all(section.is_ok for section in results)
    figures = {"ok": ok, "facts": facts, "sections": [section.as_json() for section in results]}
    options.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(table(results))
    print(f"{'all within limits' if ok else 'FAILED'} on {device.name}, torch {torch.__version__}; {options.json}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
