"""What a dialect is: a table from canonical signals to the metrics of one engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diagnose.exposition import Exposition


@dataclass(frozen=True, slots=True)
class Pick:
    """The series of `metric` whose labels contain `labels`, summed. For histograms: the base name without `_bucket`."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        inner = ",".join(f'{name}="{value}"' for name, value in self.labels)
        return f"{self.metric}{{{inner}}}" if inner else self.metric


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    prefix: str
    """A page that has metrics with this prefix speaks this dialect."""
    counters: Mapping[str, Pick]
    gauges: Mapping[str, Pick]
    histograms: Mapping[str, Pick]
    failures: str | None = None
    """Counter whose label `kind` names a failure."""
    info: str | None = None
    """Metric whose labels are configuration."""
    free_includes_reclaimable: bool | None = None
    features_absent: frozenset[str] = frozenset()
    """What this engine does not do at all: speculation, disaggregation."""
    debug_steps_path: str | None = None
    """Where step records are served."""
    coverage: Mapping[str, str] = field(default_factory=dict)
    """Per signal: what exactly it counts, when that is not obvious."""

    def speaks(self, page: Exposition) -> bool:
        return any(name.startswith(self.prefix) for name in page.samples)
