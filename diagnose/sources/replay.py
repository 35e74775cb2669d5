"""A recording as a source: its entries when their time comes, or the part of them between two times."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from diagnose.errors import SourceError
from diagnose.observation import Cut
from diagnose.sources.clock import Clock
from probes.recording import Entry


@dataclass(frozen=True, slots=True)
class Replay:
    """Hands entries to `on_entry`, as a live watch does, at `speed` times the pace of the recording.

    Times are seconds since the first entry. Where the recorded clock was set back, entries follow at once.
    """

    entries: Sequence[Entry]
    clock: Clock
    on_entry: Callable[[Entry], None]
    speed: float = 1.0

    @property
    def length_seconds(self) -> float:
        return max((at for at, _ in self._timed()), default=0.0)

    def run(self, since: float = 0.0, until: float = inf) -> None:
        """What lies before `since` is handed over at once: the state is then that of the moment."""
        began = self.clock.monotonic()
        for at, entry in self._timed():
            if at > until:
                return
            wait = began + (at - since) / self.speed - self.clock.monotonic()
            if wait > 0:
                self.clock.sleep(wait)
            self.on_entry(entry)

    def _timed(self) -> Iterator[tuple[float, Entry]]:
        for entry in self.entries:
            yield max(0.0, entry.unix - self.entries[0].unix), entry


def part_of(name: str, entries: Sequence[Entry], cut: Cut) -> list[Entry]:
    """The entries of a part, whose relative moments count from the first page.

    Step records that were read with the window's first page are of the time before it, and are left out. Raises
    SourceError when there are not two pages in between, or entries that do not know their time.
    """
    pages = [entry.unix for entry in entries if entry.kind == "exposition"]
    if not pages or min(pages) < 0:
        raise SourceError(f"{name}: has no times that --since and --until could choose from")
    since, until = (moment - pages[0] for moment in cut.span(pages[0]))
    kept = [entry for entry in entries if since <= entry.unix - pages[0] <= until]
    found = [place for place, entry in enumerate(kept) if entry.kind == "exposition"]
    if len(found) < 2:
        length = pages[-1] - pages[0]
        raise SourceError(
            f"{name}: holds {len(found)} scrapes between {max(since, 0.0):g} s and {min(until, length):g} s, and two are "
            f"needed; it is {length:.1f} s long"
        )
    return [entry for place, entry in enumerate(kept) if entry.kind != "steps" or place > found[1]]
