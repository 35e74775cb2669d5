"""How the API server finds the side ports of its engines: one small file per engine, named after the vLLM instance.

The files lie in a directory of this user alone. Both processes know the instance's id from vLLM's own configuration.
"""

import json
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


def publish(instance: str, engine: int, url: str) -> Path:
    """Says where an engine's side port is. Files of engines that have died are swept up on the way."""
    directory = _directory()
    for path in directory.glob("*.json"):
        if not _is_alive(_read(path).get("pid")):
            path.unlink(missing_ok=True)
    target = directory / f"{instance}-{engine}.json"
    draft = target.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps({"pid": os.getpid(), "url": url}), encoding="utf-8")
    draft.replace(target)
    return target


def side_ports(instance: str) -> dict[int, str]:
    """URLs by engine index; empty while no engine has a probe."""
    found: dict[int, str] = {}
    for path in sorted(_directory().glob(f"{instance}-*.json")):
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
