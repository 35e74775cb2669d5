"""How the API server finds the side ports of its engines: one small file per engine, named after the process above it.

An engine's parent is the API server, or the launcher of several API servers; an engine in its user's own process has none
and takes that. The files lie in a directory of this user alone.
"""

import json
import multiprocessing
import os
import tempfile
from pathlib import Path


def _directory() -> Path:
    """Raises OSError when it exists and is not this user's alone."""
    path = Path(tempfile.gettempdir()) / f"stallscope-vllm-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not path.is_dir() or path.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not a directory of this user alone")
    return path


def _parent() -> int | None:
    parent = multiprocessing.parent_process()
    return None if parent is None else parent.pid


def publish(engine: int, url: str) -> Path:
    """Says where an engine's side port is. Files of engines that have died are swept up on the way."""
    directory = _directory()
    for path in directory.glob("*.json"):
        if not _is_alive(_read(path).get("pid")):
            path.unlink(missing_ok=True)
    target = directory / f"{_parent() or os.getpid()}-{engine}.json"
    draft = target.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps({"pid": os.getpid(), "url": url}), encoding="utf-8")
    draft.replace(target)
    return target


def side_ports() -> dict[int, str]:
    """URLs of this server's engines by index; empty while none has a probe."""
    found: dict[int, str] = {}
    for owner in (os.getpid(), _parent()):
        for path in _directory().glob(f"{owner}-*.json"):
            url = _read(path).get("url")
            if isinstance(url, str):
                found[int(path.stem.rpartition("-")[2])] = url
    return dict(sorted(found.items()))


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
