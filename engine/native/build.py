"""Compiles kernels.cpp into a shared library beside it: at `pip install`, or by hand with `python -m engine.native.build`.

Stdlib only: the build runs before anything is installed.
"""

import platform
import sys
from pathlib import Path

from probes.build import compile_library, main

SOURCE = Path(__file__).with_name("kernels.cpp")
LIBRARY = SOURCE.with_name("_kernels.so")
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-fopenmp")
_MACHINE_FLAGS = {"x86_64": ("-mavx2", "-mfma")}
"""What every server processor of the last ten years has, so that a library may be moved; `library.load` asks anyway."""


def build(target: Path = LIBRARY) -> Path:
    return compile_library(SOURCE, target, "CXX", _COMPILERS, (*_FLAGS, *_MACHINE_FLAGS.get(platform.machine(), ())))


if __name__ == "__main__":
    sys.exit(main(build))
