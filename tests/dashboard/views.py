"""Views of known content: recordings and prepared engines, taken in as the session would, at a fixed time."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dashboard.feed import Connecting, updates
from dashboard.judge import Job, Rules, make_diagnosis
from dashboard.model.history import History
from dashboard.model.spool import Spool
from dashboard.model.target import Mark, Target
from dashboard.model.update import Update
from dashboard.model.verdicts import summarise
from dashboard.model.view import SHORTEST_SPAN, SPANS, View
from probes.recording import Entry, read_recording
from probes.records import BlockCensus
from tests.builders import START_UNIX, Engine, make_steps, with_prefill

DATA = Path(__file__).resolve().parent.parent / "data"
URL = "http://127.0.0.1:8000"


def recording(name: str) -> list[Entry]:
    return read_recording((DATA / name).read_bytes()).entries


def engine_entries(scrapes: int = 30, *, idle_from: int | None = None, prefill: bool = True) -> list[Entry]:
    """What a live engine of 20 steps a second would have answered; from scrape `idle_from` on it does nothing."""
    engine, entries, clock = Engine(), [], 1_000_000_000
    for number in range(scrapes):
        at = START_UNIX + number
        idle = idle_from is not None and number >= idle_from
        records = []
        if number and not idle:
            plan = with_prefill(5, 512) if prefill else with_prefill(10_000, 1)
            records = make_steps(20, plan, first_id=(number - 1) * 20, start_ns=clock, seed=number)
            clock = records[-1].end_ns
            engine.run(records)
            engine.requests(1, 0.3, 0.02)
        state: dict[str, Any] = {"num_running": 0, "census": BlockCensus(0, 60, 40)} if idle else {"num_running": 8}
        entries.append(Entry(at, "exposition", engine.page(**state)))
        if number:
            entries.append(Entry(at, "steps", engine.steps(records)))
    return entries


def make_view(
    entries: Sequence[Entry],
    *,
    name: str = URL,
    is_file: bool = False,
    failures: Iterable[tuple[float, str]] = (),
    later: float = 0.4,
    judged_seconds: float = 1e9,
    baseline: tuple[float, float] | None = None,
    incident: tuple[float, float] | None = None,
) -> View:
    """A view of one target that answered with `entries`, then failed at (seconds after, why); `later` seconds afterwards.

    The diagnosis is of the `judged_seconds` before the last answer, or of the windows that are marked: seconds since the first.
    """
    target = Target(name, 1.0, History(10_000), is_file=is_file, address=URL)
    spool = Spool()
    for entry in entries:
        spool.append(entry)
    for update in updates(name, entries):
        if isinstance(update, Connecting):
            target.dialect = update.dialect
        else:
            target.apply(update)
    last = target.history.last
    assert last is not None
    for after, why in failures:
        target.apply(failed(last + after, why))
    end = target.history.last
    assert end is not None and target.history.first is not None
    view = View([target], end + later)
    length = end - target.history.first
    view.span = (
        max(SHORTEST_SPAN, length) if is_file else next(span for span in SPANS if span >= length)
    )  # as the session does
    first = target.history.first
    job = Job(0, URL, not is_file, spool, max(first, last - judged_seconds), last, trailing=False)
    if baseline is not None and incident is not None:
        target.baseline = Mark(first + baseline[0], first + baseline[1])
        target.incident = Mark(first + incident[0], first + incident[1])
        marked = (first + baseline[0], first + baseline[1])
        job = replace(job, start=first + incident[0], end=first + incident[1], baseline=marked)
    target.summary = summarise(make_diagnosis(job, Rules()), last, job.start, job.end, trailing=not is_file)
    spool.close()
    return view


def failed(unix: float, why: str) -> Update:
    from dashboard.model.history import Point

    return Update(Point(unix, {"up": 0.0}), problem=why)
