"""The engine's own recording: complete, lossy by count, and never in the engine's way."""

import os
import threading
from pathlib import Path

import pytest

from diagnose.observation import observe
from probes.exports import ExportThread, close_all
from probes.recorder import RingRecorder
from probes.recording import RecordingWriter, read_recording
from probes.recording_export import RecordingExport, open_recording
from tests.builders import make_exposition, make_steps


def make_export(path: Path, recorder: RingRecorder, engine_id: str = "engine-1") -> RecordingExport:
    return RecordingExport(open_recording(path, "tiny"), recorder, engine_id, lambda: make_exposition(recorder))


def test_every_step_is_recorded_once(tmp_path: Path):
    recorder, steps = RingRecorder(), make_steps(300)
    export = make_export(tmp_path / "a", recorder)
    for part in (steps[:100], [], steps[100:]):
        for record in part:
            recorder.on_step(record)
        export.export()
    export.close()
    recording = read_recording((tmp_path / "a").read_bytes())
    assert [entry.kind for entry in recording.entries] == ["exposition", "steps", "exposition", "exposition", "steps"]
    observation = observe(recording.target, recording.entries)
    assert observation.steps == steps
    assert (observation.steps_lost, +export.counters.lost) == (0, {})
    assert export.counters.items == len(recording.entries)


def test_what_the_ring_overwrote_is_counted(tmp_path: Path):
    recorder = RingRecorder(capacity=10)
    export = make_export(tmp_path / "a", recorder)
    for record in make_steps(25):
        recorder.on_step(record)
    export.export()
    export.close()
    assert +export.counters.lost == {"ring": 15}
    recording = read_recording((tmp_path / "a").read_bytes())
    assert observe("t", recording.entries).steps_lost == 15


def test_a_restarted_engine_goes_on_in_the_same_file(tmp_path: Path):
    for number in range(2):
        recorder = RingRecorder()
        export = make_export(tmp_path / "a", recorder, f"engine-{number}")
        recorder.on_step(make_steps(1)[0])
        export.export()
        export.close()
    recording = read_recording((tmp_path / "a").read_bytes())
    assert len(recording.entries) == 4
    assert "the engine restarted" in observe("t", recording.entries).warnings[0]


def test_a_full_disk_costs_its_entries_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A real one: /dev/full refuses every write. The file descriptor is put back as a cleared disk would be."""
    recorder = RingRecorder()
    export = make_export(tmp_path / "a", recorder)
    writer: RecordingWriter = export._writer
    steps = make_steps(4)
    full, good = os.open("/dev/full", os.O_WRONLY), os.dup(writer._fd)
    for number, record in enumerate(steps):
        os.dup2(full if number in (1, 2) else good, writer._fd)
        recorder.on_step(record)
        if number in (1, 2):
            with pytest.raises(OSError, match="No space left"):
                export.export()
        else:
            export.export()
    export.close()
    os.close(full)
    os.close(good)
    assert +export.counters.lost == {"disk": 4}
    recording = read_recording((tmp_path / "a").read_bytes())
    assert observe("t", recording.entries).steps == [steps[0], steps[3]]
    assert (recording.torn, recording.damaged) == (0, 0)


def test_a_disk_that_hangs_holds_up_its_own_thread_only(tmp_path: Path):
    """A pipe that nobody reads blocks the write for good; the engine's calls into the recorder go on."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    recorder, hangs = RingRecorder(capacity=64), threading.Event()

    def large_page() -> str:
        hangs.set()
        return "a 1\n" + os.urandom(1 << 18).hex()  # more than a pipe holds

    export = RecordingExport(open_recording(pipe, "tiny"), recorder, "engine-1", large_page)
    thread = ExportThread(export, 0.001)
    thread.start()
    assert hangs.wait(10)
    steps = make_steps(500)
    for record in steps:
        recorder.on_step(record)
    assert recorder.next_id == 500
    assert recorder.steps_since(436).records == steps[436:]
    assert export.counters.items == 0
    close_all([thread], 0.05)
    os.close(reader)  # the write ends with EPIPE
    assert thread.join(10)
    assert export.counters.lost["disk"] > 0
    assert export.counters.failures > 0


def test_an_engine_starts_while_its_disk_is_full(tmp_path: Path):
    """The first write fails, not the opening; each loss is counted from the start."""
    recorder = RingRecorder()
    export = make_export(Path("/dev/full"), recorder)
    assert export.counters.lost == {"ring": 0, "disk": 0}
    with pytest.raises(OSError, match="No space left"):
        export.export()
    assert +export.counters.lost == {"disk": 1}
