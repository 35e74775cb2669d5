"""Files as evidence, recognised by what they hold."""

import io
import sys
import zlib
from pathlib import Path

import pytest

from diagnose.errors import SourceError
from diagnose.sources.files import read_files
from diagnose.sources.readers import READERS, UNKNOWN_TIME
from probes.recording import MARK, Entry, RecordingWriter
from tests.builders import START_UNIX, Engine, make_steps

PAGE = '# TYPE stallscope_tokens_total counter\nstallscope_tokens_total{phase="decode"} 5\n'


def put(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def record(folder: Path, name: str = "a.rec", entries: int = 2) -> Path:
    path = folder / name
    with RecordingWriter(path, "http://h:1", START_UNIX) as writer:
        for index in range(entries):
            writer.write(Entry(START_UNIX + index, "exposition", PAGE))
    return path


def times(names: list[str], interval: float | None = None) -> list[float]:
    return [entry.unix for entry in read_files(names, interval).entries]


def complaint(*names: str) -> str:
    with pytest.raises(SourceError) as caught:
        read_files(names, None)
    text = str(caught.value)
    assert "\n" not in text
    assert "\x1b" not in text
    return text


def test_each_kind_is_recognised_by_its_content(tmp_path):
    """Whatever the names say."""
    page = put(tmp_path, "a.rec", PAGE)
    steps = put(tmp_path, "b.prom", Engine().steps(make_steps(3)))
    recording = record(tmp_path, "c.txt", entries=1)
    evidence = read_files([page, steps, str(recording)], None)
    assert [entry.kind for entry in evidence.entries] == ["steps", "exposition", "exposition"]
    assert evidence.name == "http://h:1", "a recording knows its target"
    assert evidence.warnings == []


def test_names_of_files_stand_for_the_target(tmp_path):
    one, two = put(tmp_path, "1.prom", PAGE), put(tmp_path, "2.prom", PAGE)
    assert read_files([one], None).name == one
    assert read_files([one, two], None).name == f"{one} ... {two}"


def test_the_scrape_comment_is_the_time(tmp_path):
    first = put(tmp_path, "1", f"# scraped_at_unix 1700000000.25\n{PAGE}")
    second = put(tmp_path, "2", f"#scraped_at_unix   1700000010\n{PAGE}")
    assert times([first, second]) == [1_700_000_000.25, 1_700_000_010.0]


def test_else_the_timestamp_of_a_sample(tmp_path):
    stamped = put(tmp_path, "1", 'a{x="1"} 5 1700000000500\nb 2\n')
    assert times([stamped]) == [1_700_000_000.5]
    both = put(tmp_path, "2", "# scraped_at_unix 1600000000\na 5 1700000000500\n")
    assert times([both]) == [1_600_000_000.0]


@pytest.mark.parametrize(
    "line",
    ['memory_bytes{kind="kv pool"} 137438953472', 'memory_bytes{kind="a", of="b"} 137438953472', "a 137438953472"],
)
def test_a_large_value_is_no_timestamp(tmp_path, line):
    """128 GiB has as many digits as a time in milliseconds."""
    assert times([put(tmp_path, "1", line + "\n")]) == [UNKNOWN_TIME]


def test_else_the_interval(tmp_path):
    files = [put(tmp_path, str(n), PAGE) for n in range(3)]
    assert times(files, 30.0) == [0, 30, 60]
    assert times(files) == [UNKNOWN_TIME] * 3


def test_an_interval_does_not_mix_with_real_times(tmp_path):
    """A file placed at second 30 of 1970 beside one of today would make a window of half a century."""
    known, unknown = put(tmp_path, "1", f"# scraped_at_unix 1700000000\n{PAGE}"), put(tmp_path, "2", PAGE)
    evidence = read_files([known, unknown], 30.0)
    assert [entry.unix for entry in evidence.entries] == [1_700_000_000.0, UNKNOWN_TIME]
    assert evidence.warnings == ["1 of 2 scrapes say nothing of when they were taken"]


def test_a_torn_recording_is_used_up_to_its_tail(tmp_path):
    path = record(tmp_path, entries=3)
    data = path.read_bytes()
    whole = len(record(tmp_path, "b.rec", entries=2).read_bytes())
    path.write_bytes(data[:-5])
    evidence = read_files([str(path)], None)
    assert len(evidence.entries) == 2
    assert evidence.warnings == [
        f"{path}: its end was cut off in a write ({len(data) - 5 - whole} bytes left out), the rest is used"
    ]


def test_damage_in_the_middle_of_a_recording_is_told(tmp_path):
    """Two recordings put together are one; what cannot be read in between costs only itself."""
    first, second = record(tmp_path, "a.rec"), record(tmp_path, "b.rec")
    (tmp_path / "both").write_bytes(first.read_bytes() + b"garbage" + second.read_bytes())
    evidence = read_files([str(tmp_path / "both")], None)
    assert len(evidence.entries) == 4
    assert "7 bytes within it cannot be read and were left out" in evidence.warnings[0]


def test_a_recording_of_nothing_is_said_to_be_so(tmp_path):
    assert "holds no answer of http://h:1" in complaint(str(record(tmp_path, entries=0)))


def test_a_recording_of_a_later_schema_is_not_guessed_at(tmp_path):
    path = record(tmp_path)
    header = b'{"stallscope_recording":3,"target":"t","started_unix":0}'
    frame = b"S" + len(header).to_bytes(4, "little")
    checksum = zlib.crc32(header, zlib.crc32(frame)).to_bytes(4, "little")
    path.write_bytes(MARK + frame + checksum + header)
    assert complaint(str(path)) == f"{path}: recording has schema 3, this stallscope reads 2"


def test_what_cannot_be_read(tmp_path):
    missing = str(tmp_path / "none.prom")
    assert complaint(missing) == f"{missing}: cannot be read: No such file or directory"
    assert complaint(str(tmp_path)).endswith(f"cannot be read: Is a directory; name the files in it: {tmp_path}/*")
    assert complaint(put(tmp_path, "empty", " \n\n")).endswith(": is empty")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x80\x81\xff" * 100)
    assert complaint(str(binary)).startswith(f"{binary}: is not text; what can be read: ")


@pytest.mark.parametrize("line", [b"a,b,c\rd,e,f", b"\x9f,\x00,\r,,,,"])
def test_bytes_with_commas_are_no_table(tmp_path, line):
    """A profiler's own file has lines of all kinds among its bytes."""
    path = tmp_path / "odd"
    path.write_bytes(b"\x80\x81\xff\n" + line + b"\n")
    assert "what can be read: " in complaint(str(path))


@pytest.mark.parametrize(
    ("name", "data"), [("run.nsys-rep", b"\x9c\x01\xff"), ("a.db", b"SQLite format 3\x00\x10\x00")]
)
def test_a_profile_of_nsight_systems_is_told_how_to_print_it(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    assert f"; of a profile by Nsight Systems, give what `nsys stats {path}` prints; what can" in complaint(str(path))


def test_a_forgotten_scheme_is_noticed():
    assert complaint("localhost:8000").endswith("a live target is written http://localhost:8000")
    assert "http://" not in complaint("no-such-file.prom")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("just words\n", "text of no kind this version knows (it begins with 'just words')"),
        ("\x00\x01", "is not text"),
        ("\x1b[2J{", "text of no kind this version knows (it begins with '?[2J{')"),
        ('{"status":"ok"}', "JSON of no kind this version knows"),
        ("<html><head><title>502 Bad Gateway</title></head>", "an HTML page (502 Bad Gateway)"),
        ("<?xml?>", "an HTML or XML page"),
        ('{"a":' * 100_000, "JSON of no kind this version knows"),
    ],
)
def test_what_is_none_of_these_kinds(tmp_path, text, seen):
    """One line: what it looks like, and what would do."""
    name = put(tmp_path, "odd", text)
    kinds = ", ".join(reader.kind for reader in READERS)
    assert complaint(name) == f"{name}: {seen}; what can be read: {kinds}"
    assert kinds.startswith("a recording, step records, a torch profiler's trace, a metrics page")


def stdin(data: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")


def test_standard_input(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", stdin(record(tmp_path).read_bytes()))
    assert len(times(["-"])) == 2
    monkeypatch.setattr(sys, "stdin", stdin(f"# scraped_at_unix 5\n{PAGE}".encode()))
    assert times(["-"]) == [5.0]
    monkeypatch.setattr(sys, "stdin", stdin(b""))
    assert complaint("-") == "-: is empty"
    monkeypatch.setattr(sys, "stdin", stdin(b"\xff\xfd"))
    assert complaint("-").startswith("-: is not text")
