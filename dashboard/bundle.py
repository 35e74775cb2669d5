"""Exports: what somebody else needs to see what was seen. A folder with the picture, the recordings and the diagnosis."""

import re
import time
from dataclasses import replace
from pathlib import Path

from dashboard.feed import read_evidence
from dashboard.judge import Job, Rules, make_diagnosis
from diagnose.errors import DiagnoseError
from probes.recording import Entry, RecordingWriter

FORMS = {"json": "diagnosis.json", "markdown": "diagnosis.md", "html": "diagnosis.html"}


_FONT_FACE = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)


def self_contained(picture: str) -> str:
    """The screenshot without the web fonts that Rich links: a picture of an incident must not call anybody when it is opened."""
    return _FONT_FACE.sub("", picture).replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")


def bundle_path(folder: Path, unix: float) -> Path:
    """A name that does not exist yet."""
    stem = f"stallscope-incident-{time.strftime('%Y%m%d-%H%M%S', time.localtime(unix))}"
    names = (stem if number == 0 else f"{stem}-{number}" for number in range(1000))
    return next(folder / name for name in names if not (folder / name).exists())


def write_bundle(path: Path, job: Job, rules: Rules, picture: str) -> list[str]:
    """Writes the folder and returns the names in it.

    The diagnosis is made anew from the very entries that are written, so that `stallscope diagnose` on the recordings says the
    same. Raises OSError when it cannot be written; a window that holds too little is a bundle without a diagnosis, and a file
    that says why.
    """
    from diagnose.commands.output import render

    path.mkdir(parents=True)
    (path / "screen.svg").write_text(picture, encoding="utf-8")
    written = ["screen.svg", _write_recording(path / "incident.rec", job, job.entries())]
    baseline: list[Entry] | None = None
    if job.baseline is not None:
        written.append(_write_recording(path / "baseline.rec", job, job.spool.between(*job.baseline)))
    elif job.baseline_file:
        baseline = read_evidence(job.baseline_file).entries
        written.append(_write_recording(path / "baseline.rec", job, baseline))
    try:
        diagnosis = make_diagnosis(replace(job, trailing=False), rules, baseline)
    except DiagnoseError as error:
        (path / "no-diagnosis.txt").write_text(f"{error}\n", encoding="utf-8")
        return [*written, "no-diagnosis.txt"]
    for form, name in FORMS.items():
        (path / name).write_text(render(diagnosis, form) + "\n", encoding="utf-8")
    return [*written, *FORMS.values()]


def _write_recording(path: Path, job: Job, entries: list[Entry]) -> str:
    with RecordingWriter(path, job.name, entries[0].unix if entries else job.start) as writer:
        for entry in entries:
            writer.write(entry)
    return path.name
