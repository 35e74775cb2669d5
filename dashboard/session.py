"""The dashboard without a screen: takes in what feeds and judge post, keeps the view, and decides when to diagnose."""

import queue
import time
from collections.abc import Sequence
from math import inf

from dashboard.feed import Body, Connecting, Ended, FileFeed, Keeper, LiveFeed, WriteProblem
from dashboard.judge import Job, Judge, Judged
from dashboard.model.history import History
from dashboard.model.requests import Requests
from dashboard.model.spool import Spool
from dashboard.model.target import Mark, Phase, Refusal, Target
from dashboard.model.update import Update
from dashboard.model.view import SHORTEST_SPAN, SPANS, Page, View
from dashboard.options import Options
from dashboard.panels import fleet, overview, protocol, requests, steps, techniques
from dashboard.panels.diagnosis import next_command
from diagnose.commands.params import is_url
from diagnose.exposition import ExpositionParser
from probes.recording import RecordingWriter
from probes.wire import decode_steps

TRAILING_SECONDS = 20.0
"""Length of the window that is diagnosed when none is marked."""
_MIN_TRAILING_SECONDS = 2.0
_MIN_PAUSE_SECONDS = 5.0
_PAUSE_PER_COST = 200.0
"""A diagnosis that takes 0.05 s of CPU time is made again after 10 s: diagnoses never cost more than half a percent of a core."""
_FLEET_PAUSE_PER_COST = 12.0
"""Of the targets that are not shown one is judged after the other, in a thirteenth of a core."""
SMALL_FLEET = 8
"""Of more targets than these, step records are read of the one that is shown, and less is kept on disk of each."""
_SETTLE_SECONDS = 0.4
"""A playhead that moves is not diagnosed before it rests this long."""
_ALL_POINTS = 100_000
_MIN_POINTS = 900
_SHARED_POINTS = 30_000
_CLOSE_SECONDS = 1.0
_STEPS_SECONDS = 10.0
"""How much of the step timeline is read back around a moment in the past."""
_DRAIN_SECONDS = 0.05
"""At most this long per tick: a recording that is being read must not hold up the keys."""


class Session:
    """`start`, then `tick` now and then; `stop` ends every thread. Not thread-safe: threads only post to its inbox."""

    def __init__(self, sources: Sequence[str], options: Options) -> None:
        self._inbox: queue.SimpleQueue[tuple[int, Body] | Judged] = queue.SimpleQueue()
        self.options = options
        now = time.time()
        points = max(_MIN_POINTS, min(2 * 3600, _SHARED_POINTS // len(sources)))
        self._spools = [
            Spool() if len(sources) <= SMALL_FLEET else Spool(max_bytes=16 << 20, segment_bytes=2 << 20)
            for _ in sources
        ]
        self._feeds: list[LiveFeed | FileFeed] = []
        self._all_steps = options.all_steps or len(sources) <= SMALL_FLEET
        self._steps_since: dict[int, float] = {}
        """Of the target that is shown: since when its step records are read."""
        parser = ExpositionParser()
        targets = []
        for number, source in enumerate(sources):
            recording = None
            if options.record is not None and is_url(source):
                recording = RecordingWriter(options.record, source, now)
            keeper = Keeper(
                number, lambda number, body: self._inbox.put((number, body)), self._spools[number], recording
            )
            feed = (
                LiveFeed(number, source, options.interval, keeper, parser)
                if is_url(source)
                else FileFeed(number, source, keeper)
            )
            self._feeds.append(feed)
            history = History(points if is_url(source) else _ALL_POINTS)
            target = Target(source, options.interval, history, is_file=not is_url(source))
            target.baseline_file = options.baseline
            targets.append(target)
        self.view = View(targets, now, longest_span=options.span, readonly=options.readonly)
        if len(targets) > 1:
            self.view.page = Page.FLEET
        self._judge = Judge(options.rules, self._inbox.put, parser)
        self._due = [0.0] * len(targets)
        self._judged_gone = [False] * len(targets)
        self._judged_at: list[float | None] = [None] * len(targets)
        self._others_due = 0.0
        self._moved = 0.0
        self._steps_at = 0.0
        self._tick = now
        self.loaded = [not target.is_file for target in targets]
        self.notices: list[str] = []
        """For the person: taken out by whoever shows them."""

    def start(self) -> None:
        for feed in self._feeds:
            feed.start()
        self._judge.start()

    def stop(self) -> None:
        for feed in self._feeds:
            feed.stop()
        self._judge.stop()

    def close(self) -> None:
        """Ends the threads and closes what they write to. A request that hangs is not waited for: its thread ends with us."""
        self.stop()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in (*self._feeds, self._judge):
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        for feed, spool in zip(self._feeds, self._spools, strict=True):
            spool.close()
            if not feed.is_alive():
                feed.keeper.close()

    def tick(self, now: float | None = None) -> bool:
        """Takes in what arrived, moves the playhead, asks for diagnoses that are due. Returns whether there is news to draw."""
        view = self.view
        now = time.time() if now is None else now
        elapsed, self._tick, view.now = max(0.0, now - self._tick), now, now
        arrived = self._drain()
        target = view.target
        view.playhead.advance(elapsed, target.end(now), stops=target.is_file)
        shown = view.current if view.page is Page.REQUESTS else None
        for number, feed in enumerate(self._feeds):
            if isinstance(feed, LiveFeed):
                feed.wants_requests = number == shown
                feed.wants_steps = self._all_steps or number == view.current
        if view.current not in self._steps_since:
            self._steps_since = {view.current: now}
        self._fit_span(target)
        self._load_old_steps()
        self._ask_for_due(now)
        return arrived or view.playhead.playing

    def _load_old_steps(self) -> None:
        """Step records of a time that the recent ones do not reach are read back from disk."""
        view, target = self.view, self.view.target
        if view.playhead.follows or view.page not in (Page.STEPS, Page.HOST):
            view.old_steps = ()
            return
        oldest = target.unix_of(target.steps[0].start_ns) if target.steps else None
        if oldest is not None and oldest <= view.at - _STEPS_SECONDS:
            view.old_steps = ()
        elif view.at != self._steps_at:
            self._steps_at = view.at
            entries = self._spools[view.current].between(view.at - _STEPS_SECONDS, view.at + 2 * target.interval)
            view.old_steps = tuple(
                record for entry in entries if entry.kind == "steps" for record in decode_steps(entry.body)[1]
            )

    def _drain(self) -> bool:
        """Whether anything had arrived."""
        deadline, arrived = time.monotonic() + _DRAIN_SECONDS, False
        while time.monotonic() < deadline:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                break
            arrived = True
            if isinstance(message, Judged):
                self._take_judged(message)
            else:
                self._take(*message)
        return arrived

    def _take(self, number: int, body: Body) -> None:
        target = self.view.targets[number]
        match body:
            case Update():
                target.apply(body)
            case Refusal():
                target.refusal = body
            case Requests():
                target.requests = body
                target.request_times.note(body)
            case WriteProblem():
                target.write_problem = body.text
            case Connecting():
                target.first_try = target.first_try or body.unix
                target.dialect = body.dialect or target.dialect
                target.address = body.address or target.address
            case Ended():
                self.loaded[number] = True
                if body.problem:
                    target.refusal = Refusal(self.view.now, body.problem, answered=True)

    def _fit_span(self, target: Target) -> None:
        """Plots show all there is: exactly of a recording, of a live target as long as one wants to look back."""
        first, last, view = target.history.first, target.history.last, self.view
        if target is not view.target or first is None or last is None or view.zoomed:
            return
        if target.is_file:
            view.span = max(SHORTEST_SPAN, last - first)
        else:
            view.span = next(
                (span for span in SPANS if span >= min(view.longest_span, last - first)), view.longest_span
            )

    def _take_judged(self, judged: Judged) -> None:
        number = judged.job.target
        target = self.view.targets[number]
        target.diagnosing = False
        self._judged_gone[number] = bool(judged.job.gone)
        self._due[number] = time.monotonic() + max(_MIN_PAUSE_SECONDS, _PAUSE_PER_COST * judged.cpu_seconds)
        self._others_due = time.monotonic() + _FLEET_PAUSE_PER_COST * judged.cpu_seconds
        if judged.summary is not None:
            target.summary = judged.summary
        elif not judged.job.trailing:
            self.notices.append(judged.problem)

    def _ask_for_due(self, now: float) -> None:
        """The target that is shown first; in a fleet the others one at a time, the longest unjudged first."""
        view = self.view
        number = view.current
        if view.playhead.follows or view.playhead.playing:
            if self._is_due(number):
                self.diagnose(number)
        elif view.at != self._judged_at[number] and time.monotonic() - self._moved > _SETTLE_SECONDS:
            self.diagnose(number)
        if (
            len(view.targets) > 1
            and time.monotonic() >= self._others_due
            and not any(target.diagnosing for target in view.targets)
        ):
            other = min(range(len(view.targets)), key=self._due.__getitem__)
            if other != number and self._is_due(other):
                self.diagnose(other)

    def _is_due(self, number: int) -> bool:
        target = self.view.targets[number]
        if target.is_file and target.summary is not None and self.view.playhead.follows:
            return False  # nothing new comes from a file: it is judged whole, once
        marked = target.incident is not None and target.incident.end is not None
        alive = target.phase(self.view.now) in (Phase.LIVE, Phase.IDLE, Phase.LOST, Phase.RECORDING)
        # That it has just gone, or come back, waits for no pause.
        turned = target.is_gone != self._judged_gone[number]
        return alive and not marked and not target.diagnosing and (turned or time.monotonic() >= self._due[number])

    def diagnose(self, number: int) -> bool:
        """Asks for a diagnosis of the marked window, or of the latest seconds; False when there is no window yet."""
        job = self.job(number)
        if job is None:
            return False
        target = self.view.targets[number]
        target.diagnosing = True
        self._judged_at[number] = self.view.at if number == self.view.current else None
        self._judge.ask(job)
        return True

    def job(self, number: int) -> Job | None:
        """What to diagnose on a target now."""
        view, target = self.view, self.view.targets[number]
        first = target.history.first
        if first is None or not self.loaded[number]:
            return None
        mark = target.incident
        marked = mark is not None and mark.end is not None
        follows = number != view.current or view.playhead.follows
        end = target.end(view.now) if follows else view.at
        whole = target.is_file and follows
        # Of a target that is gone the last answers are judged, and that none followed.
        gone = follows and target.is_gone
        latest = (target.history.last_up(end) or end) if gone else end
        start = first if whole else max(first, latest - TRAILING_SECONDS)
        since = start if self._all_steps or target.is_file else self._steps_since.get(number, inf)
        with_steps = end - since >= max(_MIN_TRAILING_SECONDS, 3 * target.interval) or since == start
        start = max(start, since) if with_steps else start
        if mark is not None and mark.end is not None:
            start, end = mark.start, mark.end
        if end - start < _MIN_TRAILING_SECONDS and not marked:
            return None
        base = target.baseline
        return Job(
            target=number,
            name=target.address,
            is_live=not target.is_file,
            spool=self._spools[number],
            start=start,
            end=end,
            trailing=not marked and not whole,
            with_steps=marked or with_steps,
            baseline=(base.start, base.end) if base is not None and base.end is not None else None,
            baseline_file=target.baseline_file,
            gone=f"the target answered and is gone now: {target.problem}" if gone and not marked else "",
        )

    # What keys do.

    def seek(self, seconds: float) -> None:
        target = self.view.target
        if target.history.first is not None:
            self.view.playhead.seek(seconds, target.history.first, target.end(self.view.now))
            self._moved = time.monotonic()

    def step(self, forward: bool) -> None:
        """To the next sample, or the one before."""
        before, after = self.view.target.history.times_near(self.view.at)
        to = after if forward else before
        if to is not None:
            self.seek(to - self.view.at)

    def seek_to(self, unix: float) -> None:
        self.seek(unix - self.view.at)

    def mark(self, which: str) -> str:
        """First press: the window begins at the moment that is shown; second: it ends there. Returns what happened."""
        target, at = self.view.target, self.view.at
        mark = target.incident if which == "incident" else target.baseline
        if target.history.first is None:
            return "there is nothing to mark yet"
        if mark is None or mark.end is not None:
            new, text = Mark(at), f"{which} begins here; move on and press the key again at its end"
        else:
            new, text = mark.closed_at(at), f"{which} marked"
        if which == "incident":
            target.incident = new
        else:
            target.baseline = new
        if new.end is not None:
            self.diagnose(self.view.current)
        return text

    def clear_marks(self) -> None:
        self.view.target.incident = self.view.target.baseline = self.view.target.summary = None
        self._due[self.view.current] = 0.0

    def open(self, number: int) -> None:
        """Another target; the view follows its newest sample."""
        self.view.current = number
        self.view.playhead.follow()
        self.view.step_id, self.view.old_steps = None, ()

    def rows(self) -> int:
        """How many rows the page's table has."""
        view = self.view
        counted = {
            Page.FLEET: lambda: len(fleet.rows(view)),
            Page.REQUESTS: lambda: len(requests.rows(view)),
            Page.PROTOCOL: lambda: len(protocol.items(view)),
            Page.TECHNIQUES: lambda: len(techniques.TECHNIQUES),
        }
        return counted[view.page]() if view.page in counted else 0

    def move(self, by: int) -> None:
        """The cursor of a table, or the selected step."""
        view = self.view
        if view.page is Page.STEPS:
            self._move_step(by)
        else:
            view.table.move(by, self.rows())

    def _move_step(self, by: int) -> None:
        ids = [record.step_id for record in self.view.steps()]
        if not ids:
            return
        at = ids.index(self.view.step_id) if self.view.step_id in ids else len(ids) - 1
        self.view.step_id = ids[max(0, min(len(ids) - 1, at + by))]

    def select(self, row: int) -> None:
        self.view.table.move(row - self.view.table.selected, self.rows())

    def enter(self) -> None:
        """Opens the selected target."""
        if self.view.page is Page.FLEET:
            shown = fleet.rows(self.view)
            if shown:
                chosen = shown[min(self.view.table.selected, len(shown) - 1)]
                self.open(next(n for n, target in enumerate(self.view.targets) if target is chosen))
                self.view.page = Page.OVERVIEW

    def sort_by(self, column: int) -> None:
        self.view.table.sort_by(column)

    def columns(self) -> int:
        """How many columns the page's table can be ordered by."""
        view = self.view
        if view.page is Page.FLEET:
            return len(fleet.columns(view))
        return len(requests.columns(view)) if view.page is Page.REQUESTS else 0

    def point(self, x: int, y: int, width: int) -> bool:
        """A click on a page: a step of the timeline, or a moment of an overview plot. Returns whether it meant anything."""
        view = self.view
        if view.page is Page.STEPS:
            step_id = steps.step_at(view, x, width)
            view.step_id = step_id if step_id is not None else view.step_id
            return step_id is not None
        if view.page is Page.OVERVIEW and view.target.history.first is not None:
            unix = overview.moment_at(view, x, y, width)
            if unix is not None:
                self.seek_to(unix)
            return unix is not None
        return False

    def command(self) -> str:
        """What the copy key copies: the selected row's command, or the next one."""
        return protocol.selected_command(self.view) if self.view.page is Page.PROTOCOL else next_command(self.view)
