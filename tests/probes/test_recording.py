"""Recordings: append-only, and whatever is torn or damaged costs only itself."""

import json
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.recording import ENTRIES_PER_SEGMENT, MARK, Entry, RecordingReader, RecordingWriter, read_recording
from probes.wire import WireError
from tests.builders import Engine, make_steps

ENTRIES = [
    Entry(1.0, "exposition", "# HELP a b\na 1\n"),
    Entry(2.0, "steps", '{"stallscope_steps":1}\n'),
    Entry(3.0, "exposition", "# HELP a b\na 2\nb 1\n"),
    Entry(3.5, "event", "connection refused: ü", "unreachable"),
]


def record(path: Path, entries: list[Entry], existing: str = "refuse", target: str = "http://host:8000") -> bytes:
    with RecordingWriter(path, target, 0.5, existing=existing) as writer:  # type: ignore[arg-type]
        for entry in entries:
            writer.write(entry)
    return path.read_bytes()


def frame(kind: bytes, payload: bytes) -> bytes:
    start = kind + len(payload).to_bytes(4, "little")
    return start + zlib.crc32(payload, zlib.crc32(start)).to_bytes(4, "little") + payload


def test_round_trip(tmp_path: Path):
    recording = read_recording(record(tmp_path / "a", ENTRIES))
    assert (recording.target, recording.started_unix) == ("http://host:8000", 0.5)
    assert recording.entries == ENTRIES
    assert (recording.torn, recording.damaged) == (0, 0)


@given(
    st.lists(st.builds(Entry, st.floats(0, 2e9), st.sampled_from(["exposition", "log", "new"]), st.text()), max_size=8)
)
def test_any_text_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]):
    path = tmp_path_factory.mktemp("any") / "a"
    assert read_recording(record(path, entries)).entries == entries


def test_what_was_written_is_readable_at_once(tmp_path: Path):
    path = tmp_path / "live"
    with RecordingWriter(path, "t", 0.0) as writer:
        for count, entry in enumerate(ENTRIES, 1):
            writer.write(entry)
            assert read_recording(path.read_bytes()).entries == ENTRIES[:count]
            assert writer.num_bytes == path.stat().st_size


def test_a_torn_end_is_left_out_and_counted_at_every_byte(tmp_path: Path):
    raw = record(tmp_path / "a", ENTRIES)
    ends = [len(record(tmp_path / f"{count}", ENTRIES[:count])) for count in range(len(ENTRIES) + 1)]
    for size in range(len(raw) + 1):
        whole = [end for end in ends if end <= size]
        if not whole:
            with pytest.raises(WireError):
                read_recording(raw[:size])
            continue
        recording = read_recording(raw[:size])
        assert recording.entries == ENTRIES[: len(whole) - 1]
        assert (recording.torn, recording.damaged) == (size - whole[-1], 0)


def test_one_damaged_byte_costs_at_most_the_rest_of_its_segment(tmp_path: Path):
    first = record(tmp_path / "a", ENTRIES)
    raw = bytearray(record(tmp_path / "a", ENTRIES, existing="append"))
    for at in range(len(raw)):
        raw[at] ^= 0x55
        recording = read_recording(bytes(raw))
        own = recording.entries[:-4] if at < len(first) else recording.entries[4:]
        assert len(recording.entries) >= 4
        assert own == ENTRIES[: len(own)], "nothing that was damaged passes for an entry"
        assert recording.torn + recording.damaged > 0
        assert (recording.torn == 0) == (at < len(first))
        raw[at] ^= 0x55


def test_long_recordings_have_many_segments(tmp_path: Path):
    entries = [Entry(float(n), "exposition", f"a {n}\nb 1\n") for n in range(2 * ENTRIES_PER_SEGMENT + 1)]
    raw = record(tmp_path / "a", entries)
    assert raw.count(MARK) == 3
    assert read_recording(raw).entries == entries


def test_appending_goes_on_after_a_torn_end(tmp_path: Path):
    path = tmp_path / "a"
    path.write_bytes(record(path, ENTRIES)[:-3])
    recording = read_recording(record(path, ENTRIES, existing="append"))
    assert recording.entries == ENTRIES[:-1] + ENTRIES
    assert (recording.torn, recording.damaged > 0) == (0, True)


def test_an_existing_file_is_never_overwritten_unasked(tmp_path: Path):
    path = tmp_path / "a"
    before = record(path, ENTRIES)
    with pytest.raises(FileExistsError):
        RecordingWriter(path, "t", 0.0)
    assert path.read_bytes() == before
    assert read_recording(record(path, [], existing="replace", target="t")).target == "t"


def test_two_writers_do_not_mix(tmp_path: Path):
    path = tmp_path / "a"
    with RecordingWriter(path, "t", 0.0) as writer:
        writer.write(ENTRIES[0])
        for existing in ("append", "replace"):
            with pytest.raises(OSError, match="another process is recording"):
                record(path, [], existing=existing)
        writer.write(ENTRIES[1])
    assert read_recording(path.read_bytes()).entries == ENTRIES[:2]


def test_a_pipe_can_be_recorded_to(tmp_path: Path):
    """It cannot be synced, and need not be."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with RecordingWriter(tmp_path / "pipe", "t", 0.0, existing="append") as writer:
        writer.write(ENTRIES[0])
    assert read_recording(os.read(reader, 65536)).entries == ENTRIES[:1]
    os.close(reader)


def header(**fields: object) -> bytes:
    return MARK + frame(
        b"S", json.dumps({"stallscope_recording": 2, "target": "t", "started_unix": 0} | fields).encode()
    )


def test_frames_are_as_the_format_says():
    """Written by hand, as another program would."""
    pack = zlib.compressobj()
    first = frame(b"E", pack.compress(b'{"t":1,"kind":"exposition"}\na 1\nb 1') + pack.flush(zlib.Z_SYNC_FLUSH))
    second = frame(
        b"E", pack.compress(b'{"t":2,"kind":"exposition","delta":true}\n=1\n~2') + pack.flush(zlib.Z_SYNC_FLUSH)
    )
    assert read_recording(header() + first + second).entries == [
        Entry(1.0, "exposition", "a 1\nb 1"),
        Entry(2.0, "exposition", "a 1\nb 2"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        b"nonsense",
        b'{"t":0}\n',
        b'{"t":"soon","kind":"a"}\n',
        b'{"t":' + b"9" * 5000 + b"}\n",
        b"[" * 100_000,
        b"[]\n",
        b'{"t":0,"kind":"exposition","delta":true}\n=1',
        b'{"t":0,"kind":"exposition"}\n\xff',
    ],
)
def test_what_is_no_entry_is_left_out_and_counted(text: bytes):
    """Its checksum is right: another program wrote it, or a bug."""
    bad = frame(b"E", zlib.compress(text))
    recording = read_recording(header() + bad)
    assert recording.entries == []
    assert recording.torn == len(bad)


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("probes.recording.MAX_BODY_BYTES", 10_000)
    bomb = frame(b"E", zlib.compress(b'{"t":0,"kind":"log"}\n' + b"a" * 10_000_000))
    assert read_recording(header() + bomb).entries == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MARK,
        MARK + b"S\xff\xff\xff\xff",
        MARK * 3,
        b"{}\n",
        header(stallscope_recording=3),
        header(stallscope_recording=None),
        header(started_unix="soon"),
        MARK + frame(b"S", b"[]"),
        MARK + frame(b"S", b"nonsense"),
        MARK + frame(b"E", b"{}"),
    ],
)
def test_what_is_no_recording_is_refused(data: bytes):
    with pytest.raises(WireError):
        read_recording(data)


def test_entries_can_be_read_one_by_one_and_again(tmp_path: Path):
    reader = RecordingReader(record(tmp_path / "a", ENTRIES) + b"torn")
    assert next(reader.entries()) == ENTRIES[0]
    for _ in range(2):
        assert list(reader.entries()) == ENTRIES
        assert reader.torn == 4


def test_a_page_like_the_one_before_costs_a_fraction(tmp_path: Path):
    """Counted, not timed: a second page is at most a tenth of what the first one takes packed."""
    engine, entries = Engine(), []
    for records in (make_steps(20), make_steps(20, first_id=20)):
        engine.run(records)
        entries.append(Entry(0.0, "exposition", engine.page()))
    one, two = (len(record(tmp_path / str(count), entries[:count])) for count in (1, 2))
    assert two - one < one / 10
    assert one < len(entries[0].body) / 5
