"""Compiles the C++ kernels into shared libraries beside them: at `pip install`, or by hand with `python -m engine.native.build`.

Stdlib only: the build runs before anything is installed.
"""

import platform
import sys
from pathlib import Path

from probes import build as compiling

FOLDER = Path(__file__).parent
_SOURCES = [FOLDER / name for name in ("kernels.cpp", "attention.cpp")]
_HEADERS = [FOLDER / "vectors.h"]
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-fopenmp")
_AVX2 = ("-mavx2", "-mfma")
_MACHINE_FLAGS = {"x86_64": {"avx512": (*_AVX2, "-mavx512f", "-mavx512vl", "-mavx512dq"), "avx2": _AVX2}}
"""The quickest first. AVX2 is what every server processor of the last ten years has; a library may be moved, and
`library.load` takes the first that the processor has the instructions for."""
VARIANTS = _MACHINE_FLAGS.get(platform.machine(), {"generic": ()})


def source_hash() -> str:
    return compiling.source_hash(*_SOURCES, *_HEADERS)


def libraries(folder: Path = FOLDER) -> list[Path]:
    """Of this kind of machine, the quickest first, built or not."""
    return [folder / f"_kernels_{variant}.so" for variant in VARIANTS]


def build(folder: Path = FOLDER) -> list[Path]:
    for target, flags in zip(libraries(folder), VARIANTS.values(), strict=True):
        compiling.compile_library(_SOURCES, target, source_hash(), "CXX", _COMPILERS, (*_FLAGS, *flags))
    return libraries(folder)


if __name__ == "__main__":
    sys.exit(compiling.main(build))
