"""What a section of the check found, as rows of one table and as JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    value: float | None
    unit: str
    limit: float | None = None
    """The value must not exceed it (errors), or fall below it when `at_least`."""
    at_least: bool = False
    note: str = ""

    @property
    def is_ok(self) -> bool:
        if self.limit is None or self.value is None:
            return True
        # nan fails both ways.
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(slots=True)
class Section:
    name: str
    rows: list[Row] = field(default_factory=list)
    error: str | None = None
    """Why it did not come to its end; the rows before that stay."""
    seconds: float = 0.0

    @property
    def is_ok(self) -> bool:
        return self.error is None and all(row.is_ok for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ok": self.is_ok, "rows": [asdict(row) | {"ok": row.is_ok} for row in self.rows]}


def table(sections: list[Section]) -> str:
    lines = []
    for section in sections:
        lines.append(f"== {section.name} ({section.seconds:.0f} s)")
        for row in section.rows:
            value = "-" if row.value is None else f"{row.value:.4g}"
            verdict = "" if row.limit is None else f"  [{'ok' if row.is_ok else 'FAILED'}, limit {row.limit:g}]"
            note = f"  {row.note}" if row.note else ""
            lines.append(f"   {row.what:<58} {value:>10} {row.unit}{verdict}{note}")
        if section.error is not None:
            lines.append(f"   FAILED: {section.error}")
    return "\n".join(lines)
