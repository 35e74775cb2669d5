"""Recordings: append-only, and a torn tail costs only itself."""

from pathlib import Path

import pytest

from probes.recording import Entry, RecordingWriter, read_recording
from probes.wire import WireError

ENTRIES = [
    Entry(1.0, "exposition", "# HELP a b\na 1\n"),
    Entry(2.0, "steps", '{"stallscope_steps":1}\n'),
    Entry(3.5, "event", "connection refused: ü", "unreachable"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "recording.jsonl"
    with RecordingWriter(path, "http://host:8000", 0.5) as writer:
        for entry in ENTRIES:
            writer.write(entry)
    return path


def test_round_trip(path: Path):
    recording = read_recording(path.read_text())
    assert (recording.target, recording.started_unix, recording.torn) == ("http://host:8000", 0.5, 0)
    assert recording.entries == ENTRIES


def test_what_was_written_is_readable_at_once(tmp_path: Path):
    path = tmp_path / "live.jsonl"
    with RecordingWriter(path, "t", 0.0) as writer:
        writer.write(ENTRIES[0])
        assert read_recording(path.read_text()).entries == ENTRIES[:1]


def test_a_torn_tail_is_left_out_at_every_byte(path: Path):
    raw = path.read_bytes()
    last_line = raw.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last_line, len(raw)):
        text = raw[:end].decode("utf-8", errors="replace")
        recording = read_recording(text)
        assert recording.entries == ENTRIES[:2]
        assert recording.torn >= end - last_line


def test_damage_in_the_middle_is_an_error_with_its_line(path: Path):
    lines = path.read_text().splitlines()
    lines[2] = lines[2][:10]
    with pytest.raises(WireError, match="line 3"):
        read_recording("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"stallscope_recording":1,"target":"t","started_unix":0}',
        '{"stallscope_recording":2,"target":"t","started_unix":0}\n',
        '{"stallscope_recording":1}\n',
        '{"stallscope_recording":1,"target":"t","started_unix":0}\n{"t":1}\n',
        "[]\n",
    ],
)
def test_what_is_no_recording_is_refused(text: str):
    with pytest.raises(WireError):
        read_recording(text)
