"""Simulated cases that are kept on disk, so that a change of a rule judges them again without simulating them."""

import hashlib
import pickle
import zlib
from pathlib import Path

from tests.accuracy.windows import Case, make_case

What = tuple[tuple[str, ...], str, int]
"""Conditions, shape and seed."""

_ROOT = Path(__file__).resolve().parents[2]
_MAKES_CASES = (
    *("engine/*.py", "probes/*.py", "tests/builders.py", "tests/probes/gpus.py"),
    *(f"tests/accuracy/{name}.py" for name in ("accounts", "conditions", "server", "shapes", "vllm", "windows")),
    *("runbooks/drills/service_levels.py", "runbooks/experiments/workload.py"),
)


def cached_case(cache: Path, what: What) -> Case:
    """As simulated before, unless what simulates has changed since."""
    names, shape, seed = what
    path = cache / f"{'+'.join(names)}-{shape}-{seed}.case"
    if path.exists():
        case: Case = pickle.loads(zlib.decompress(path.read_bytes()))  # written below, by us
        return case
    case = make_case(*what)
    path.write_bytes(zlib.compress(pickle.dumps(case), 1))
    return case


def kept_for_this_code(directory: Path) -> Path:
    """A directory whose name says by which code its cases were made."""
    digest = hashlib.sha256()
    for pattern in _MAKES_CASES:
        for path in sorted(_ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    found = directory / digest.hexdigest()[:16]
    found.mkdir(parents=True, exist_ok=True)
    return found
