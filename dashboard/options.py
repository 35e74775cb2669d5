"""What a person asked for when the dashboard was started."""

from dataclasses import dataclass, field
from pathlib import Path

from dashboard.judge import Rules


@dataclass(frozen=True, slots=True)
class Options:
    interval: float = 1.0
    baseline: str = ""
    rules: Rules = field(default_factory=Rules)
    record: Path | None = None
    readonly: bool = False
    span: float = 300.0
    all_steps: bool = False
    """Step records of every target, however many there are."""
