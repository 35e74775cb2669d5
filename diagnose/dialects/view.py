"""A metrics page by canonical names: what engines, exporters and versions spell differently is spelled once.

`:` is `_` (exporters differ in which they write), letters are small (AMD's exporter has been seen with both), and a leading
`ray_` is dropped (Ray's agent adds it).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from diagnose.exposition import Exposition, Labels


def canonical(name: str) -> str:
    return name.replace(":", "_").lower().removeprefix("ray_")


@dataclass(slots=True)
class PageView:
    page: Exposition
    names: dict[str, str] = field(init=False)
    """Canonical name -> the page's own."""
    declared: set[str] = field(init=False)
    """Canonical names that have a type: a declared family without samples says zero."""

    def __post_init__(self) -> None:
        self.names = {canonical(name): name for name in self.page.samples}
        self.declared = {canonical(name) for name in self.page.types}

    @property
    def is_sparse(self) -> bool:
        """Ray leaves a counter out until its first event: one that is not there is zero."""
        return any(name.startswith("ray_") for name in self.page.samples)

    def has(self, metric: str) -> bool:
        """Whether the family is on the page, with samples or without."""
        return any(name in self.names or name in self.declared for name in _spellings(metric))

    def own_name(self, metric: str) -> str:
        return next((self.names[name] for name in _spellings(metric) if name in self.names), metric)

    def series(self, metric: str, labels: Iterable[tuple[str, str]] = ()) -> Iterator[tuple[Labels, float]]:
        """Series of a metric, spelled with or without `_total`, that carry the labels; `a|b` is either value."""
        wanted = [[(label, value) for value in values.split("|")] for label, values in labels]
        for name in _spellings(metric):
            if name in self.names:
                for key, value in self.page.samples[self.names[name]].items():
                    if all(any(pair in key for pair in pairs) for pairs in wanted):
                        yield key, value
                return


def _spellings(metric: str) -> tuple[str, str]:
    return metric, metric + "_total"
