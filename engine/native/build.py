"""Compiles the C++ kernels into a shared library beside them: at `pip install`, or by hand with `python -m engine.native.build`.

Stdlib only: the build runs before anything is installed.
"""

import platform
import sys
from pathlib import Path

from probes import build as compiling

_FOLDER = Path(__file__).parent
_SOURCES = [_FOLDER / name for name in ("kernels.cpp", "attention.cpp")]
_HEADERS = [_FOLDER / "vectors.h"]
LIBRARY = _FOLDER / "_kernels.so"
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-fopenmp")
_MACHINE_FLAGS = {"x86_64": ("-mavx2", "-mfma")}
"""What every server processor of the last ten years has, so that a library may be moved; `library.load` asks anyway."""


def source_hash() -> str:
    return compiling.source_hash(*_SOURCES, *_HEADERS)


def build(target: Path = LIBRARY) -> Path:
    flags = (*_FLAGS, *_MACHINE_FLAGS.get(platform.machine(), ()))
    return compiling.compile_library(_SOURCES, target, source_hash(), "CXX", _COMPILERS, flags)


if __name__ == "__main__":
    sys.exit(compiling.main(build))
