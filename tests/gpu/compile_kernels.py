"""Compiles the Triton kernels for real devices, without one: `python -m tests.gpu.compile_kernels`, triton installed.

Shows what interpretation cannot: that the code is accepted for the device, fits its registers and shared memory, and
reads KV in accesses of 16 bytes. Must run in a process that does not interpret (TRITON_INTERPRET unset).
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.runner.attention.triton_kernels import _LARGE_SHARED_MEMORY
from engine.runner.kernels import decode_combine, kv_write, paged_decode, paged_prefill

SHARED_BYTES = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10}
"""What a program may have, by compute capability."""
_POINTERS = {"block_tables": "*i32", "context_lens": "*i32", "query_starts": "*i32", "slots": "*i32"}
_FLOATS = {"partial": "*fp32", "partial_lse": "*fp32", "scale_log2": "fp32"}
_KV = ("query", "key", "value", "key_pool", "value_pool", "output")


class Built(NamedTuple):
    kernel: str
    capability: int
    shared_bytes: int
    registers: int
    spilled_bytes: int
    wide_loads: int
    """Loads of 16 bytes, asynchronous ones included."""

    @property
    def problem(self) -> str | None:
        if self.shared_bytes > SHARED_BYTES[self.capability]:
            return f"needs {self.shared_bytes >> 10} KiB of shared memory"
        if self.spilled_bytes > 256:
            return f"spills {self.spilled_bytes} bytes of registers"
        return None if self.wide_loads else "has no load of 16 bytes"


def build_all(capability: int, head_dim: int = 128, block_size: int = 16) -> list[Built]:
    """The four kernels in bfloat16, with the tiles and stages that a device of this capability gets."""
    is_large = divmod(capability, 10) in _LARGE_SHARED_MEMORY
    rows, tile = paged_prefill._tile_shape(torch.bfloat16, head_dim, is_large)
    dims = {"DIM": head_dim, "DIM_PADDED": head_dim}
    paged = {"BLOCK_SIZE": block_size, "GROUP": 4} | dims
    decode = paged | {"ROWS": 16, "TILE": paged_decode._tile_tokens(torch.bfloat16, head_dim)}
    prefill = paged | {"ROWS": rows, "TILE": tile}
    write = {"BLOCK_SIZE": block_size, "HEADS": 8, "DIM": head_dim, "WIDTH": 8 * head_dim}
    combine = {"SPLITS_PADDED": 8} | dims
    return [
        build(paged_decode._decode_split, decode, capability, num_warps=4, num_stages=3 if is_large else 2),
        build(paged_prefill._prefill_tile, prefill, capability, num_warps=4 if rows <= 64 else 8, num_stages=2),
        build(kv_write._write, write, capability, num_warps=4),
        build(decode_combine._combine, combine, capability, num_warps=2),
    ]


def build(kernel: Any, constants: dict[str, int], capability: int, **options: int) -> Built:
    names = kernel.arg_names
    types = _POINTERS | _FLOATS | dict.fromkeys(_KV, "*bf16") | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in names}
    # What a launch would find out by itself: pointers and strides that 16 divides.
    divisible = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if signature[name].startswith("*") or ("stride" in name and name != "table_stride")
    }
    fixed = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed, attrs=divisible)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = built.asm["ptx"]
    report = _assemble(ptx, "ptxas-blackwell" if capability >= 100 else "ptxas")
    wide = len(re.findall(r"ld\.global[.\w]*v4|cp\.async\.cg[^;]*0x10", ptx))
    registers, spilled = (int(re.findall(text, report)[0]) for text in (r"Used (\d+) reg", r"(\d+) bytes spill stores"))
    return Built(kernel.__name__, capability, built.metadata.shared, registers, spilled, wide)


def _assemble(ptx: str, program: str) -> str:
    """The report of resources by one of the assemblers that come with triton."""
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / program
    target = re.findall(r"\.target (\w+)", ptx)[0]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [str(path), "-v", f"--gpu-name={target}", file.name, "-o", "/dev/null"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def main(capabilities: list[int]) -> int:
    problems = 0
    for capability in capabilities:
        for built in build_all(capability):
            problems += built.problem is not None
            print(*built, built.problem or "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main([int(text) for text in sys.argv[1:]] or list(SHARED_BYTES)))
