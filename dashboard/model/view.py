"""What is looked at: which target, which page, which moment, which row. The panels read it; keys change it."""

from dataclasses import dataclass, field
from enum import StrEnum

from dashboard.model.target import Target
from probes.records import StepRecord

SPANS = (60.0, 300.0, 900.0, 3600.0)
"""Seconds that the plots span."""
SHORTEST_SPAN = 10.0
"""Of a recording, whose plots span all of it."""
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class Page(StrEnum):
    OVERVIEW = "overview"
    STEPS = "steps"
    MEMORY = "memory"
    HOST = "host"
    REQUESTS = "requests"
    PROTOCOL = "protocol"
    FLEET = "fleet"
    TECHNIQUES = "techniques"


@dataclass(slots=True)
class Playhead:
    """Where in time the view is. `at` None follows the newest sample; otherwise it rests there, or moves on at `speed`."""

    at: float | None = None
    playing: bool = False
    speed: float = 1.0

    @property
    def follows(self) -> bool:
        return self.at is None

    def toggle(self, end: float) -> None:
        """Pause and go on. Going on from a pause plays from there; it joins the newest sample where it reaches it."""
        if self.at is None:
            self.at, self.playing = end, False
        else:
            self.playing = not self.playing

    def seek(self, seconds: float, first: float, end: float) -> None:
        """From where it is, within [first, end]."""
        self.at = max(first, min(end, (end if self.at is None else self.at) + seconds))

    def follow(self) -> None:
        self.at, self.playing = None, False

    def advance(self, seconds: float, end: float, *, stops: bool) -> None:
        """`seconds` of wall time went by; `stops` at the end of a recording, where there is nothing to follow."""
        if self.at is None or not self.playing:
            return
        self.at += seconds * self.speed
        if self.at >= end:
            if stops:
                self.at, self.playing = end, False
            else:
                self.follow()

    def faster(self, steps: int) -> None:
        place = SPEEDS.index(self.speed) + steps
        self.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, place))]


@dataclass(slots=True)
class Table:
    """A list with a cursor, an order and a filter."""

    selected: int = 0
    sort: int = 0
    """Index of the column."""
    descending: bool = True
    top: int = 0
    """First row on screen."""

    def move(self, by: int, count: int) -> None:
        self.selected = max(0, min(count - 1, self.selected + by)) if count else 0

    def sort_by(self, column: int) -> None:
        self.descending = not self.descending if column == self.sort else True
        self.sort = column

    def scroll(self, rows: int, count: int) -> range:
        """Rows to show so that the selected one is among them."""
        self.selected = max(0, min(self.selected, count - 1))
        if self.selected < self.top:
            self.top = self.selected
        if self.selected >= self.top + rows:
            self.top = self.selected - rows + 1
        self.top = max(0, min(self.top, count - rows))
        return range(self.top, min(count, self.top + rows))


@dataclass(slots=True)
class View:
    targets: list[Target]
    now: float
    """Wall time of this frame."""
    current: int = 0
    page: Page = Page.OVERVIEW
    playhead: Playhead = field(default_factory=Playhead)
    span: float = SPANS[0]
    longest_span: float = 300.0
    """How far the span grows by itself while a session is young."""
    zoomed: bool = False
    """A person chose the span: it does not grow any more."""
    readonly: bool = False
    search: str = ""
    tables: dict[Page, Table] = field(default_factory=lambda: {page: Table() for page in Page})
    step_id: int | None = None
    """Selected on the Steps page; None: the newest."""
    old_steps: tuple[StepRecord, ...] = ()
    """Of a time that the recent ones do not reach: read back from disk."""

    @property
    def target(self) -> Target:
        return self.targets[self.current]

    @property
    def at(self) -> float:
        """The moment that is shown."""
        return self.target.end(self.now) if self.playhead.at is None else self.playhead.at

    @property
    def start(self) -> float:
        return self.at - self.span

    @property
    def table(self) -> Table:
        return self.tables[self.page]

    def phase_moment(self) -> float | None:
        """For `Target.phase`: None while the newest is shown."""
        return self.playhead.at

    def steps(self) -> list[StepRecord]:
        """Those that ended at or before the moment that is shown, oldest first."""
        target, recent = self.target, list(self.target.steps)
        if self.playhead.at is None:
            return recent
        if self.old_steps:
            recent = list(self.old_steps)
        return [r for r in recent if (unix := target.unix_of(r.end_ns)) is not None and unix <= self.at]
