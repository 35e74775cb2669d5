"""What may be said and set about the thresholds of `diagnose.policy`: their reasons, their ranges, and overrides by file."""

import ast
import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from diagnose import policy as policy_module
from diagnose.errors import SourceError
from diagnose.policy import DEFAULT_POLICY, ORDERED, RATIOS, Policy
from diagnose.units import printable

TABLE = "thresholds"


@dataclass(frozen=True, slots=True)
class Threshold:
    name: str
    default: float
    low: float
    high: float
    reason: str

    @property
    def whole(self) -> bool:
        return isinstance(self.default, int)

    @property
    def range_text(self) -> str:
        return f"a {'whole number' if self.whole else 'number'} from {self.low:g} to {self.high:g}"


def thresholds() -> list[Threshold]:
    """Every field of the policy, in its order, with the reason that stands below it in the source."""
    reasons = _reasons()
    return [
        Threshold(f.name, default, *_range(f.name, default), reasons.get(f.name, ""))
        for f in fields(Policy)
        if (default := getattr(DEFAULT_POLICY, f.name)) is not None
    ]


def read_policy(path: Path) -> Policy:
    """The default policy with the overrides of `[thresholds]`. Raises SourceError that names the key and what it may be."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SourceError(f"{path}: is not text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SourceError(f"{path}: is not TOML: {printable(str(error))}") from None
    unknown = sorted(document.keys() - {TABLE})
    if unknown:
        raise SourceError(f"{path}: {printable(unknown[0])!r} is not known here; write thresholds below [{TABLE}]")
    table = document.get(TABLE)
    if not isinstance(table, dict):
        raise SourceError(f"{path}: has no table [{TABLE}]")
    return _checked(path, table)


def _checked(path: Path, table: Mapping[str, Any]) -> Policy:
    known = {threshold.name: threshold for threshold in thresholds()}
    changes: dict[str, float] = {}
    for name, value in table.items():
        threshold = known.get(name)
        if threshold is None:
            raise SourceError(
                f"{path}: no threshold {printable(name)!r}{_like(name, list(known))}; "
                "`stallscope explain --thresholds` lists them"
            )
        if not _fits(value, threshold):
            raise SourceError(f"{path}: {name} = {printable(str(value))[:40]}: must be {threshold.range_text}")
        changes[name] = value
    changed = replace(DEFAULT_POLICY, **changes)  # type: ignore[arg-type] # whole numbers are checked to be whole
    for low, high in ORDERED:
        if getattr(changed, low) > getattr(changed, high):
            raise SourceError(
                f"{path}: {low} = {getattr(changed, low):g} must not exceed {high} = {getattr(changed, high):g}"
            )
    return changed


def _fits(value: Any, threshold: Threshold) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if threshold.whole else int | float):
        return False
    return threshold.low <= value <= threshold.high  # NaN is in no range


def _like(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _range(name: str, default: float) -> tuple[float, float]:
    if isinstance(default, int):
        return (0 if default <= 1 else 1), 1_000_000
    if name.endswith("_seconds"):
        return 0.001, 86_400.0
    return (1.0, 100.0) if name in RATIOS else (0.0, 1.0)


def _reasons() -> dict[str, str]:
    """The strings below the fields: attribute docstrings, which no object keeps."""
    tree = ast.parse(inspect.getsource(policy_module))
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == Policy.__name__:
            for field, text in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    found[field.target.id] = _string(text)
    return found


def _string(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())  # a line of its own in a table, however it is wrapped in the source
    return ""
