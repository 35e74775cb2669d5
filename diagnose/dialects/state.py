"""What a server says of itself in JSON: tables from paths in the answer to canonical signals, one per endpoint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diagnose.dialects.base import Usage

Path = tuple[str, ...]
"""Keys on the way to a value."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """An answer that holds all of `keys` is of this kind."""

    engine: str
    name: str
    keys: tuple[Path, ...]
    gauges: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    """Signal -> where its value may stand; the first place that holds a number gives it."""
    info: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    compute: Callable[[Any], Mapping[str, float]] | None = None
    """Gauges that no single place states."""
    coverage: Mapping[str, str] = field(default_factory=dict)
    usage: Usage | None = None
    pool_unit: str = "blocks"
    free_includes_reclaimable: bool | None = None
    is_list: bool = False
    """The answer is a list of records that hold `keys`."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """A list of records about engine steps. Paths to a step's duration and to what it computed."""

    engine: str
    name: str
    keys: tuple[Path, ...]
    milliseconds: Path
    prefill_requests: Path
    prefill_tokens: Path
    decode_requests: Path
    gauges: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    warning: str = ""
    coverage: str = ""
    usage: Usage | None = None
    free_includes_reclaimable: bool | None = None


def at(value: Any, path: Sequence[str]) -> Any:
    """What stands there; None when the way ends."""
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value


def number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
