"""Compiles `_lock_core.c` into an extension beside it: at `pip install`, or by hand with `python -m probes.build`.

Stdlib only: the build runs before anything is installed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("_lock_core.c")
LIBRARY = SOURCE.with_name("_lock_core.abi3.so")
_TIMEOUT_SECONDS = 120


class BuildError(Exception):
    """A compiled part could not be built; says why in one line."""


def source_hash(*files: Path) -> str:
    """What a library says that it was built from."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def compile_library(
    sources: Sequence[Path], target: Path, stamp: str, variable: str, compilers: Sequence[str], flags: Sequence[str]
) -> Path:
    """Compiles to `target`, which is replaced in one move. The environment's `variable` goes before the usual compilers."""
    names = (os.environ.get(variable), *compilers)
    compiler = next((found for name in names if name and (found := shutil.which(name))), None)
    if compiler is None:
        raise BuildError(f"no compiler found ({variable}, {', '.join(compilers)})")
    partial = target.with_suffix(f".{os.getpid()}")
    stamped = f'-DSTALLSCOPE_SOURCE="{stamp}"'
    command = [compiler, "-fPIC", "-shared", *flags, stamped, *map(str, sources), "-o", str(partial)]
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


def build(target: Path = LIBRARY) -> list[Path]:
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").exists():
        raise BuildError(f"no Python.h in {headers} (the interpreter's development package)")
    flags = ("-std=c11", "-O2", f"-I{headers}")
    return [compile_library([SOURCE], target, source_hash(SOURCE), "CC", ("cc", "gcc", "clang"), flags)]


def main(build: Callable[[], Sequence[Path]] = build) -> int:
    try:
        print(*build(), sep="\n")  # noqa: T201
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
