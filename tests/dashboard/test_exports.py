"""What is written, and what cannot be: bundles, pictures, and recordings with answers that nobody can read."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dashboard.app import DashboardApp
from dashboard.bundle import write_bundle
from dashboard.feed import Connecting, updates
from dashboard.judge import Job, Judge, Rules
from dashboard.model.spool import Spool
from dashboard.model.update import Update
from dashboard.model.view import Page
from dashboard.options import Options
from dashboard.session import Session
from diagnose.errors import TargetError
from diagnose.exposition import ExpositionParser
from probes.recording import Entry, read_recording
from tests.builders import START_UNIX
from tests.dashboard.test_app import until
from tests.dashboard.views import DATA, URL, engine_entries, recording

RULES = Rules()


JobOf = Callable[..., Job]


@pytest.fixture
def job_of() -> Iterator[JobOf]:
    """Of all that these entries span."""
    spools: list[Spool] = []

    def make(entries: list[Entry], **changes: Any) -> Job:
        spool = Spool()
        spools.append(spool)
        for entry in entries:
            spool.append(entry)
        whole = Job(
            target=0,
            name=URL,
            is_live=False,
            spool=spool,
            start=entries[0].unix,
            end=entries[-1].unix,
            trailing=False,
            with_steps=True,
            baseline=None,
            baseline_file="",
            gone="",
        )
        return replace(whole, **changes)

    yield make
    for spool in spools:
        spool.close()


def test_a_bundle_holds_the_marked_baseline(tmp_path: Path, job_of: JobOf):
    job = job_of(recording("interference.rec"))
    middle = (job.start + job.end) / 2
    written = write_bundle(
        tmp_path / "marked", replace(job, start=middle, baseline=(job.start, middle)), RULES, "<svg/>"
    )
    assert "baseline.rec" in written
    kept = read_recording((tmp_path / "marked" / "baseline.rec").read_bytes()).entries
    assert (kept[0].unix, max(entry.unix for entry in kept) <= middle) == (job.start, True)
    assert json.loads((tmp_path / "marked" / "diagnosis.json").read_text())["windows"]["baseline"] is not None


def test_a_bundle_holds_the_baseline_that_was_given_as_a_file(tmp_path: Path, job_of: JobOf):
    job = job_of(recording("interference.rec"), baseline_file=str(DATA / "quiet.rec"))
    assert "baseline.rec" in write_bundle(tmp_path / "given", job, RULES, "<svg/>")
    kept = read_recording((tmp_path / "given" / "baseline.rec").read_bytes()).entries
    assert [entry.body for entry in kept] == [entry.body for entry in recording("quiet.rec")]


def test_a_bundle_of_a_window_that_holds_too_little_says_why(tmp_path: Path, job_of: JobOf):
    job = job_of(engine_entries(5))
    written = write_bundle(tmp_path / "empty", replace(job, start=job.end + 1, end=job.end + 2), RULES, "<svg/>")
    assert set(written) == {"screen.svg", "incident.rec", "no-diagnosis.txt"}
    assert (tmp_path / "empty" / "no-diagnosis.txt").read_text().strip()


def test_a_window_that_holds_too_little_is_judged_in_words(job_of: JobOf):
    job = job_of(engine_entries(5))
    judge = Judge(RULES, lambda _: None, ExpositionParser())
    judged = judge._answer(replace(job, start=job.end + 1, end=job.end + 2))
    assert judged.summary is None and judged.problem
    missing = judge._answer(replace(job, baseline_file="gone.rec"))
    assert missing.summary is None and "gone.rec" in missing.problem


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("s", r"stallscope-[-\d]+\.svg: cannot be written: .+"),
        ("e", r"/\S+/taken/stallscope-incident-\S+: not exported: .+"),
    ],
)
def test_what_cannot_be_written_is_said_and_the_watch_goes_on(tmp_path: Path, key: str, words: str):
    taken = tmp_path / "taken"
    taken.write_text("a file where the folder should be")
    told: list[str] = []

    async def run() -> None:
        session = Session([str(DATA / "interference.rec")], Options())
        app = DashboardApp(session, bundle_dir=taken)
        app.notify = lambda message, **_: told.append(message)  # type: ignore[method-assign]
        async with app.run_test(size=(100, 30)) as pilot:
            await until(app, pilot, lambda: session.view.target.summary is not None)
            await pilot.press(key)
            await until(app, pilot, lambda: bool(told))
            await pilot.press("2")
            assert session.view.page is Page.STEPS

    asyncio.run(run())
    assert re.fullmatch(words, told[0])
    assert taken.read_text() == "a file where the folder should be"


def test_before_anything_is_read_keys_say_that_there_is_nothing():
    told: list[str] = []

    async def run() -> None:
        session = Session(["http://127.0.0.1:9"], Options())
        app = DashboardApp(session)
        app.notify = lambda message, **_: told.append(message)  # type: ignore[method-assign]
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.press("d", "e")
            await pilot.pause()

    asyncio.run(run())
    assert told == ["there is no window to diagnose yet", "there is no window to export yet"]


def test_an_answer_of_a_recording_that_is_no_page_is_a_failed_scrape():
    good = engine_entries(4)
    page = next(place for place, entry in enumerate(good) if entry.kind == "exposition" and entry.unix > START_UNIX + 1)
    bad = replace(good[page], body="<html>")
    found = list(updates("incident.rec", [replace(good[0], body="{}"), *good[:page], bad, *good[page + 1 :]]))
    assert isinstance(found[0], Connecting), "what came before the first page says nothing of its kind"
    problems = [update.problem for update in found if isinstance(update, Update) and update.problem]
    assert len(problems) == 1 and problems[0].startswith("not a metrics page: line 1")


def test_step_records_of_a_recording_that_cannot_be_read_are_named():
    entries = [entry if entry.kind != "steps" else replace(entry, body="{}") for entry in engine_entries(3)]
    with pytest.raises(TargetError, match=r"^incident\.rec: step records: "):
        list(updates("incident.rec", entries))
