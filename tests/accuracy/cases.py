"""Simulated cases, and answers to them, that are kept on disk while the code that made them is the same.

A change of a rule then judges the same cases again without simulating them, and a run that was interrupted goes on.
"""

import hashlib
import os
import pickle
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TypeVar

from tests.accuracy.windows import Case, make_case

What = tuple[tuple[str, ...], str, int]
"""Conditions, shape and seed."""
T = TypeVar("T")

_ROOT = Path(__file__).resolve().parents[2]
_MAKES_CASES = (
    *("engine/*.py", "probes/*.py", "tests/builders.py", "tests/probes/gpus.py"),
    *(
        f"tests/accuracy/{name}.py"
        for name in ("accounts", "conditions", "scenario", "server", "shapes", "vllm", "windows")
    ),
    *("runbooks/drills/service_levels.py", "runbooks/experiments/workload.py"),
)
_MAKES_ANSWERS = (
    *_MAKES_CASES,
    "diagnose/**/*.py",
    *(f"tests/accuracy/{name}.py" for name in ("__main__", "rivals", "score")),
)


def cached_case(directory: Path, what: What) -> Case:
    return keep(directory, what, lambda: make_case(*what))


def keep(directory: Path, what: What, make: Callable[[], T]) -> T:
    """What `make` gave for this case before, or gives now."""
    names, shape, seed = what
    path = directory / f"{'+'.join(names)}-{shape}-{seed}"
    if path.exists():
        kept: T = pickle.loads(zlib.decompress(path.read_bytes()))  # written below, by us
        return kept
    made = make()
    half = path.with_suffix(f".{os.getpid()}")
    half.write_bytes(zlib.compress(pickle.dumps(made), 1))
    half.replace(path)  # whole or not at all, for whoever reads beside us
    return made


def cases_of_this_code(directory: Path) -> Path:
    return _named_by_code(directory / "cases", _MAKES_CASES)


def peers_of_this_code(directory: Path) -> Path:
    return _named_by_code(directory / "peers", (*_MAKES_ANSWERS, "tests/accuracy/peers.py"))


def answers_of_this_code(directory: Path) -> Path:
    return _named_by_code(directory / "answers", _MAKES_ANSWERS)


@cache
def _named_by_code(directory: Path, patterns: Iterable[str]) -> Path:
    """A directory whose name says by which code its content was made."""
    digest = hashlib.sha256()
    for pattern in patterns:
        for path in sorted(_ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    found = directory / digest.hexdigest()[:16]
    found.mkdir(parents=True, exist_ok=True)
    return found
