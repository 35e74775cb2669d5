"""Compiles the C++ kernels into a shared library beside them: at `pip install`, or by hand with `python -m engine.native.build`.

Stdlib only, and nothing of ours: the build runs before anything is installed.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

_FOLDER = Path(__file__).parent
_SOURCES = [_FOLDER / name for name in ("kernels.cpp", "attention.cpp")]
_HEADERS = [_FOLDER / "vectors.h"]
LIBRARY = _FOLDER / "_kernels.so"
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fopenmp")
_MACHINE_FLAGS = {"x86_64": ("-mavx2", "-mfma")}
"""What every server processor of the last ten years has, so that a library may be moved; `library.load` asks anyway."""
_TIMEOUT_SECONDS = 120


class BuildError(Exception):
    """The kernels could not be compiled; says why in one line."""


def source_hash() -> str:
    digest = hashlib.sha256()
    for file in (*_SOURCES, *_HEADERS):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def build(target: Path = LIBRARY) -> Path:
    """Compiles to `target`, which is replaced in one move. The environment's CXX goes before the usual names."""
    names = (os.environ.get("CXX"), *_COMPILERS)
    compiler = next((found for name in names if name and (found := shutil.which(name))), None)
    if compiler is None:
        raise BuildError(f"no C++ compiler found (CXX, {', '.join(_COMPILERS)})")
    partial = target.with_suffix(f".{os.getpid()}")
    flags = (*_FLAGS, *_MACHINE_FLAGS.get(platform.machine(), ()), f'-DSTALLSCOPE_SOURCE="{source_hash()}"')
    command = [compiler, *flags, *map(str, _SOURCES), "-o", str(partial)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)  # noqa: S603
        if done.returncode:
            message = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
            raise BuildError(f"{compiler} failed: {message}")
        partial.replace(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{compiler} failed: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def main() -> int:
    try:
        print(build())  # noqa: T201
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
